"""DescribeShareGroupOffsets (key 90): the start offsets of share partitions (KIP-932).

Version 1 adds Lag (KIP-1226).
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from ..registry import DESCRIBE_SHARE_GROUP_OFFSETS
from ..schema import Array, Int16, Int32, Int64, Message, String, Uuid, field


class DescribeShareGroupOffsetsRequestTopic(Message):
    topic_name: str = field(String)
    partitions: Sequence[int] = field(Array(Int32))


class DescribeShareGroupOffsetsRequestGroup(Message):
    group_id: str = field(String)
    # null = all share partitions
    topics: Sequence[DescribeShareGroupOffsetsRequestTopic] | None = field(
        Array(DescribeShareGroupOffsetsRequestTopic), nullable=0
    )


class DescribeShareGroupOffsetsRequest(Message, api=DESCRIBE_SHARE_GROUP_OFFSETS):
    groups: Sequence[DescribeShareGroupOffsetsRequestGroup] = field(
        Array(DescribeShareGroupOffsetsRequestGroup)
    )


class DescribeShareGroupOffsetsResponsePartition(Message):
    partition_index: int = field(Int32)
    start_offset: int = field(Int64)  # -1 if nothing was fetched yet
    leader_epoch: int = field(Int32)
    lag: int = field(Int64, since=1, ignorable=True, default=-1)  # -1 unknown
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable=0, default=None)


class DescribeShareGroupOffsetsResponseTopic(Message):
    topic_name: str = field(String)
    topic_id: UUID = field(Uuid)
    partitions: Sequence[DescribeShareGroupOffsetsResponsePartition] = field(
        Array(DescribeShareGroupOffsetsResponsePartition)
    )


class DescribeShareGroupOffsetsResponseGroup(Message):
    group_id: str = field(String)
    topics: Sequence[DescribeShareGroupOffsetsResponseTopic] = field(
        Array(DescribeShareGroupOffsetsResponseTopic)
    )
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable=0, default=None)


class DescribeShareGroupOffsetsResponse(Message, api=DESCRIBE_SHARE_GROUP_OFFSETS):
    throttle_time_ms: int = field(Int32)
    groups: Sequence[DescribeShareGroupOffsetsResponseGroup] = field(
        Array(DescribeShareGroupOffsetsResponseGroup)
    )
