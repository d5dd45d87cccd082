"""OffsetCommit (key 8): commit offsets of a group.

Version 2 adds RetentionTimeMs.
Version 3 adds ThrottleTimeMs to the response.
Version 5 removes RetentionTimeMs.
Version 6 adds CommittedLeaderEpoch.
Version 7 adds GroupInstanceId.
Version 8 is the first flexible version.
Version 9 supports members of the consumer protocol (KIP-848).
Version 10 replaces the names of topics by TopicId.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from ..registry import OFFSET_COMMIT
from ..schema import Array, Int16, Int32, Int64, Message, String, Uuid, field

#: The last version that names topics; later ones have their ids.
LAST_VERSION_WITH_TOPIC_NAMES = 9


class OffsetCommitRequestPartition(Message):
    partition_index: int = field(Int32)
    committed_offset: int = field(Int64)  # next offset to consume (-1 = none on fetch)
    # leader epoch of last consumed record, -1 unknown
    committed_leader_epoch: int = field(Int32, since=6, ignorable=True, default=-1)
    committed_metadata: str | None = field(String, nullable=2)  # free-form client text


class OffsetCommitRequestTopic(Message):
    name: str = field(String, until=9, ignorable=True)
    topic_id: UUID = field(Uuid, since=10, ignorable=True)
    partitions: Sequence[OffsetCommitRequestPartition] = field(Array(OffsetCommitRequestPartition))


class OffsetCommitRequest(Message, api=OFFSET_COMMIT):
    group_id: str = field(String)
    # generation (classic) or member epoch (KIP-848); -1 = simple commit
    generation_id_or_member_epoch: int = field(Int32, default=-1)
    member_id: str = field(String)
    # null unless a static member
    group_instance_id: str | None = field(String, since=7, nullable=7, default=None)
    # custom retention, -1 = broker default
    retention_time_ms: int = field(Int64, until=4, ignorable=True, default=-1)
    topics: Sequence[OffsetCommitRequestTopic] = field(Array(OffsetCommitRequestTopic))


class OffsetCommitResponsePartition(Message):
    partition_index: int = field(Int32)
    error_code: int = field(Int16)


class OffsetCommitResponseTopic(Message):
    name: str = field(String, until=9, ignorable=True)
    topic_id: UUID = field(Uuid, since=10, ignorable=True)
    partitions: Sequence[OffsetCommitResponsePartition] = field(
        Array(OffsetCommitResponsePartition)
    )


class OffsetCommitResponse(Message, api=OFFSET_COMMIT):
    throttle_time_ms: int = field(Int32, since=3, ignorable=True)
    topics: Sequence[OffsetCommitResponseTopic] = field(Array(OffsetCommitResponseTopic))
