"""DeleteRecords (key 21): delete all records before an offset.

Version 2 is the first flexible version.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import DELETE_RECORDS
from ..schema import Array, Int16, Int32, Int64, Message, String, field


class DeleteRecordsPartition(Message):
    partition_index: int = field(Int32)
    offset: int = field(Int64)  # delete below this; -1 = high watermark


class DeleteRecordsTopic(Message):
    name: str = field(String)
    partitions: Sequence[DeleteRecordsPartition] = field(Array(DeleteRecordsPartition))


class DeleteRecordsRequest(Message, api=DELETE_RECORDS):
    topics: Sequence[DeleteRecordsTopic] = field(Array(DeleteRecordsTopic))
    timeout_ms: int = field(Int32)


class DeleteRecordsPartitionResult(Message):
    partition_index: int = field(Int32)
    low_watermark: int = field(Int64)  # new log start offset (-1 on error)
    error_code: int = field(Int16)


class DeleteRecordsTopicResult(Message):
    name: str = field(String)
    partitions: Sequence[DeleteRecordsPartitionResult] = field(Array(DeleteRecordsPartitionResult))


class DeleteRecordsResponse(Message, api=DELETE_RECORDS):
    throttle_time_ms: int = field(Int32)
    topics: Sequence[DeleteRecordsTopicResult] = field(Array(DeleteRecordsTopicResult))
