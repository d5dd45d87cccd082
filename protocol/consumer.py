"""Kafka's consumer protocol: the bytes inside JoinGroup and SyncGroup.

The broker forwards them unparsed. They are a version (int16) and a struct, never flexible. A newer
version only appends fields, so a reader decodes the fields it knows and ignores the remainder.

Subscription version 1 adds OwnedPartitions, version 2 adds GenerationId, version 3 adds RackId.
Assignment versions 1 to 3 are identical to version 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from .schema import Array, Buffer, Bytes, Int32, Message, String, Versions, field

_VERSIONS = Versions(0, 3)


class TopicPartitions(Message):
    """Partitions of one topic."""

    topic: str = field(String)
    partitions: Sequence[int] = field(Array(Int32))


class ConsumerProtocolSubscription(Message, versions=_VERSIONS):
    """What a member subscribes to and owns: the protocol metadata in JoinGroup."""

    topics: Sequence[str] = field(Array(String))
    user_data: Buffer | None = field(Bytes, nullable=0, default=None)
    owned_partitions: Sequence[TopicPartitions] = field(
        Array(TopicPartitions), since=1, ignorable=True
    )
    generation_id: int = field(Int32, since=2, ignorable=True, default=-1)
    rack_id: str | None = field(String, since=3, nullable=3, ignorable=True, default=None)


class ConsumerProtocolAssignment(Message, versions=_VERSIONS):
    """What the group leader assigned to a member: the assignment in SyncGroup."""

    assigned_partitions: Sequence[TopicPartitions] = field(Array(TopicPartitions))
    user_data: Buffer | None = field(Bytes, nullable=0, default=None)
