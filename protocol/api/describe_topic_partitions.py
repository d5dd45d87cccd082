"""DescribeTopicPartitions (key 75): describe the partitions of topics, in pages.

Version 0 is the first flexible version.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from ..registry import DESCRIBE_TOPIC_PARTITIONS
from ..schema import Array, Bool, Int16, Int32, Message, String, Struct, Uuid, field


class TopicRequest(Message):
    name: str = field(String)


class Cursor(Message):
    topic_name: str = field(String)
    partition_index: int = field(Int32)


class DescribeTopicPartitionsRequest(Message, api=DESCRIBE_TOPIC_PARTITIONS):
    topics: Sequence[TopicRequest] = field(Array(TopicRequest))
    response_partition_limit: int = field(Int32, default=2000)  # max partitions per response
    # start of the page, null = first
    cursor: Cursor | None = field(Struct(Cursor), nullable=0, default=None)


class DescribeTopicPartitionsResponsePartition(Message):
    error_code: int = field(Int16)
    partition_index: int = field(Int32)
    leader_id: int = field(Int32)  # leader node, -1 none
    leader_epoch: int = field(Int32, default=-1)  # leader epoch, -1 unknown
    replica_nodes: Sequence[int] = field(Array(Int32))
    isr_nodes: Sequence[int] = field(Array(Int32))
    # ELR set
    eligible_leader_replicas: Sequence[int] | None = field(Array(Int32), nullable=0, default=None)
    last_known_elr: Sequence[int] | None = field(Array(Int32), nullable=0, default=None)
    offline_replicas: Sequence[int] = field(Array(Int32))


class DescribeTopicPartitionsResponseTopic(Message):
    error_code: int = field(Int16)
    name: str | None = field(String, nullable=0)
    topic_id: UUID = field(Uuid)
    is_internal: bool = field(Bool)
    partitions: Sequence[DescribeTopicPartitionsResponsePartition] = field(
        Array(DescribeTopicPartitionsResponsePartition)
    )
    # ACL operation bitfield, INT32_MIN = not requested
    topic_authorized_operations: int = field(Int32, default=-(2**31))


class DescribeTopicPartitionsResponse(Message, api=DESCRIBE_TOPIC_PARTITIONS):
    throttle_time_ms: int = field(Int32)
    topics: Sequence[DescribeTopicPartitionsResponseTopic] = field(
        Array(DescribeTopicPartitionsResponseTopic)
    )
    # start of the next page, null = no more
    next_cursor: Cursor | None = field(Struct(Cursor), nullable=0, default=None)
