"""The admin client: topics, configs, groups, offsets and the cluster.

    async with Admin("localhost:9092") as admin:
        await admin.create_topic("orders", partitions=3)
        print(await admin.end_offsets("orders"))

A method returns the results of all items, or raises. With one item it raises the error of that
item, a KafkaError with the broker's code. With several it raises a PartialError if some of them
fail: `failed` has the error of each, and `done` the results of the others. Retriable errors are
retried until the operation timeout (`TimeoutConfig.operation`); unknown topics and groups are
reported at once.
"""

from __future__ import annotations

from .configs import ConfigsAdmin
from .groups import GroupsAdmin
from .requests import PartialError
from .results import (
    ApiVersion,
    BrokerDescription,
    ClusterDescription,
    ConfigEntry,
    ConfigSource,
    CreatedTopic,
    GroupDescription,
    GroupListing,
    MemberDescription,
    NewTopic,
    PartitionDescription,
    PartitionLag,
    ReplicaLogDir,
    TopicDescription,
)
from .topics import TopicsAdmin
from .transactions import TransactionsAdmin

__all__ = [
    "Admin",
    "ApiVersion",
    "BrokerDescription",
    "ClusterDescription",
    "ConfigEntry",
    "ConfigSource",
    "CreatedTopic",
    "GroupDescription",
    "GroupListing",
    "MemberDescription",
    "NewTopic",
    "PartialError",
    "PartitionDescription",
    "PartitionLag",
    "ReplicaLogDir",
    "TopicDescription",
]


class Admin(TopicsAdmin, ConfigsAdmin, GroupsAdmin, TransactionsAdmin):
    """Describes and changes a cluster. `bootstrap` is "host:port,…" or a list of such."""
