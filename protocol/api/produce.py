"""Produce (key 0): append record batches to partitions.

Version 3 is the first that takes batches of magic 2, and adds the transactional id.
Version 4 may answer KAFKA_STORAGE_ERROR.
Version 5 adds the log start offset to the response.
Version 7 allows zstd.
Version 8 names the records that were refused, and why.
Version 9 is the first flexible version.
Version 10 adds hints at the current leader to the response.
Version 11 may answer TRANSACTION_ABORTABLE.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import PRODUCE
from ..schema import Array, Buffer, Bytes, Int16, Int32, Int64, Message, String, Struct, field


class PartitionProduceData(Message):
    index: int = field(Int32)
    records: Buffer | None = field(Bytes, nullable=3)  # record batches


class TopicProduceData(Message):
    name: str = field(String)
    partition_data: Sequence[PartitionProduceData] = field(Array(PartitionProduceData))


class ProduceRequest(Message, api=PRODUCE):
    # null unless transactional
    transactional_id: str | None = field(String, nullable=3, default=None)
    acks: int = field(Int16)  # -1 all / 1 leader / 0 no reply
    timeout_ms: int = field(Int32)
    topic_data: Sequence[TopicProduceData] = field(Array(TopicProduceData))


class BatchIndexAndErrorMessage(Message):
    batch_index: int = field(Int32)  # record index inside batch
    # why that record failed
    batch_index_error_message: str | None = field(String, nullable=8, default=None)


class LeaderIdAndEpoch(Message):
    leader_id: int = field(Int32, default=-1)  # leader node, -1 none
    leader_epoch: int = field(Int32, default=-1)  # leader epoch, -1 unknown


class PartitionProduceResponse(Message):
    index: int = field(Int32)
    error_code: int = field(Int16)
    base_offset: int = field(Int64)  # offset given to first record (-1 on error)
    # append time if LogAppendTime topic, else -1
    log_append_time_ms: int = field(Int64, default=-1)
    # first retained offset
    log_start_offset: int = field(Int64, since=5, ignorable=True, default=-1)
    # offending records
    record_errors: Sequence[BatchIndexAndErrorMessage] = field(
        Array(BatchIndexAndErrorMessage), since=8, ignorable=True
    )
    error_message: str | None = field(String, since=8, nullable=8, ignorable=True, default=None)
    # leader hint on NOT_LEADER/FENCED errors
    current_leader: LeaderIdAndEpoch = field(Struct(LeaderIdAndEpoch), since=10, tag=0)


class TopicProduceResponse(Message):
    name: str = field(String)
    partition_responses: Sequence[PartitionProduceResponse] = field(Array(PartitionProduceResponse))


class NodeEndpoint(Message):
    node_id: int = field(Int32)
    host: str = field(String)
    port: int = field(Int32)
    rack: str | None = field(String, nullable=10, default=None)


class ProduceResponse(Message, api=PRODUCE):
    responses: Sequence[TopicProduceResponse] = field(Array(TopicProduceResponse))
    throttle_time_ms: int = field(Int32)
    # address of the hinted leaders
    node_endpoints: Sequence[NodeEndpoint] = field(Array(NodeEndpoint), since=10, tag=0)
