"""OffsetForLeaderEpoch (key 23): find the end offset of a leader epoch.

A consumer detects with it whether the log was truncated below its position.

Version 2 adds CurrentLeaderEpoch to the request, and ThrottleTimeMs to the response.
Version 3 adds ReplicaId.
Version 4 is the first flexible version.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import OFFSET_FOR_LEADER_EPOCH
from ..schema import Array, Int16, Int32, Int64, Message, String, field


class OffsetForLeaderPartition(Message):
    partition: int = field(Int32)
    # leader epoch known to the client, -1 = skip check
    current_leader_epoch: int = field(Int32, default=-1)
    leader_epoch: int = field(Int32)  # epoch to look up


class OffsetForLeaderTopic(Message):
    topic: str = field(String)
    partitions: Sequence[OffsetForLeaderPartition] = field(Array(OffsetForLeaderPartition))


class OffsetForLeaderEpochRequest(Message, api=OFFSET_FOR_LEADER_EPOCH):
    replica_id: int = field(Int32, since=3, ignorable=True, default=-2)  # -1 consumer, -2 debug
    topics: Sequence[OffsetForLeaderTopic] = field(Array(OffsetForLeaderTopic))


class EpochEndOffset(Message):
    error_code: int = field(Int16)
    partition: int = field(Int32)
    leader_epoch: int = field(Int32, default=-1)  # largest epoch <= the requested one
    end_offset: int = field(Int64, default=-1)  # end offset of that epoch


class OffsetForLeaderTopicResult(Message):
    topic: str = field(String)
    partitions: Sequence[EpochEndOffset] = field(Array(EpochEndOffset))


class OffsetForLeaderEpochResponse(Message, api=OFFSET_FOR_LEADER_EPOCH):
    throttle_time_ms: int = field(Int32)
    topics: Sequence[OffsetForLeaderTopicResult] = field(Array(OffsetForLeaderTopicResult))
