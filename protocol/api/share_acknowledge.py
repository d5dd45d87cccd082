"""ShareAcknowledge (key 79): acknowledge records of share partitions (KIP-932).

Version 0 was an early access version. Version 1 is the first stable one.
Version 2 adds IsRenewAck and the acknowledgement type Renew to the request, and
    AcquisitionLockTimeoutMs to the response (KIP-1222).
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from ..registry import SHARE_ACKNOWLEDGE
from ..schema import Array, Bool, Int8, Int16, Int32, Int64, Message, String, Struct, Uuid, field


class AcknowledgementBatch(Message):
    first_offset: int = field(Int64)
    last_offset: int = field(Int64)  # inclusive
    # 0 gap 1 accept 2 release 3 reject 4 renew; one for the whole batch, or one per offset
    acknowledge_types: Sequence[int] = field(Array(Int8))


class AcknowledgePartition(Message):
    partition_index: int = field(Int32)
    acknowledgement_batches: Sequence[AcknowledgementBatch] = field(Array(AcknowledgementBatch))


class AcknowledgeTopic(Message):
    topic_id: UUID = field(Uuid)
    partitions: Sequence[AcknowledgePartition] = field(Array(AcknowledgePartition))


class ShareAcknowledgeRequest(Message, api=SHARE_ACKNOWLEDGE):
    group_id: str | None = field(String, nullable=0, default=None)
    member_id: str | None = field(String, nullable=0)
    share_session_epoch: int = field(Int32)  # -1 closes the session, else one more than the last
    is_renew_ack: bool = field(Bool, since=2)  # whether there are acknowledgements of type Renew
    topics: Sequence[AcknowledgeTopic] = field(Array(AcknowledgeTopic))


class LeaderIdAndEpoch(Message):
    leader_id: int = field(Int32)  # leader node, -1 unknown
    leader_epoch: int = field(Int32)


class PartitionData(Message):
    partition_index: int = field(Int32)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable=0, default=None)
    # set on NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH
    current_leader: LeaderIdAndEpoch = field(Struct(LeaderIdAndEpoch))


class ShareAcknowledgeTopicResponse(Message):
    topic_id: UUID = field(Uuid)
    partitions: Sequence[PartitionData] = field(Array(PartitionData))


class NodeEndpoint(Message):
    node_id: int = field(Int32)
    host: str = field(String)
    port: int = field(Int32)
    rack: str | None = field(String, nullable=0, default=None)


class ShareAcknowledgeResponse(Message, api=SHARE_ACKNOWLEDGE):
    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable=0, default=None)
    acquisition_lock_timeout_ms: int = field(Int32, since=2, ignorable=True)
    responses: Sequence[ShareAcknowledgeTopicResponse] = field(Array(ShareAcknowledgeTopicResponse))
    # addresses of the current leaders
    node_endpoints: Sequence[NodeEndpoint] = field(Array(NodeEndpoint))
