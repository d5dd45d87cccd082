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

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .acls import (
        AclBinding,
        AclFilter,
        AclOperation,
        PatternType,
        PermissionType,
        ResourceType,
    )
    from .admin import Admin
    from .quotas import QuotaEntity, QuotaName
    from .replicas import PartitionReassignment
    from .requests import PartialError
    from .results import (
        ApiVersion,
        BrokerDescription,
        ClusterDescription,
        ConfigEntry,
        ConfigSource,
        GroupDescription,
        GroupListing,
        MemberDescription,
        PartitionLag,
        ReplicaLogDir,
    )
    from .share_groups import ShareOffset
    from .topics import CreatedTopic, NewTopic, PartitionDescription, TopicDescription
    from .transactions import (
        HangingTransaction,
        ProducerState,
        TransactionDescription,
        TransactionListing,
    )

__all__ = [
    "AclBinding",
    "AclFilter",
    "AclOperation",
    "Admin",
    "ApiVersion",
    "BrokerDescription",
    "ClusterDescription",
    "ConfigEntry",
    "ConfigSource",
    "CreatedTopic",
    "GroupDescription",
    "GroupListing",
    "HangingTransaction",
    "MemberDescription",
    "NewTopic",
    "PartialError",
    "PartitionDescription",
    "PartitionLag",
    "PartitionReassignment",
    "PatternType",
    "PermissionType",
    "ProducerState",
    "QuotaEntity",
    "QuotaName",
    "ReplicaLogDir",
    "ResourceType",
    "ShareOffset",
    "TopicDescription",
    "TransactionDescription",
    "TransactionListing",
]

# The others are in results.
_MODULE_OF = {
    "Admin": "admin",
    **dict.fromkeys(
        (
            *("AclBinding", "AclFilter", "AclOperation"),
            *("PatternType", "PermissionType", "ResourceType"),
        ),
        "acls",
    ),
    **dict.fromkeys(("QuotaEntity", "QuotaName"), "quotas"),
    "PartialError": "requests",
    "PartitionReassignment": "replicas",
    "ShareOffset": "share_groups",
    **dict.fromkeys(
        ("CreatedTopic", "NewTopic", "PartitionDescription", "TopicDescription"), "topics"
    ),
    **dict.fromkeys(
        ("HangingTransaction", "ProducerState", "TransactionDescription", "TransactionListing"),
        "transactions",
    ),
}


def __getattr__(name: str) -> Any:
    # Imported on first use: a program that lists topics needs no messages about groups.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_MODULE_OF.get(name, 'results')}", __name__), name)
    globals()[name] = value
    return value
