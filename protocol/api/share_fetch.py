"""ShareFetch (key 78): acquire records of share partitions, and acknowledge others (KIP-932).

Version 0 was an early access version. Version 1 is the first stable one.
Version 2 adds ShareAcquireMode (KIP-1206), and IsRenewAck and the acknowledgement type Renew
    (KIP-1222).
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from ..registry import SHARE_FETCH
from ..schema import (
    Array,
    Bool,
    Buffer,
    Bytes,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    String,
    Struct,
    Uuid,
    field,
)
from .share_acknowledge import AcknowledgementBatch, LeaderIdAndEpoch, NodeEndpoint


class FetchPartition(Message):
    partition_index: int = field(Int32)
    acknowledgement_batches: Sequence[AcknowledgementBatch] = field(Array(AcknowledgementBatch))


class FetchTopic(Message):
    topic_id: UUID = field(Uuid)
    partitions: Sequence[FetchPartition] = field(Array(FetchPartition))


class ForgottenTopic(Message):
    topic_id: UUID = field(Uuid)
    partitions: Sequence[int] = field(Array(Int32))


class ShareFetchRequest(Message, api=SHARE_FETCH):
    group_id: str | None = field(String, nullable=0, default=None)
    member_id: str | None = field(String, nullable=0)
    share_session_epoch: int = field(Int32)  # 0 opens, -1 closes, else one more than the last
    max_wait_ms: int = field(Int32)  # long-poll limit
    min_bytes: int = field(Int32)  # respond once this many bytes are available
    max_bytes: int = field(Int32, default=2**31 - 1)  # soft limit for the whole response
    max_records: int = field(Int32)  # exceeded for whole batches, if ShareAcquireMode is 0
    batch_size: int = field(Int32)  # records per batch of AcquiredRecords, at best
    # 0 batch optimized 1 record limit
    share_acquire_mode: int = field(Int8, since=2, ignorable=True)
    is_renew_ack: bool = field(Bool, since=2)  # whether there are acknowledgements of type Renew
    topics: Sequence[FetchTopic] = field(Array(FetchTopic))
    # partitions to drop from the share session
    forgotten_topics_data: Sequence[ForgottenTopic] = field(Array(ForgottenTopic))


class AcquiredRecords(Message):
    first_offset: int = field(Int64)
    last_offset: int = field(Int64)  # inclusive
    delivery_count: int = field(Int16)


class PartitionData(Message):
    partition_index: int = field(Int32)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable=0, default=None)
    acknowledge_error_code: int = field(Int16)
    acknowledge_error_message: str | None = field(String, nullable=0, default=None)
    # set on NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH
    current_leader: LeaderIdAndEpoch = field(Struct(LeaderIdAndEpoch))
    records: Buffer = field(Bytes)  # whole record batches
    acquired_records: Sequence[AcquiredRecords] = field(Array(AcquiredRecords))


class ShareFetchableTopicResponse(Message):
    topic_id: UUID = field(Uuid)
    partitions: Sequence[PartitionData] = field(Array(PartitionData))


class ShareFetchResponse(Message, api=SHARE_FETCH):
    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable=0, default=None)
    acquisition_lock_timeout_ms: int = field(Int32)  # how long the records are acquired
    responses: Sequence[ShareFetchableTopicResponse] = field(Array(ShareFetchableTopicResponse))
    # addresses of the current leaders
    node_endpoints: Sequence[NodeEndpoint] = field(Array(NodeEndpoint))
