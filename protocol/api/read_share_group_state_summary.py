"""ReadShareGroupStateSummary (key 87): read the start offsets of share partitions (KIP-932).

Between brokers: the group coordinator asks the share coordinator.

Version 1 adds DeliveryCompleteCount (KIP-1226).
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from ..registry import READ_SHARE_GROUP_STATE_SUMMARY
from ..schema import Array, Int16, Int32, Int64, Message, String, Uuid, field
from .read_share_group_state import ReadStateData


class ReadShareGroupStateSummaryRequest(Message, api=READ_SHARE_GROUP_STATE_SUMMARY):
    group_id: str = field(String)
    topics: Sequence[ReadStateData] = field(Array(ReadStateData))


class PartitionResult(Message):
    partition: int = field(Int32)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable=0, default=None)
    state_epoch: int = field(Int32)
    leader_epoch: int = field(Int32)
    start_offset: int = field(Int64)  # -1 = not initialized
    # finished records after the start offset, -1 unknown
    delivery_complete_count: int = field(Int32, since=1, ignorable=True, default=-1)


class ReadStateSummaryResult(Message):
    topic_id: UUID = field(Uuid)
    partitions: Sequence[PartitionResult] = field(Array(PartitionResult))


class ReadShareGroupStateSummaryResponse(Message, api=READ_SHARE_GROUP_STATE_SUMMARY):
    results: Sequence[ReadStateSummaryResult] = field(Array(ReadStateSummaryResult))
