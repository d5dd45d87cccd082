"""ReadShareGroupState (key 84): read the state of share partitions (KIP-932).

Between brokers: the leader of a partition asks the share coordinator.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from ..registry import READ_SHARE_GROUP_STATE
from ..schema import Array, Int8, Int16, Int32, Int64, Message, String, Uuid, field


class PartitionData(Message):
    partition: int = field(Int32)
    leader_epoch: int = field(Int32)


class ReadStateData(Message):
    topic_id: UUID = field(Uuid)
    partitions: Sequence[PartitionData] = field(Array(PartitionData))


class ReadShareGroupStateRequest(Message, api=READ_SHARE_GROUP_STATE):
    group_id: str = field(String)
    topics: Sequence[ReadStateData] = field(Array(ReadStateData))


class StateBatch(Message):
    first_offset: int = field(Int64)
    last_offset: int = field(Int64)  # inclusive
    delivery_state: int = field(Int8)  # 0 available 2 acknowledged 4 archived
    delivery_count: int = field(Int16)


class PartitionResult(Message):
    partition: int = field(Int32)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable=0, default=None)
    state_epoch: int = field(Int32)
    start_offset: int = field(Int64)  # -1 = not initialized
    state_batches: Sequence[StateBatch] = field(Array(StateBatch))


class ReadStateResult(Message):
    topic_id: UUID = field(Uuid)
    partitions: Sequence[PartitionResult] = field(Array(PartitionResult))


class ReadShareGroupStateResponse(Message, api=READ_SHARE_GROUP_STATE):
    results: Sequence[ReadStateResult] = field(Array(ReadStateResult))
