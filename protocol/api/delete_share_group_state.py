"""DeleteShareGroupState (key 86): delete the state of share partitions (KIP-932).

Between brokers: the group coordinator asks the share coordinator.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from ..registry import DELETE_SHARE_GROUP_STATE
from ..schema import Array, Int32, Message, String, Uuid, field
from .initialize_share_group_state import StateResult


class PartitionData(Message):
    partition: int = field(Int32)


class DeleteStateData(Message):
    topic_id: UUID = field(Uuid)
    partitions: Sequence[PartitionData] = field(Array(PartitionData))


class DeleteShareGroupStateRequest(Message, api=DELETE_SHARE_GROUP_STATE):
    group_id: str = field(String)
    topics: Sequence[DeleteStateData] = field(Array(DeleteStateData))


class DeleteShareGroupStateResponse(Message, api=DELETE_SHARE_GROUP_STATE):
    results: Sequence[StateResult] = field(Array(StateResult))
