"""The durable state of a consumer group: epochs, members, target and current assignments.

The *group epoch* rises when a member joins, leaves or changes its subscription, or when a
subscribed topic changes. The *assignment epoch* is the group epoch that the target assignment was
computed for. A *member epoch* is the assignment epoch that a member has reached; it fences the
requests of a member that was removed, or of an earlier process.

`replay` is the only method that changes this state. An event works on a `Draft`: an overlay of the
group, on which each new record is replayed at once. When the records are durable, they are replayed
on the group itself. Events of a group take turns (see `turns`), so that the two never differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, MutableMapping
from copy import copy
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

from ottla.protocol.errors import ErrorCode

from ..errors import GroupError
from ..metadata_image import MetadataImage, TopicPartition
from ..overlay import Overlay
from ..records import CommittedOffset
from .assignors import ASSIGNORS
from .member import (
    PARTITION_BYTES,
    ConsumerMember,
    CurrentAssignment,
    MemberMetadata,
    MemberState,
)
from .partitions import NO_PARTITIONS, Partitions, TopicIdPartition, by_topic, partitions_of
from .records import (
    ConsumerGroupCurrentMemberValue,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegexValue,
    ConsumerGroupTargetMemberValue,
    ConsumerGroupTargetValue,
    ConsumerRecord,
    RecordType,
    TargetTopicPartitions,
    member_tombstones,
    tombstone,
)
from .states import ConsumerGroupState

#: The first version of OffsetCommit with member epochs.
_FIRST_WITH_MEMBER_EPOCH = 9
#: Estimated memory of a topic that a regular expression matches: an entry of a set.
_MATCH_BYTES = 50


class ResolvedRegex(NamedTuple):
    """The topics that a regular expression matches, as of a version of the metadata."""

    topics: frozenset[str]
    version: int
    timestamp_ms: int

    @property
    def size_bytes(self) -> int:
        """The estimated memory."""
        return _MATCH_BYTES * len(self.topics)


class Rebalance(NamedTuple):
    """Why and since when a group is not stable; for the log."""

    reason: str
    started_ms: int


class ConsumerGroup:
    """A group whose partitions the coordinator assigns."""

    type: Literal["consumer"] = "consumer"
    protocol_type = "consumer"

    def __init__(self, group_id: str) -> None:
        self.id = group_id
        self.epoch = 0
        #: Hash of the topics that the members subscribe to.
        self.metadata_hash = 0
        self.assignment_epoch = 0
        #: When the target was computed, by the time of day.
        self.assigned_at_ms = 0
        self.members: MutableMapping[str, ConsumerMember] = {}
        #: How many members subscribe to a topic by its name.
        self.subscriber_counts: MutableMapping[str, int] = {}
        self.targets: MutableMapping[str, Partitions] = {}
        self.regexes: MutableMapping[str, ResolvedRegex] = {}
        #: Member ids by instance id.
        self.static_members: MutableMapping[str, str] = {}
        #: Which member has each partition, or has yet to revoke it.
        self.holders: MutableMapping[TopicIdPartition, str] = {}
        #: Members that have not reached the target.
        self.unreconciled: MutableMapping[str, None] = {}
        self.is_dead = False
        # What the members' metadata takes, and what regular expressions match: asked for after
        # each event.
        self._metadata_bytes = 0
        self._regex_bytes = 0
        # Soft state.
        #: The version of the metadata that the group was last compared with.
        self.topics_version = -1
        #: When the last member left, by the time of day, if that was since the shard was loaded.
        self.empty_since_ms = 0
        self.rebalance: Rebalance | None = None
        #: Whether a target is being computed in a thread.
        self.is_computing = False
        #: Whether regular expressions are being resolved in a thread.
        self.is_resolving = False
        #: The version of the metadata, and the time, as of which they were last resolved.
        self.regexes_version = -1
        self.regexes_resolved_ms = 0

    def __repr__(self) -> str:
        return (
            f"<ConsumerGroup {self.id} {self.state.value}, epoch {self.epoch},"
            f" {len(self.members)} members>"
        )

    @property
    def state(self) -> ConsumerGroupState:
        """The state, which follows from the members and the epochs."""
        if self.is_dead:
            return ConsumerGroupState.DEAD
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        return ConsumerGroupState.RECONCILING if self.unreconciled else ConsumerGroupState.STABLE

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
        return self.epoch > 0 or bool(self.members)

    @property
    def size_bytes(self) -> int:
        """The estimated memory of the members, their partitions and regular expressions."""
        return self._metadata_bytes + self._regex_bytes + PARTITION_BYTES * len(self.holders)

    def overlay(self) -> ConsumerGroup:
        """Return what looks like a copy, and can be changed, as long as the group does not."""
        overlay = copy(self)
        for name in (
            "members",
            "subscriber_counts",
            "targets",
            "regexes",
            "static_members",
            "holders",
            "unreconciled",
        ):
            setattr(overlay, name, Overlay(getattr(self, name)))
        return overlay

    # Durable state.

    def replay(self, record: ConsumerRecord) -> None:
        """Apply a record of this group."""
        value: Any = record.value
        if record.type is RecordType.GROUP and value is not None:
            self.epoch, self.metadata_hash = value.epoch, value.metadata_hash
        elif record.type is RecordType.TARGET and value is not None:
            self.assignment_epoch = value.assignment_epoch
            self.assigned_at_ms = value.assignment_timestamp
            self.unreconciled = {
                member.id: None
                for member in self.members.values()
                if not self._is_reconciled(member)
            }
        elif record.type is RecordType.MEMBER:
            self._replay_member(record.name, value)
        elif record.type is RecordType.TARGET_MEMBER:
            self._replay_target(record.name, value)
        elif record.type is RecordType.CURRENT_MEMBER:
            self._replay_current(record.name, value)
        elif record.type is RecordType.REGEX:
            self._replay_regex(record.name, value)

    def _replay_member(
        self, member_id: str, value: ConsumerGroupMemberMetadataValue | None
    ) -> None:
        member = self.members.get(member_id)
        topics: tuple[str, ...] = ()
        if member is not None:
            self._metadata_bytes -= member.metadata.size_bytes
            topics = member.metadata.topics
        count_subscribers(
            self.subscriber_counts, topics, () if value is None else value.subscribed_topic_names
        )
        instance_id = None if member is None else member.instance_id
        if instance_id is not None and self.static_members.get(instance_id) == member_id:
            del self.static_members[instance_id]
        if value is None:
            self.members.pop(member_id, None)
            self.unreconciled.pop(member_id, None)
            return
        metadata = MemberMetadata.from_record(value)
        self._metadata_bytes += metadata.size_bytes
        member = (
            ConsumerMember(member_id, metadata)
            if member is None
            else member.with_metadata(metadata)
        )
        self.members[member_id] = member
        if metadata.instance_id is not None:
            self.static_members[metadata.instance_id] = member_id
        if not self._is_reconciled(member):
            self.unreconciled[member_id] = None

    def _replay_target(self, member_id: str, value: ConsumerGroupTargetMemberValue | None) -> None:
        if value is None:
            self.targets.pop(member_id, None)
        else:
            self.targets[member_id] = partitions_of(value.topic_partitions)

    def _replay_current(
        self, member_id: str, value: ConsumerGroupCurrentMemberValue | None
    ) -> None:
        member = self.members.get(member_id)
        held = NO_PARTITIONS if member is None else member.current.held
        current = CurrentAssignment() if value is None else CurrentAssignment.from_record(value)
        if current.held != held:
            for tp in held:
                if self.holders.get(tp) == member_id:
                    del self.holders[tp]
            for tp in current.held:
                self.holders[tp] = member_id
        if value is None:
            if member is not None:
                self.members[member_id] = member.with_current(current)
            return
        if member is None:
            # While the log is read: its other record follows.
            member = ConsumerMember(member_id, _UNKNOWN)
            self._metadata_bytes += _UNKNOWN.size_bytes
        member = self.members[member_id] = member.with_current(current)
        if self._is_reconciled(member):
            self.unreconciled.pop(member_id, None)
        else:
            self.unreconciled[member_id] = None

    def _replay_regex(self, regex: str, value: ConsumerGroupRegexValue | None) -> None:
        before = self.regexes.pop(regex, None)
        if before is not None:
            self._regex_bytes -= before.size_bytes
        if value is not None:
            resolved = ResolvedRegex(frozenset(value.topics), value.version, value.timestamp)
            self.regexes[regex] = resolved
            self._regex_bytes += resolved.size_bytes

    def drop_incomplete_members(self) -> None:
        """Drop members of which the log has only a part; called when it has been read."""
        for member in list(self.members.values()):
            if member.metadata is _UNKNOWN:
                self._replay_current(member.id, None)
                self._replay_member(member.id, None)

    def _is_reconciled(self, member: ConsumerMember) -> bool:
        current = member.current
        return current.state is MemberState.STABLE and current.epoch == self.assignment_epoch

    # Queries.

    def find(self, member_id: str, instance_id: str | None = None) -> ConsumerMember:
        """Return a member. Raises GroupError: UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID."""
        if instance_id is not None:
            current_id = self.static_members.get(instance_id)
            if current_id is None:
                raise GroupError(
                    ErrorCode.UNKNOWN_MEMBER_ID, f"No member has the instance id {instance_id!r}"
                )
            if current_id != member_id:
                raise GroupError(
                    ErrorCode.FENCED_INSTANCE_ID,
                    f"Instance id {instance_id!r} belongs to another member",
                )
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
        topics = set(self.subscriber_counts)
        for regex in {member.metadata.regex for member in self.members.values()}:
            if regex is not None and regex in self.regexes:
                topics |= self.regexes[regex].topics
        return topics

    def has_equal_subscriptions(self) -> bool:
        """Whether all members subscribe to the same topics."""
        count = len(self.members)
        return all(one == count for one in self.subscriber_counts.values()) and (
            len({member.metadata.regex for member in self.members.values()}) <= 1
        )

    def hash_topics(self, image: MetadataImage) -> int:
        """Return a hash of the subscribed topics that exist: name, id and partition count."""
        return hash_topics(self.subscribed_topics(), image)

    def preferred_assignor(self, assignors: Iterable[str]) -> str:
        """Return the assignor that most members ask for; the first one if they do not agree."""
        available = list(assignors)
        votes = Counter(
            member.metadata.assignor
            for member in self.members.values()
            if member.metadata.assignor in available
        ).most_common(2)
        if not votes or (len(votes) > 1 and votes[0][1] == votes[1][1]):
            return available[0] if available else next(iter(ASSIGNORS))
        return votes[0][0]

    def has_only_classic_members(self) -> bool:
        """Whether all members use the classic protocol; there is at least one."""
        return bool(self.members) and all(one.is_classic for one in self.members.values())

    # Offsets.

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        epoch: int,
        version: int,
        offsets: Iterable[tuple[TopicPartition, CommittedOffset]],
    ) -> dict[TopicPartition, ErrorCode]:
        """Check an OffsetCommit; return the partitions whose epoch is stale. Raises GroupError.

        A member may have got a new epoch since it sent the commit. Its commit counts for the
        partitions that it has had since the epoch it names.
        """
        if epoch < 0 and not self.members:
            return {}  # A consumer that assigns itself partitions, without being a member.
        member = self._find_committer(member_id, instance_id)
        current = member.current
        if member.is_classic:
            if epoch != current.epoch:
                raise GroupError(ErrorCode.ILLEGAL_GENERATION)
            return {}
        if version < _FIRST_WITH_MEMBER_EPOCH:
            raise GroupError(ErrorCode.UNSUPPORTED_VERSION)
        if epoch > current.epoch or epoch < 0:
            raise GroupError(ErrorCode.STALE_MEMBER_EPOCH)
        if epoch == current.epoch:
            return {}
        held = {**current.pending_revocation, **current.assigned}
        return {
            tp: ErrorCode.STALE_MEMBER_EPOCH
            for tp, committed in offsets
            if held.get(TopicIdPartition(committed.topic_id, tp.partition), epoch + 1) > epoch
        }

    def check_transactional_commit(
        self, member_id: str, instance_id: str | None, epoch: int
    ) -> None:
        """Check a TxnOffsetCommit. Raises GroupError."""
        if epoch < 0 and (not self.members or (not member_id and instance_id is None)):
            return
        if epoch != self._find_committer(member_id, instance_id).current.epoch:
            raise GroupError(ErrorCode.ILLEGAL_GENERATION)

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """Check an OffsetFetch. Raises GroupError."""
        if member_id is None and epoch < 0:
            return
        member = self.find(member_id or "")
        if epoch != member.current.epoch:
            raise GroupError(
                ErrorCode.ILLEGAL_GENERATION if member.is_classic else ErrorCode.STALE_MEMBER_EPOCH
            )

    def _find_committer(self, member_id: str, instance_id: str | None) -> ConsumerMember:
        return self.find(member_id, instance_id if instance_id in self.static_members else None)


class Draft:
    """What one event changes in a group: `group` is as it will be, `records` make it so."""

    def __init__(self, group: ConsumerGroup) -> None:
        self.before = group
        self.group = group
        self.records: list[ConsumerRecord] = []

    def add(self, *records: ConsumerRecord) -> None:
        """Add records."""
        if not self.records:
            self.group = self.before.overlay()
        for record in records:
            self.records.append(record)
            self.group.replay(record)

    def bump_epoch(self, metadata_hash: int) -> None:
        """Start a rebalance."""
        self.set_epoch(self.group.epoch + 1, metadata_hash)

    def set_epoch(self, epoch: int, metadata_hash: int) -> None:
        """Set the group epoch."""
        value = ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
        self.add(self._record(RecordType.GROUP, "", value))

    def set_metadata(self, member_id: str, metadata: MemberMetadata) -> None:
        """Add a member, or change what it subscribes to."""
        self.add(self._record(RecordType.MEMBER, member_id, metadata.to_record()))

    def set_current(self, member_id: str, current: CurrentAssignment) -> None:
        """Change the partitions that a member has."""
        self.add(self._record(RecordType.CURRENT_MEMBER, member_id, current.to_record()))

    def set_target(self, member_id: str, partitions: Partitions) -> None:
        """Change the partitions that a member is to have."""
        value = ConsumerGroupTargetMemberValue(
            topic_partitions=[
                TargetTopicPartitions(topic_id=topic_id, partitions=indexes)
                for topic_id, indexes in by_topic(partitions).items()
            ]
        )
        self.add(self._record(RecordType.TARGET_MEMBER, member_id, value))

    def set_targets(self, targets: Mapping[str, Partitions], epoch: int, time_ms: int) -> None:
        """Replace the target assignment by that of a group epoch.

        Members that are not among them keep their targets.
        """
        for member_id, partitions in targets.items():
            if self.group.targets.get(member_id) != partitions:
                self.set_target(member_id, partitions)
        value = ConsumerGroupTargetValue(assignment_epoch=epoch, assignment_timestamp=time_ms)
        self.add(self._record(RecordType.TARGET, "", value))

    def set_regex(self, regex: str, resolved: ResolvedRegex) -> None:
        """Store the topics that a regular expression matches."""
        value = ConsumerGroupRegexValue(
            topics=sorted(resolved.topics),
            version=resolved.version,
            timestamp=resolved.timestamp_ms,
        )
        self.add(self._record(RecordType.REGEX, regex, value))

    def remove_member(self, member_id: str) -> None:
        """Remove a member and its assignments."""
        self.add(*member_tombstones(self.group.id, member_id))

    def remove_unused_regexes(self) -> None:
        """Remove the regular expressions that no member subscribes to."""
        if not self.group.regexes:
            return
        used = {member.metadata.regex for member in self.group.members.values()}
        for regex in list(self.group.regexes):
            if regex not in used:
                self.add(tombstone(self.group.id, RecordType.REGEX, regex))

    def _record(self, kind: RecordType, name: str, value: Any) -> ConsumerRecord:
        return ConsumerRecord(self.group.id, kind, name, value)


def count_subscribers(
    counts: MutableMapping[str, int], before: Iterable[str], after: Iterable[str]
) -> None:
    """Update how many members subscribe to each topic, when one changes its subscription."""
    before, after = set(before), set(after)
    for topic in after - before:
        counts[topic] = counts.get(topic, 0) + 1
    for topic in before - after:
        counts[topic] -= 1
        if not counts[topic]:
            del counts[topic]


def hash_topics(names: Iterable[str], image: MetadataImage) -> int:
    """Return a hash of the topics that exist: name, id and partition count."""
    digest = blake2b(digest_size=8)
    for name in sorted(names):
        topic = image.topics.get(name)
        if topic is not None:
            digest.update(f"{name}:{topic.id}:{len(topic.replicas)};".encode())
    return int.from_bytes(digest.digest(), "big", signed=True)


def group_tombstones(group: ConsumerGroup) -> list[ConsumerRecord]:
    """Return the records that remove a group with its members."""
    records: list[ConsumerRecord] = []
    for member_id in group.members:
        records += member_tombstones(group.id, member_id)
    records += [tombstone(group.id, RecordType.REGEX, regex) for regex in group.regexes]
    return [
        *records,
        tombstone(group.id, RecordType.TARGET),
        tombstone(group.id, RecordType.SUBSCRIPTION_METADATA),
        tombstone(group.id, RecordType.GROUP),
    ]


_UNKNOWN = MemberMetadata(None, None, "", "", (), None, -1, None)
