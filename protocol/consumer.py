"""What the members of a consumer group say to each other inside JoinGroup and SyncGroup.

The broker passes these bytes on unread. They are a version (int16) and a struct, never flexible; a
newer version only appends fields, so that a reader takes what it knows and leaves the rest.

Subscription version 1 adds the partitions that a member owns, 2 the generation in which it got
them, and 3 its rack. Assignment has only ever changed its number.
"""

from __future__ import annotations

from collections.abc import Sequence

from .schema import Array, Buffer, Bytes, Int32, Message, String, Versions, field

_VERSIONS = Versions(0, 3)


class TopicPartitions(Message):
    """Partitions of one topic."""

    topic: str = field(String)
    partitions: Sequence[int] = field(Array(Int32))


class Subscription(Message, versions=_VERSIONS):
    """What a member wants, and what it has: the metadata of a JoinGroup protocol."""

    topics: Sequence[str] = field(Array(String))
    user_data: Buffer | None = field(Bytes, nullable=0, default=None)
    owned_partitions: Sequence[TopicPartitions] = field(
        Array(TopicPartitions), since=1, ignorable=True
    )
    generation_id: int = field(Int32, since=2, ignorable=True, default=-1)
    rack_id: str | None = field(String, since=3, nullable=3, ignorable=True, default=None)


class Assignment(Message, versions=_VERSIONS):
    """What the leader gave a member: the assignment of SyncGroup."""

    assigned_partitions: Sequence[TopicPartitions] = field(Array(TopicPartitions))
    user_data: Buffer | None = field(Bytes, nullable=0, default=None)
