"""WriteShareGroupState (key 85): write changes of the state of share partitions (KIP-932).

Between brokers: the leader of a partition asks the share coordinator.

Version 1 adds DeliveryCompleteCount (KIP-1226).
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from ..registry import WRITE_SHARE_GROUP_STATE
from ..schema import Array, Int32, Int64, Message, String, Uuid, field
from .initialize_share_group_state import StateResult
from .read_share_group_state import StateBatch


class PartitionData(Message):
    partition: int = field(Int32)
    state_epoch: int = field(Int32)
    leader_epoch: int = field(Int32)
    start_offset: int = field(Int64)  # -1 = unchanged
    # finished records after the start offset, -1 unknown
    delivery_complete_count: int = field(Int32, since=1, ignorable=True, default=-1)
    state_batches: Sequence[StateBatch] = field(Array(StateBatch))


class WriteStateData(Message):
    topic_id: UUID = field(Uuid)
    partitions: Sequence[PartitionData] = field(Array(PartitionData))


class WriteShareGroupStateRequest(Message, api=WRITE_SHARE_GROUP_STATE):
    group_id: str = field(String)
    topics: Sequence[WriteStateData] = field(Array(WriteStateData))


class WriteShareGroupStateResponse(Message, api=WRITE_SHARE_GROUP_STATE):
    results: Sequence[StateResult] = field(Array(StateResult))
