"""TxnOffsetCommit (key 28): commit offsets of a group as part of a transaction.

Version 2 adds CommittedLeaderEpoch.
Version 3 is the first flexible version; adds GenerationId, MemberId and GroupInstanceId.
Version 4 may return TRANSACTION_ABORTABLE.
Version 5 adds the group's offsets to the transaction (KIP-890).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import TXN_OFFSET_COMMIT
from ..schema import Array, Int16, Int32, Int64, Message, String, field


class TxnOffsetCommitRequestPartition(Message):
    partition_index: int = field(Int32)
    committed_offset: int = field(Int64)  # next offset to consume (-1 = none on fetch)
    # leader epoch of last consumed record, -1 unknown
    committed_leader_epoch: int = field(Int32, since=2, ignorable=True, default=-1)
    committed_metadata: str | None = field(String, nullable=0)  # free-form client text


class TxnOffsetCommitRequestTopic(Message):
    name: str = field(String)
    partitions: Sequence[TxnOffsetCommitRequestPartition] = field(
        Array(TxnOffsetCommitRequestPartition)
    )


class TxnOffsetCommitRequest(Message, api=TXN_OFFSET_COMMIT):
    transactional_id: str = field(String)
    group_id: str = field(String)
    producer_id: int = field(Int64)
    producer_epoch: int = field(Int16)
    generation_id: int = field(Int32, since=3, default=-1)
    member_id: str = field(String, since=3)
    # null unless a static member
    group_instance_id: str | None = field(String, since=3, nullable=3, default=None)
    topics: Sequence[TxnOffsetCommitRequestTopic] = field(Array(TxnOffsetCommitRequestTopic))


class TxnOffsetCommitResponsePartition(Message):
    partition_index: int = field(Int32)
    error_code: int = field(Int16)


class TxnOffsetCommitResponseTopic(Message):
    name: str = field(String)
    partitions: Sequence[TxnOffsetCommitResponsePartition] = field(
        Array(TxnOffsetCommitResponsePartition)
    )


class TxnOffsetCommitResponse(Message, api=TXN_OFFSET_COMMIT):
    throttle_time_ms: int = field(Int32)
    topics: Sequence[TxnOffsetCommitResponseTopic] = field(Array(TxnOffsetCommitResponseTopic))
