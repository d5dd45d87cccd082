"""The client SDK, for ottla and any other Kafka cluster.

    async with Producer("localhost:9092") as producer:
        metadata = await producer.send("orders", b"…", key=b"user-1")

    async with Consumer("localhost:9092", "orders", group="billing") as consumer:
        async for record in consumer:
            ...

`ShareConsumer` reads as a member of a share group. `Admin` manages topics, configs, groups and
offsets; `ottla.client.blocking` has the same clients without `await`. The names in `__all__` are
the public API. Each is imported on first use, so a program only loads what it needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .admin import (
        AclBinding,
        AclFilter,
        AclOperation,
        Admin,
        ApiVersion,
        BrokerDescription,
        ClusterDescription,
        ConfigEntry,
        ConfigSource,
        CreatedTopic,
        GroupDescription,
        GroupListing,
        HangingTransaction,
        MemberDescription,
        NewTopic,
        PartialError,
        PartitionDescription,
        PartitionLag,
        PartitionReassignment,
        PatternType,
        PermissionType,
        ProducerState,
        QuotaEntity,
        QuotaName,
        ReplicaLogDir,
        ResourceType,
        ShareOffset,
        TopicDescription,
        TransactionDescription,
        TransactionListing,
    )
    from .config import ClientConfig, RetryConfig, TimeoutConfig
    from .consumer.config import FetchConfig, GroupConfig
    from .consumer.consumer import Consumer
    from .consumer.fetched_data import BadRecordError, TruncatedError
    from .errors import (
        AbortableTransactionError,
        AcknowledgeError,
        AuthenticationError,
        BufferFullError,
        ClientError,
        ClosedError,
        ConnectionLostError,
        ConsumerError,
        DeadlineError,
        ErrorCode,
        FatalTransactionError,
        KafkaError,
        LogTruncationError,
        ProducerFencedError,
        RecordTooLargeError,
        RefreshError,
        RetriableError,
        SerializationError,
        TransactionError,
        UnsupportedError,
    )
    from .producer.producer import (
        BatchConfig,
        DetachedTransaction,
        OffsetRange,
        Producer,
        ProducerRecord,
        Transaction,
    )
    from .security import SecurityConfig
    from .share.config import DeadLetterConfig, ShareConfig
    from .share.consumer import ShareConsumer
    from .types import (
        AcknowledgeType,
        ConsumerGroupMetadata,
        ConsumerRecord,
        OffsetAndMetadata,
        OffsetAndTimestamp,
        RecordMetadata,
        ShareRecord,
        TopicPartition,
    )

__all__ = [
    "AbortableTransactionError",
    "AcknowledgeError",
    "AcknowledgeType",
    "AclBinding",
    "AclFilter",
    "AclOperation",
    "Admin",
    "ApiVersion",
    "AuthenticationError",
    "BadRecordError",
    "BatchConfig",
    "BrokerDescription",
    "BufferFullError",
    "ClientConfig",
    "ClientError",
    "ClosedError",
    "ClusterDescription",
    "ConfigEntry",
    "ConfigSource",
    "ConnectionLostError",
    "Consumer",
    "ConsumerError",
    "ConsumerGroupMetadata",
    "ConsumerRecord",
    "CreatedTopic",
    "DeadLetterConfig",
    "DeadlineError",
    "DetachedTransaction",
    "ErrorCode",
    "FatalTransactionError",
    "FetchConfig",
    "GroupConfig",
    "GroupDescription",
    "GroupListing",
    "HangingTransaction",
    "KafkaError",
    "LogTruncationError",
    "MemberDescription",
    "NewTopic",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetRange",
    "PartialError",
    "PartitionDescription",
    "PartitionLag",
    "PartitionReassignment",
    "PatternType",
    "PermissionType",
    "Producer",
    "ProducerFencedError",
    "ProducerRecord",
    "ProducerState",
    "QuotaEntity",
    "QuotaName",
    "RecordMetadata",
    "RecordTooLargeError",
    "RefreshError",
    "ReplicaLogDir",
    "ResourceType",
    "RetriableError",
    "RetryConfig",
    "SecurityConfig",
    "SerializationError",
    "ShareConfig",
    "ShareConsumer",
    "ShareOffset",
    "ShareRecord",
    "TimeoutConfig",
    "TopicDescription",
    "TopicPartition",
    "Transaction",
    "TransactionDescription",
    "TransactionError",
    "TransactionListing",
    "TruncatedError",
    "UnsupportedError",
]

_MODULES = {
    "admin": (
        *("Admin", "ApiVersion", "BrokerDescription", "ClusterDescription", "ConfigEntry"),
        *("ConfigSource", "CreatedTopic", "GroupDescription", "GroupListing", "MemberDescription"),
        *("NewTopic", "PartialError", "PartitionDescription", "PartitionLag", "TopicDescription"),
        *("ReplicaLogDir", "HangingTransaction", "ProducerState", "TransactionDescription"),
        *("TransactionListing", "AclBinding", "AclFilter", "AclOperation", "PatternType"),
        *("PermissionType", "QuotaEntity", "QuotaName", "ResourceType"),
        *("PartitionReassignment", "ShareOffset"),
    ),
    "consumer.fetched_data": ("BadRecordError", "TruncatedError"),
    "config": ("RetryConfig", "ClientConfig", "TimeoutConfig"),
    "consumer.consumer": ("Consumer",),
    "consumer.config": ("FetchConfig", "GroupConfig"),
    "producer.producer": (
        *("BatchConfig", "DetachedTransaction", "OffsetRange", "Producer", "ProducerRecord"),
        "Transaction",
    ),
    "security": ("SecurityConfig",),
    "share.config": ("DeadLetterConfig", "ShareConfig"),
    "share.consumer": ("ShareConsumer",),
    "types": (
        "AcknowledgeType",
        "ConsumerGroupMetadata",
        "OffsetAndMetadata",
        "OffsetAndTimestamp",
        "RecordMetadata",
        "ConsumerRecord",
        "ShareRecord",
        "TopicPartition",
    ),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_MODULE_OF.get(name, 'errors')}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
