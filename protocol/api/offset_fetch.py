"""OffsetFetch (key 9): fetch the committed offsets of groups.

Version 2 makes Topics nullable (null is all topics), and adds a top-level ErrorCode.
Version 3 adds ThrottleTimeMs to the response.
Version 5 adds CommittedLeaderEpoch to the response.
Version 6 is the first flexible version.
Version 7 adds RequireStable.
Version 8 replaces GroupId and Topics by Groups, for several groups in one request.
Version 9 adds MemberId and MemberEpoch (KIP-848).
Version 10 replaces the names of topics by TopicId.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from ..registry import OFFSET_FETCH
from ..schema import Array, Bool, Int16, Int32, Int64, Message, String, Uuid, field

#: The last version that names topics; later ones have their ids.
LAST_VERSION_WITH_TOPIC_NAMES = 9


class OffsetFetchRequestTopic(Message):
    name: str = field(String)
    partition_indexes: Sequence[int] = field(Array(Int32))


class OffsetFetchRequestTopics(Message):
    name: str = field(String, until=9, ignorable=True)
    topic_id: UUID = field(Uuid, since=10, ignorable=True)
    partition_indexes: Sequence[int] = field(Array(Int32))


class OffsetFetchRequestGroup(Message):
    group_id: str = field(String)
    member_id: str | None = field(String, since=9, nullable=9, ignorable=True, default=None)
    member_epoch: int = field(Int32, since=9, ignorable=True, default=-1)
    # null = everything committed
    topics: Sequence[OffsetFetchRequestTopics] | None = field(
        Array(OffsetFetchRequestTopics), nullable=8
    )


class OffsetFetchRequest(Message, api=OFFSET_FETCH):
    group_id: str = field(String, until=7)
    # null = everything committed
    topics: Sequence[OffsetFetchRequestTopic] | None = field(
        Array(OffsetFetchRequestTopic), until=7, nullable=2
    )
    groups: Sequence[OffsetFetchRequestGroup] = field(Array(OffsetFetchRequestGroup), since=8)
    # fail on offsets with pending transactional commits
    require_stable: bool = field(Bool, since=7)


class OffsetFetchResponsePartition(Message):
    partition_index: int = field(Int32)
    committed_offset: int = field(Int64)  # -1 = no commit
    # leader epoch of last consumed record, -1 unknown
    committed_leader_epoch: int = field(Int32, since=5, ignorable=True, default=-1)
    metadata: str | None = field(String, nullable=1)
    error_code: int = field(Int16)


class OffsetFetchResponseTopic(Message):
    name: str = field(String)
    partitions: Sequence[OffsetFetchResponsePartition] = field(Array(OffsetFetchResponsePartition))


class OffsetFetchResponsePartitions(Message):
    partition_index: int = field(Int32)
    committed_offset: int = field(Int64)  # -1 = no commit
    # leader epoch of last consumed record, -1 unknown
    committed_leader_epoch: int = field(Int32, default=-1)
    metadata: str | None = field(String, nullable=8)
    error_code: int = field(Int16)


class OffsetFetchResponseTopics(Message):
    name: str = field(String, until=9, ignorable=True)
    topic_id: UUID = field(Uuid, since=10, ignorable=True)
    partitions: Sequence[OffsetFetchResponsePartitions] = field(
        Array(OffsetFetchResponsePartitions)
    )


class OffsetFetchResponseGroup(Message):
    group_id: str = field(String)
    topics: Sequence[OffsetFetchResponseTopics] = field(Array(OffsetFetchResponseTopics))
    error_code: int = field(Int16)


class OffsetFetchResponse(Message, api=OFFSET_FETCH):
    throttle_time_ms: int = field(Int32, since=3, ignorable=True)
    topics: Sequence[OffsetFetchResponseTopic] = field(Array(OffsetFetchResponseTopic), until=7)
    error_code: int = field(Int16, since=2, until=7, ignorable=True)
    groups: Sequence[OffsetFetchResponseGroup] = field(Array(OffsetFetchResponseGroup), since=8)
