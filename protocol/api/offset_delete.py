"""OffsetDelete (key 47): delete committed offsets of a group."""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import OFFSET_DELETE
from ..schema import Array, Int16, Int32, Message, String, field


class OffsetDeleteRequestPartition(Message):
    partition_index: int = field(Int32)


class OffsetDeleteRequestTopic(Message):
    name: str = field(String)
    partitions: Sequence[OffsetDeleteRequestPartition] = field(Array(OffsetDeleteRequestPartition))


class OffsetDeleteRequest(Message, api=OFFSET_DELETE):
    group_id: str = field(String)
    topics: Sequence[OffsetDeleteRequestTopic] = field(Array(OffsetDeleteRequestTopic))


class OffsetDeleteResponsePartition(Message):
    partition_index: int = field(Int32)
    error_code: int = field(Int16)


class OffsetDeleteResponseTopic(Message):
    name: str = field(String)
    partitions: Sequence[OffsetDeleteResponsePartition] = field(
        Array(OffsetDeleteResponsePartition)
    )


class OffsetDeleteResponse(Message, api=OFFSET_DELETE):
    error_code: int = field(Int16)
    throttle_time_ms: int = field(Int32)
    topics: Sequence[OffsetDeleteResponseTopic] = field(Array(OffsetDeleteResponseTopic))
