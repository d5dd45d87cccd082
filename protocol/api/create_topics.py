"""CreateTopics (key 19): create topics.

Version 2 adds ThrottleTimeMs to the response.
Version 4 allows -1 in NumPartitions and ReplicationFactor, for the defaults of the broker.
Version 5 is the first flexible version; adds NumPartitions, ReplicationFactor and Configs to the
    response.
Version 6 may return THROTTLING_QUOTA_EXCEEDED.
Version 7 adds TopicId to the response.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from ..registry import CREATE_TOPICS
from ..schema import Array, Bool, Int8, Int16, Int32, Message, String, Uuid, field


class CreatableReplicaAssignment(Message):
    partition_index: int = field(Int32)
    broker_ids: Sequence[int] = field(Array(Int32))  # explicit replica list


class CreatableTopicConfig(Message):
    name: str = field(String)
    value: str | None = field(String, nullable=2)


class CreatableTopic(Message):
    name: str = field(String)
    num_partitions: int = field(Int32)  # partition count (-1 default/unknown)
    replication_factor: int = field(Int16)  # replica count (-1 default/unknown)
    # explicit replica placement
    assignments: Sequence[CreatableReplicaAssignment] = field(Array(CreatableReplicaAssignment))
    configs: Sequence[CreatableTopicConfig] = field(Array(CreatableTopicConfig))


class CreateTopicsRequest(Message, api=CREATE_TOPICS):
    topics: Sequence[CreatableTopic] = field(Array(CreatableTopic))
    timeout_ms: int = field(Int32, default=60000)
    validate_only: bool = field(Bool)  # dry run


class CreatableTopicConfigs(Message):
    name: str = field(String)
    value: str | None = field(String, nullable=5)
    read_only: bool = field(Bool)  # cannot be altered
    config_source: int = field(Int8, default=-1)
    is_sensitive: bool = field(Bool)  # hide value


class CreatableTopicResult(Message):
    name: str = field(String)
    topic_id: UUID = field(Uuid, since=7, ignorable=True)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable=2)
    # set if configs could not be described
    topic_config_error_code: int = field(Int16, since=5, tag=0, ignorable=True)
    # partition count (-1 default/unknown)
    num_partitions: int = field(Int32, since=5, ignorable=True, default=-1)
    # replica count (-1 default/unknown)
    replication_factor: int = field(Int16, since=5, ignorable=True, default=-1)
    configs: Sequence[CreatableTopicConfigs] | None = field(
        Array(CreatableTopicConfigs), since=5, nullable=5, ignorable=True
    )


class CreateTopicsResponse(Message, api=CREATE_TOPICS):
    throttle_time_ms: int = field(Int32)
    topics: Sequence[CreatableTopicResult] = field(Array(CreatableTopicResult))
