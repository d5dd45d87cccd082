"""A share group: members that share the partitions of the topics they subscribe to.

Members, the group epoch, and the states of the share partitions are durable; `replay` is the only
method that changes them. Assignments are not: they follow from the members and the topics. When
the coordinator moves, the new one computes them again, and accepts the epoch that a member says it
has: nobody has to join again, and as partitions are shared, nobody has to wait for anybody.

A member moves to the group epoch with its next heartbeat.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from typing import Literal
from uuid import UUID

from ottla.protocol.errors import ErrorCode

from ..consumer.group import count_subscribers
from ..consumer.partitions import NO_PARTITIONS, Partitions, TopicIdPartition
from ..errors import GroupError
from .records import (
    ShareGroupRecord,
    ShareMemberMetadata,
    ShareMemberRecord,
    ShareRecord,
    ShareStateRecord,
)
from .state import ShareState

#: The epoch of a member whose heartbeat has not been seen since the group was loaded.
UNKNOWN_EPOCH = -1
_MEMBER_BYTES = 1024
_TOPIC_NAME_BYTES = 128
_STATE_BYTES = 512
_BATCH_BYTES = 128


class ShareGroupState(Enum):
    """State of a share group; the values are Kafka's names, which are on the wire."""

    EMPTY = "Empty"
    """No members. Heartbeat: the first member that joins makes it Stable."""

    STABLE = "Stable"
    """There are members. Each gets its partitions with its next heartbeat."""

    DEAD = "Dead"
    """Deleted."""


class ShareMember:
    """One member. What it has is soft state."""

    __slots__ = ("assigned", "epoch", "id", "metadata", "previous_epoch")

    def __init__(self, member_id: str, metadata: ShareMemberMetadata) -> None:
        self.id = member_id
        self.metadata = metadata
        self.epoch = UNKNOWN_EPOCH
        self.previous_epoch = UNKNOWN_EPOCH
        #: The partitions that it was last told to have; None if that is not known.
        self.assigned: Partitions | None = None


class ShareGroup:
    """A group whose members share partitions."""

    type: Literal["share"] = "share"
    protocol_type = "share"

    def __init__(self, group_id: str) -> None:
        self.id = group_id
        self.epoch = 0
        #: Hash of the topics that the members subscribe to.
        self.metadata_hash = 0
        self.members: dict[str, ShareMember] = {}
        #: How many members subscribe to a topic.
        self.subscriber_counts: dict[str, int] = {}
        self.states: dict[TopicIdPartition, ShareState] = {}
        self.is_dead = False
        self._member_bytes = 0
        self._state_bytes = 0
        # Soft state.
        self.targets: Mapping[str, Partitions] = {}
        #: The group epoch that the targets are of.
        self.assignment_epoch = 0
        #: The version of the metadata that the group was last compared with.
        self.topics_version = -1
        #: When the last member left, by the time of day, if that was since the shard was loaded.
        self.empty_since_ms = 0
        #: How many states are being written.
        self.writing_count = 0

    def __repr__(self) -> str:
        return (
            f"<ShareGroup {self.id} {self.state.value}, epoch {self.epoch},"
            f" {len(self.members)} members>"
        )

    @property
    def state(self) -> ShareGroupState:
        """The state, which follows from the members."""
        if self.is_dead:
            return ShareGroupState.DEAD
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    @property
    def is_empty(self) -> bool:
        """Whether it has no members."""
        return not self.members

    @property
    def pending(self) -> Collection[str]:
        """Member ids that nobody joined with yet: clients choose their ids themselves."""
        return ()

    @property
    def has_records(self) -> bool:
        """Whether there is anything of the group in the log."""
        return self.epoch > 0

    @property
    def size_bytes(self) -> int:
        """The estimated memory of members and states."""
        return self._member_bytes + self._state_bytes

    # Durable state.

    def replay(self, record: ShareRecord) -> None:
        """Apply a record of this group, except its tombstone."""
        if isinstance(record, ShareStateRecord):
            self._state_bytes -= state_bytes(self.states.pop(record.partition, None))
            if record.state is not None:
                self.states[record.partition] = record.state
                self._state_bytes += state_bytes(record.state)
        elif isinstance(record, ShareMemberRecord):
            self._replay_member(record.member_id, record.metadata)
        elif record.value is not None:
            self.epoch, self.metadata_hash = record.value

    def _replay_member(self, member_id: str, metadata: ShareMemberMetadata | None) -> None:
        member = self.members.get(member_id)
        topics: tuple[str, ...] = ()
        if member is not None:
            self._member_bytes -= member_bytes(member.metadata)
            topics = member.metadata.topics
        count_subscribers(
            self.subscriber_counts, topics, () if metadata is None else metadata.topics
        )
        if metadata is None:
            self.members.pop(member_id, None)
            return
        self._member_bytes += member_bytes(metadata)
        if member is None:
            self.members[member_id] = ShareMember(member_id, metadata)
        else:
            member.metadata = metadata

    # Queries.

    def find(self, member_id: str) -> ShareMember:
        """Return a member. Raises GroupError."""
        member = self.members.get(member_id)
        if member is None:
            raise GroupError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"Member {member_id!r} is not a member of group {self.id!r}",
            )
        return member

    def target_of(self, member_id: str) -> Partitions:
        """Return the partitions that a member is to have."""
        return self.targets.get(member_id, NO_PARTITIONS)

    def subscribed_topics(self) -> set[str]:
        """Return the topics that members subscribe to."""
        return set(self.subscriber_counts)

    def topics_with(self, member_id: str, topics: Iterable[str]) -> set[str]:
        """Return the topics that members subscribe to, once a member subscribes to these."""
        member = self.members.get(member_id)
        counts = dict(self.subscriber_counts)
        count_subscribers(counts, () if member is None else member.metadata.topics, topics)
        return set(counts)

    def states_of(self, topic_ids: Collection[UUID]) -> list[TopicIdPartition]:
        """Return the share partitions of topics."""
        return [tp for tp in self.states if tp.topic_id in topic_ids]


def group_tombstones(group: ShareGroup) -> list[ShareRecord]:
    """Return the records that remove a group, with its members and states."""
    return [
        *(ShareStateRecord(group.id, tp, None) for tp in group.states),
        *(ShareMemberRecord(group.id, member_id, None) for member_id in group.members),
        ShareGroupRecord(group.id, None),
    ]


def member_bytes(metadata: ShareMemberMetadata | None) -> int:
    """Estimate the memory of a member."""
    if metadata is None:
        return 0
    return _MEMBER_BYTES + len(metadata.client_id) + _TOPIC_NAME_BYTES * len(metadata.topics)


def state_bytes(state: ShareState | None) -> int:
    """Estimate the memory of the state of a share partition."""
    return 0 if state is None else _STATE_BYTES + _BATCH_BYTES * len(state.batches)
