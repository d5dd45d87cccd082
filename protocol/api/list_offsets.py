"""ListOffsets (key 2): look up offsets by timestamp, or the earliest or latest offset.

Version 1 returns one offset and its timestamp, instead of several offsets.
Version 2 adds IsolationLevel to the request, and ThrottleTimeMs to the response.
Version 4 adds CurrentLeaderEpoch to the request, and LeaderEpoch to the response.
Version 5 may return OFFSET_NOT_AVAILABLE.
Version 6 is the first flexible version.
Version 7 adds timestamp -3: the record with the largest timestamp.
Version 8 adds timestamp -4: the earliest offset on local disk.
Version 9 adds timestamp -5: the last offset in tiered storage.
Version 10 adds TimeoutMs, for lookups in tiered storage.
Version 11 adds timestamp -6: the earliest offset not yet in tiered storage.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import LIST_OFFSETS
from ..schema import Array, Int8, Int16, Int32, Int64, Message, String, field


class ListOffsetsPartition(Message):
    partition_index: int = field(Int32)
    # leader epoch known to the client, -1 = skip check
    current_leader_epoch: int = field(Int32, since=4, ignorable=True, default=-1)
    # -1 latest -2 earliest -3 max-ts -4 local -5 tiered -6 not yet tiered, else time
    timestamp: int = field(Int64)


class ListOffsetsTopic(Message):
    name: str = field(String)
    partitions: Sequence[ListOffsetsPartition] = field(Array(ListOffsetsPartition))


class ListOffsetsRequest(Message, api=LIST_OFFSETS):
    replica_id: int = field(Int32)  # -1 for consumers
    isolation_level: int = field(Int8, since=2)  # 0 read_uncommitted 1 read_committed
    topics: Sequence[ListOffsetsTopic] = field(Array(ListOffsetsTopic))
    timeout_ms: int = field(Int32, since=10, ignorable=True)  # of a lookup in tiered storage


class ListOffsetsPartitionResponse(Message):
    partition_index: int = field(Int32)
    error_code: int = field(Int16)
    timestamp: int = field(Int64, default=-1)  # timestamp of the record, -1 if none
    offset: int = field(Int64, default=-1)  # offset, -1 none
    leader_epoch: int = field(Int32, since=4, default=-1)  # leader epoch, -1 unknown


class ListOffsetsTopicResponse(Message):
    name: str = field(String)
    partitions: Sequence[ListOffsetsPartitionResponse] = field(Array(ListOffsetsPartitionResponse))


class ListOffsetsResponse(Message, api=LIST_OFFSETS):
    throttle_time_ms: int = field(Int32, since=2, ignorable=True)
    topics: Sequence[ListOffsetsTopicResponse] = field(Array(ListOffsetsTopicResponse))
