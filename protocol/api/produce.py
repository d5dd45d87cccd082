"""Produce (key 0): append record batches to partitions.

Version 3 adds TransactionalId; the first with magic 2.
Version 4 may return KAFKA_STORAGE_ERROR.
Version 5 adds LogStartOffset to the response.
Version 7 allows zstd compression.
Version 8 adds RecordErrors and ErrorMessage to the response.
Version 9 is the first flexible version.
Version 10 adds CurrentLeader and NodeEndpoints to the response.
Version 11 may return TRANSACTION_ABORTABLE.
Version 12 adds the partitions to the transaction (KIP-890).
Version 13 names topics by id.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from ..primitives import NIL_UUID
from ..registry import PRODUCE
from ..schema import Array, Buffer, Bytes, Int16, Int32, Int64, Message, String, Struct, Uuid, field

#: The last version that names topics; later ones have their ids.
LAST_VERSION_WITH_TOPIC_NAMES = 12


class PartitionProduceData(Message):
    index: int = field(Int32)
    records: Buffer | None = field(Bytes, nullable=3)


class TopicProduceData(Message):
    name: str = field(String, until=12, ignorable=True)
    topic_id: UUID = field(Uuid, since=13, default=NIL_UUID, ignorable=True)
    partition_data: Sequence[PartitionProduceData] = field(Array(PartitionProduceData))


class ProduceRequest(Message, api=PRODUCE):
    # null unless transactional
    transactional_id: str | None = field(String, nullable=3, default=None)
    acks: int = field(Int16)  # -1 all, 1 leader, 0 no response
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
    base_offset: int = field(Int64)  # offset of the first record, -1 on error
    # append time if LogAppendTime topic, else -1
    log_append_time_ms: int = field(Int64, default=-1)
    # first retained offset
    log_start_offset: int = field(Int64, since=5, ignorable=True, default=-1)
    # records that caused the rejection
    record_errors: Sequence[BatchIndexAndErrorMessage] = field(
        Array(BatchIndexAndErrorMessage), since=8, ignorable=True
    )
    error_message: str | None = field(String, since=8, nullable=8, ignorable=True, default=None)
    # set on NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH
    current_leader: LeaderIdAndEpoch = field(Struct(LeaderIdAndEpoch), since=10, tag=0)


class TopicProduceResponse(Message):
    name: str = field(String, until=12, ignorable=True)
    topic_id: UUID = field(Uuid, since=13, default=NIL_UUID, ignorable=True)
    partition_responses: Sequence[PartitionProduceResponse] = field(Array(PartitionProduceResponse))


class NodeEndpoint(Message):
    node_id: int = field(Int32)
    host: str = field(String)
    port: int = field(Int32)
    rack: str | None = field(String, nullable=10, default=None)


class ProduceResponse(Message, api=PRODUCE):
    responses: Sequence[TopicProduceResponse] = field(Array(TopicProduceResponse))
    throttle_time_ms: int = field(Int32)
    # addresses of the current leaders
    node_endpoints: Sequence[NodeEndpoint] = field(Array(NodeEndpoint), since=10, tag=0)
