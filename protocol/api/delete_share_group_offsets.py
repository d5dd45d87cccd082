"""DeleteShareGroupOffsets (key 92): delete the share partitions of topics (KIP-932)."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from ..registry import DELETE_SHARE_GROUP_OFFSETS
from ..schema import Array, Int16, Int32, Message, String, Uuid, field


class DeleteShareGroupOffsetsRequestTopic(Message):
    topic_name: str = field(String)


class DeleteShareGroupOffsetsRequest(Message, api=DELETE_SHARE_GROUP_OFFSETS):
    group_id: str = field(String)
    topics: Sequence[DeleteShareGroupOffsetsRequestTopic] = field(
        Array(DeleteShareGroupOffsetsRequestTopic)
    )


class DeleteShareGroupOffsetsResponseTopic(Message):
    topic_name: str = field(String)
    topic_id: UUID = field(Uuid)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable=0, default=None)


class DeleteShareGroupOffsetsResponse(Message, api=DELETE_SHARE_GROUP_OFFSETS):
    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable=0, default=None)
    responses: Sequence[DeleteShareGroupOffsetsResponseTopic] = field(
        Array(DeleteShareGroupOffsetsResponseTopic)
    )
