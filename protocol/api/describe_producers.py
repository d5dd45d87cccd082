"""DescribeProducers (key 61): describe the active producers of partitions.

Version 0 is the first flexible version.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import DESCRIBE_PRODUCERS
from ..schema import Array, Int16, Int32, Int64, Message, String, field


class TopicRequest(Message):
    name: str = field(String)
    partition_indexes: Sequence[int] = field(Array(Int32))


class DescribeProducersRequest(Message, api=DESCRIBE_PRODUCERS):
    topics: Sequence[TopicRequest] = field(Array(TopicRequest))


class ProducerState(Message):
    producer_id: int = field(Int64)
    producer_epoch: int = field(Int32)  # int32 here, int16 elsewhere
    last_sequence: int = field(Int32, default=-1)  # last sequence, -1 none
    last_timestamp: int = field(Int64, default=-1)  # last append time
    coordinator_epoch: int = field(Int32)  # epoch of the transaction coordinator
    # first offset of the open transaction, -1 none
    current_txn_start_offset: int = field(Int64, default=-1)


class PartitionResponse(Message):
    partition_index: int = field(Int32)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable=0, default=None)
    # producers with state on this partition
    active_producers: Sequence[ProducerState] = field(Array(ProducerState))


class TopicResponse(Message):
    name: str = field(String)
    partitions: Sequence[PartitionResponse] = field(Array(PartitionResponse))


class DescribeProducersResponse(Message, api=DESCRIBE_PRODUCERS):
    throttle_time_ms: int = field(Int32)
    topics: Sequence[TopicResponse] = field(Array(TopicResponse))
