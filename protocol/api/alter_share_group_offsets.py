"""AlterShareGroupOffsets (key 91): set the start offsets of share partitions (KIP-932)."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from ..registry import ALTER_SHARE_GROUP_OFFSETS
from ..schema import Array, Int16, Int32, Int64, Message, String, Uuid, field


class AlterShareGroupOffsetsRequestPartition(Message):
    partition_index: int = field(Int32)
    start_offset: int = field(Int64)


class AlterShareGroupOffsetsRequestTopic(Message):
    topic_name: str = field(String)
    partitions: Sequence[AlterShareGroupOffsetsRequestPartition] = field(
        Array(AlterShareGroupOffsetsRequestPartition)
    )


class AlterShareGroupOffsetsRequest(Message, api=ALTER_SHARE_GROUP_OFFSETS):
    group_id: str = field(String)
    topics: Sequence[AlterShareGroupOffsetsRequestTopic] = field(
        Array(AlterShareGroupOffsetsRequestTopic)
    )


class AlterShareGroupOffsetsResponsePartition(Message):
    partition_index: int = field(Int32)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable=0, default=None)


class AlterShareGroupOffsetsResponseTopic(Message):
    topic_name: str = field(String)
    topic_id: UUID = field(Uuid)
    partitions: Sequence[AlterShareGroupOffsetsResponsePartition] = field(
        Array(AlterShareGroupOffsetsResponsePartition)
    )


class AlterShareGroupOffsetsResponse(Message, api=ALTER_SHARE_GROUP_OFFSETS):
    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable=0, default=None)
    responses: Sequence[AlterShareGroupOffsetsResponseTopic] = field(
        Array(AlterShareGroupOffsetsResponseTopic)
    )
