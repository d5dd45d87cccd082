"""InitializeShareGroupState (key 83): begin the state of share partitions (KIP-932).

Between brokers: the group coordinator asks the share coordinator.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from ..registry import INITIALIZE_SHARE_GROUP_STATE
from ..schema import Array, Int16, Int32, Int64, Message, String, Uuid, field


class PartitionData(Message):
    partition: int = field(Int32)
    state_epoch: int = field(Int32)
    start_offset: int = field(Int64)  # -1 = not initialized


class InitializeStateData(Message):
    topic_id: UUID = field(Uuid)
    partitions: Sequence[PartitionData] = field(Array(PartitionData))


class InitializeShareGroupStateRequest(Message, api=INITIALIZE_SHARE_GROUP_STATE):
    group_id: str = field(String)
    topics: Sequence[InitializeStateData] = field(Array(InitializeStateData))


class PartitionResult(Message):
    partition: int = field(Int32)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable=0, default=None)


class StateResult(Message):
    topic_id: UUID = field(Uuid)
    partitions: Sequence[PartitionResult] = field(Array(PartitionResult))


class InitializeShareGroupStateResponse(Message, api=INITIALIZE_SHARE_GROUP_STATE):
    results: Sequence[StateResult] = field(Array(StateResult))
