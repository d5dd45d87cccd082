"""DescribeQuorum (key 55): the controller, and how far the brokers have followed the metadata log.

Version 1 adds the timestamps of replicas. Version 2 adds error messages, directory ids and the
listeners of nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from ..primitives import NIL_UUID
from ..registry import DESCRIBE_QUORUM
from ..schema import Array, Int16, Int32, Int64, Message, String, UInt16, Uuid, field


class DescribeQuorumPartition(Message):
    partition_index: int = field(Int32)


class DescribeQuorumTopic(Message):
    topic_name: str = field(String)
    partitions: Sequence[DescribeQuorumPartition] = field(Array(DescribeQuorumPartition))


class DescribeQuorumRequest(Message, api=DESCRIBE_QUORUM):
    topics: Sequence[DescribeQuorumTopic] = field(Array(DescribeQuorumTopic))


class ReplicaState(Message):
    replica_id: int = field(Int32)
    replica_directory_id: UUID = field(Uuid, since=2, default=NIL_UUID)
    log_end_offset: int = field(Int64)
    last_fetch_timestamp: int = field(Int64, since=1, default=-1, ignorable=True)
    last_caught_up_timestamp: int = field(Int64, since=1, default=-1, ignorable=True)


class DescribeQuorumPartitionData(Message):
    partition_index: int = field(Int32)
    error_code: int = field(Int16)
    error_message: str | None = field(String, since=2, nullable=2, default=None, ignorable=True)
    leader_id: int = field(Int32)
    leader_epoch: int = field(Int32)
    high_watermark: int = field(Int64)
    current_voters: Sequence[ReplicaState] = field(Array(ReplicaState))
    observers: Sequence[ReplicaState] = field(Array(ReplicaState))


class DescribeQuorumTopicData(Message):
    topic_name: str = field(String)
    partitions: Sequence[DescribeQuorumPartitionData] = field(Array(DescribeQuorumPartitionData))


class DescribeQuorumListener(Message):
    name: str = field(String)
    host: str = field(String)
    port: int = field(UInt16)


class DescribeQuorumNode(Message):
    node_id: int = field(Int32)
    listeners: Sequence[DescribeQuorumListener] = field(Array(DescribeQuorumListener))


class DescribeQuorumResponse(Message, api=DESCRIBE_QUORUM):
    error_code: int = field(Int16)
    error_message: str | None = field(String, since=2, nullable=2, default=None, ignorable=True)
    topics: Sequence[DescribeQuorumTopicData] = field(Array(DescribeQuorumTopicData))
    nodes: Sequence[DescribeQuorumNode] = field(Array(DescribeQuorumNode), since=2, ignorable=True)
