"""OffsetForLeaderEpoch (key 23): where a leader epoch ends.

A reader that knows can find out whether what it has read is still what the log has.

Version 2 adds fencing by the current leader epoch, and the throttle time.
Version 3 adds the replica id.
Version 4 is the first flexible version.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import OFFSET_FOR_LEADER_EPOCH
from ..schema import Array, Int16, Int32, Int64, Message, String, field


class OffsetForLeaderPartition(Message):
    partition: int = field(Int32)
    # leader epoch client believes; -1 = skip check
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
    leader_epoch: int = field(Int32, default=-1)  # largest epoch <= asked
    end_offset: int = field(Int64, default=-1)  # end offset of that epoch


class OffsetForLeaderTopicResult(Message):
    topic: str = field(String)
    partitions: Sequence[EpochEndOffset] = field(Array(EpochEndOffset))


class OffsetForLeaderEpochResponse(Message, api=OFFSET_FOR_LEADER_EPOCH):
    throttle_time_ms: int = field(Int32)
    topics: Sequence[OffsetForLeaderTopicResult] = field(Array(OffsetForLeaderTopicResult))
