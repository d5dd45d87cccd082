"""Admin: topics, settings, groups, offsets, and the cluster itself.

    async with Admin("localhost:9092") as admin:
        await admin.create_topic("orders", partitions=3)
        print(await admin.end_offsets("orders"))

One rule for what goes wrong: a verb does all that it was asked for and gives the results, or it
raises. Who asks for one thing gets its error, a KafkaError with the broker's code. Who asks for
several gets a PartialError if some of them fail: `failed` has the error of each, and `done` the
results of the others. What may succeed later is tried again first, until the time for an
operation (`TimeoutConfig.operation`) is over; that a topic or a group is not there is told at once.
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
    TopicDescription,
)
from .topics import TopicsAdmin

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
    "TopicDescription",
]


class Admin(TopicsAdmin, ConfigsAdmin, GroupsAdmin):
    """Looks at a cluster and changes it. `bootstrap` is "host:port,…" or a list of such."""
