"""The events of the share groups of a shard: heartbeats, timers, and the states of partitions.

A heartbeat with epoch 0 joins, one with -1 leaves; another keeps the session alive, and may change
the subscription. A member that joins, leaves or subscribes to something else, and a change of a
subscribed topic, raise the group epoch; then the targets of all members are computed anew.

The leader of a partition reads its state once, and then writes each change before it answers the
members that made it: see `state` for how one leader at a time does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ottla.protocol.api.consumer_group_heartbeat import Assignment, TopicPartitions
from ottla.protocol.api.share_group_heartbeat import ShareGroupHeartbeatResponse
from ottla.protocol.errors import ErrorCode

from ..config import ShareGroupConfig
from ..consumer.assignors import MemberSubscription
from ..consumer.group import hash_topics
from ..consumer.partitions import Partitions, TopicIdPartition, by_topic
from ..deadlines import Now
from ..effects import Append, Effect, LogMessage, Reply, append_error
from ..errors import GroupError
from ..group_timers import Timer
from ..turns import Turns
from .assignor import assign_simple
from .group import UNKNOWN_EPOCH, ShareGroup, ShareMember, member_bytes, state_bytes
from .records import (
    ShareEpoch,
    ShareGroupRecord,
    ShareMemberMetadata,
    ShareMemberRecord,
    ShareRecord,
    ShareStateRecord,
)
from .state import ShareState, StateBatch

if TYPE_CHECKING:
    from uuid import UUID

    from ..group_shard import GroupShard

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
_MAX_MEMBER_ID_LENGTH = 36
#: The work of the assignor above which it runs in a thread, in partitions that it looks at.
_MAX_WORK = 4_000
#: The result of each partition of a request.
ShareErrors = dict[TopicIdPartition, ErrorCode]


@dataclass(frozen=True, slots=True)
class ShareHeartbeat:
    """A ShareGroupHeartbeat request, and what the broker knows of its sender."""

    group_id: str
    member_id: str
    epoch: int
    client_id: str = ""
    client_host: str = ""
    #: None, here and below: as before.
    rack_id: str | None = None
    topics: tuple[str, ...] | None = None


class ShareGroups:
    """The share groups of a shard. What is common to all groups is the shard's."""

    def __init__(self, shard: GroupShard) -> None:
        self.shard = shard
        self.turns = shard.turns
        # One write or read of a share partition at a time.
        self._state_turns = Turns(lambda _key: None)

    def config_of(self, group_id: str) -> ShareGroupConfig:
        """Return the config of a group."""
        overrides = self.shard.image().group_configs.get(group_id, {})
        return self.shard.config.share.with_overrides(overrides)

    def refuse_waiting(self, code: ErrorCode) -> list[Effect]:
        """Answer all requests that wait for their turn with an error."""
        return self._state_turns.refuse_deferred(code)

    # Heartbeats.

    def heartbeat(self, beat: ShareHeartbeat, token: Any, now: Now) -> list[Effect]:
        """Handle ShareGroupHeartbeat."""

        def refuse(code: ErrorCode) -> list[Effect]:
            return [Reply(token, share_heartbeat_error(code))]

        def run() -> list[Effect]:
            try:
                return self._heartbeat(beat, token, now)
            except GroupError as error:
                return [Reply(token, share_heartbeat_error(error.code, str(error)))]

        return self.turns.take(beat.group_id, run, refuse)

    def _heartbeat(self, beat: ShareHeartbeat, token: Any, now: Now) -> list[Effect]:
        _check(beat)
        group = self.shard.groups.get(beat.group_id)
        if group is not None and group.type != "share":
            raise _not_found(beat.group_id)
        if group is None:
            if beat.epoch != JOIN_EPOCH:
                raise _not_found(beat.group_id)
            self.shard.check_new_group(beat.group_id)
            group = ShareGroup(beat.group_id)  # Added when its first record is replayed.
        if beat.epoch == LEAVE_EPOCH:
            return self._leave(group, beat, token, now)
        member = self._find(group, beat)
        if member is None:
            self.shard.check_new_group(beat.group_id)
        before = None if member is None else member.metadata
        metadata = _metadata_of(beat, before)
        growth_bytes = member_bytes(metadata) - member_bytes(before)
        if growth_bytes > 0 and not self.shard.has_memory_for_member(growth_bytes):
            raise GroupError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        records: list[ShareRecord] = []
        if metadata != before:
            records.append(ShareMemberRecord(group.id, beat.member_id, metadata))
        reason = self._reason(group, beat, before, metadata)
        if reason:
            topics = group.topics_with(beat.member_id, metadata.topics)
            metadata_hash = hash_topics(topics, self.shard.image())
            records.append(ShareGroupRecord(group.id, ShareEpoch(group.epoch + 1, metadata_hash)))
        version = self.shard.image().topics_version

        def then(code: ErrorCode) -> list[Effect]:
            if code is not ErrorCode.NONE:
                return [Reply(token, share_heartbeat_error(append_error(code)))]
            current = self.shard.groups[beat.group_id]
            assert current.type == "share"
            current.topics_version = version
            self.shard.resize(current)
            effects: list[Effect] = []
            if reason:
                effects.append(_rebalanced(current, reason))
            return effects + self._with_targets(
                current, lambda: self._answer(current, beat, token, now)
            )

        if not records:
            return then(ErrorCode.NONE)
        return self.turns.append(group.id, records, then)

    def _find(self, group: ShareGroup, beat: ShareHeartbeat) -> ShareMember | None:
        """Return the member; None if it joins. Raises GroupError."""
        if beat.epoch == JOIN_EPOCH:
            max_size = self.shard.config.share.max_size
            if beat.member_id not in group.members and len(group.members) >= max_size:
                raise GroupError(
                    ErrorCode.GROUP_MAX_SIZE_REACHED,
                    f"Group {group.id!r} has {max_size} members, as many as it may have",
                )
            return group.members.get(beat.member_id)
        member = group.find(beat.member_id)
        known = (member.epoch, member.previous_epoch)
        if member.epoch == UNKNOWN_EPOCH:
            is_current = beat.epoch <= group.epoch
        else:
            is_current = beat.epoch in known
        if not is_current:
            raise GroupError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                f"The member epoch {beat.epoch} is not the epoch {member.epoch} that the"
                " coordinator knows",
            )
        return member

    def _reason(
        self,
        group: ShareGroup,
        beat: ShareHeartbeat,
        before: ShareMemberMetadata | None,
        metadata: ShareMemberMetadata,
    ) -> str:
        """Return why a heartbeat starts a rebalance; "" if it does not."""
        if before is None:
            return f"member {beat.member_id} joined"
        if before.topics != metadata.topics:
            return f"member {beat.member_id} changed its subscription"
        image = self.shard.image()
        if group.topics_version != image.topics_version and (
            hash_topics(group.subscribed_topics(), image) != group.metadata_hash
        ):
            return "a subscribed topic changed"
        return ""

    def _answer(
        self, group: ShareGroup, beat: ShareHeartbeat, token: Any, now: Now
    ) -> list[Effect]:
        member = group.members[beat.member_id]
        target = group.target_of(member.id)
        # A member that is behind has not got the last response.
        is_told = member.assigned != target or beat.topics is not None or beat.epoch != member.epoch
        if member.epoch != group.epoch:
            # After a load, the epoch that the member says it has is taken for the one before.
            known = beat.epoch if member.epoch == UNKNOWN_EPOCH else member.epoch
            member.epoch, member.previous_epoch = group.epoch, known
        member.assigned = target
        self._start_session(group, member.id, now)
        response = ShareGroupHeartbeatResponse(
            member_id=member.id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=self.config_of(group.id).heartbeat_interval_ms,
            assignment=_assignment(target) if is_told else None,
        )
        return [Reply(token, response)]

    def _with_targets(self, group: ShareGroup, then: Callable[[], list[Effect]]) -> list[Effect]:
        """Go on when the targets are those of the group epoch."""
        if group.assignment_epoch == group.epoch:
            return then()
        topics = self.shard.image().topics
        existing = [topics[name] for name in group.subscriber_counts if name in topics]
        ids = {topic.name: topic.id for topic in existing}
        counts = {
            topic.id: len(topic.replicas)
            for topic in sorted(existing, key=lambda topic: topic.id.int)
        }
        members = [
            (member.id, member.metadata.topics, member.assigned or group.target_of(member.id))
            for member in group.members.values()
        ]
        epoch = group.epoch

        def assign() -> dict[str, Partitions]:
            known = {
                names: frozenset(ids[name] for name in names if name in ids)
                for names in {names for _id, names, _owned in members}
            }
            return assign_simple(
                {name: MemberSubscription(known[names], owned) for name, names, owned in members},
                counts,
            )

        def done(targets: Mapping[str, Partitions]) -> list[Effect]:
            group.targets, group.assignment_epoch = targets, epoch
            return then()

        are_equal = all(count == len(members) for count in group.subscriber_counts.values())
        work = sum(counts.values()) * (1 if are_equal else len(members)) + len(members)
        if work <= _MAX_WORK:
            return done(assign())
        return self.turns.compute(group.id, assign, done)

    # Leaving.

    def _leave(self, group: ShareGroup, beat: ShareHeartbeat, token: Any, now: Now) -> list[Effect]:
        group.find(beat.member_id)
        response = ShareGroupHeartbeatResponse(member_id=beat.member_id, member_epoch=beat.epoch)

        def then(code: ErrorCode) -> list[Effect]:
            if code is not ErrorCode.NONE:
                return [Reply(token, share_heartbeat_error(append_error(code)))]
            return [Reply(token, response)]

        return self._remove(group, beat.member_id, f"member {beat.member_id} left", now, then)

    def _remove(
        self,
        group: ShareGroup,
        member_id: str,
        reason: str,
        now: Now,
        then: Callable[[ErrorCode], list[Effect]],
    ) -> list[Effect]:
        metadata_hash = hash_topics(group.topics_with(member_id, ()), self.shard.image())
        records = [
            ShareMemberRecord(group.id, member_id, None),
            ShareGroupRecord(group.id, ShareEpoch(group.epoch + 1, metadata_hash)),
        ]

        def complete(code: ErrorCode) -> list[Effect]:
            effects = then(code)
            if code is not ErrorCode.NONE:
                self._start_session(group, member_id, now)
                return effects
            self.shard.deadlines.cancel(Timer(group.id, "session", member_id))
            if not group.members:
                group.empty_since_ms = now.time_ms
            self.shard.resize(group)
            return [*effects, _rebalanced(group, reason)]

        return self.turns.append(group.id, records, complete)

    # Timers.

    def activate(self, group: ShareGroup, now: Now) -> None:
        """Start the sessions of a group that was loaded."""
        for member_id in group.members:
            self._start_session(group, member_id, now)

    def expire(self, group: ShareGroup, timer: Timer, now: Now) -> list[Effect]:
        """Handle the end of a member's session."""

        def run() -> list[Effect]:
            is_current = self.shard.groups.get(group.id) is group
            if not is_current or timer in self.shard.deadlines:
                return []  # The member was heard of while this waited for its turn.
            if timer.member_id not in group.members:
                return []
            reason = f"member {timer.member_id} had no heartbeat within the session timeout"
            return self._remove(group, timer.member_id, reason, now, lambda _code: [])

        return self.turns.take(group.id, run, lambda _code: [])

    def _start_session(self, group: ShareGroup, member_id: str, now: Now) -> None:
        due_ms = now.tick_ms + self.config_of(group.id).session_timeout_ms
        self.shard.deadlines.postpone(Timer(group.id, "session", member_id), due_ms)

    # The states of share partitions.

    def read_state(
        self,
        group_id: str,
        tp: TopicIdPartition,
        leader_epoch: int,
        reply: Callable[[ErrorCode, ShareState | None], Reply],
        now: Now,
    ) -> list[Effect]:
        """Make the leader of a partition the owner of its state, and return that."""

        def run() -> list[Effect]:
            group = self.shard.groups.get(group_id)
            if group is None or group.type != "share" or not group.has_records:
                return [reply(ErrorCode.GROUP_ID_NOT_FOUND, None)]
            before = group.states.get(tp)
            if before is None:
                # Above the epochs of a state that was deleted.
                before = ShareState(now.time_ms // 1000, leader_epoch, created_ms=now.time_ms)
                if not self.shard.has_memory_for_member(state_bytes(before)):
                    return [reply(ErrorCode.COORDINATOR_NOT_AVAILABLE, None)]
            if leader_epoch < before.leader_epoch:
                return [reply(ErrorCode.FENCED_LEADER_EPOCH, None)]
            state = before._replace(
                state_epoch=before.state_epoch + 1,
                leader_epoch=leader_epoch,
                written_ms=now.time_ms,
            )
            return self._store(
                group, tp, state, lambda code: [reply(code, None if code else state)]
            )

        return self._take(group_id, tp, run, lambda code: [reply(code, None)])

    def write_state(
        self,
        group_id: str,
        tp: TopicIdPartition,
        epochs: tuple[int, int],
        start_offset: int,
        batches: Sequence[StateBatch],
        reply: Callable[[ErrorCode], Reply],
        now: Now,
    ) -> list[Effect]:
        """Store the state of a share partition for its owner, with its state and leader epoch."""

        def run() -> list[Effect]:
            group = self.shard.groups.get(group_id)
            if group is None or group.type != "share":
                return [reply(ErrorCode.GROUP_ID_NOT_FOUND)]
            before = group.states.get(tp)
            state_epoch, leader_epoch = epochs
            if before is None or before.state_epoch != state_epoch:
                return [reply(ErrorCode.FENCED_STATE_EPOCH)]
            if before.leader_epoch != leader_epoch:
                return [reply(ErrorCode.FENCED_LEADER_EPOCH)]
            state = before._replace(
                start_offset=start_offset, batches=tuple(batches), written_ms=now.time_ms
            )
            growth_bytes = state_bytes(state) - state_bytes(before)
            if growth_bytes > 0 and not self.shard.has_memory_for_member(growth_bytes):
                return [reply(ErrorCode.COORDINATOR_NOT_AVAILABLE)]
            return self._store(group, tp, state, lambda code: [reply(code)])

        return self._take(group_id, tp, run, lambda code: [reply(code)])

    def alter_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicIdPartition, int],
        reply: Callable[[ErrorCode], Reply],
        now: Now,
    ) -> list[Effect]:
        """Set start offsets of a group without members, which need not exist.

        What was in flight is forgotten, and its leader fenced.
        """

        def run() -> list[Effect]:
            group = self.shard.groups.get(group_id)
            if group is not None and group.type != "share":
                return [reply(ErrorCode.GROUP_ID_NOT_FOUND)]
            records: list[ShareRecord] = []
            if group is None:
                try:
                    self.shard.check_new_group(group_id)
                except GroupError as error:
                    return [reply(error.code)]
                records.append(ShareGroupRecord(group_id, ShareEpoch(1, 0)))
            elif code := _busy(group):
                return [reply(code)]
            for tp, offset in offsets.items():
                before = None if group is None else group.states.get(tp)
                epoch = now.time_ms // 1000 if before is None else before.state_epoch
                created_ms = now.time_ms if before is None else before.created_ms
                leader_epoch = 0 if before is None else before.leader_epoch
                state = ShareState(epoch + 1, leader_epoch, offset, (), created_ms, now.time_ms)
                records.append(ShareStateRecord(group_id, tp, state))
            growth_bytes = len(offsets) * state_bytes(ShareState(0, 0))
            if not self.shard.has_memory_for_member(growth_bytes):
                return [reply(ErrorCode.COORDINATOR_NOT_AVAILABLE)]
            return self._change(group_id, records, reply) if offsets else [reply(ErrorCode.NONE)]

        return self.turns.take(group_id, run, lambda code: [reply(code)])

    def delete_offsets(
        self, group_id: str, topic_ids: Collection[UUID], reply: Callable[[ErrorCode], Reply]
    ) -> list[Effect]:
        """Delete the states of topics, of a group without members."""

        def run() -> list[Effect]:
            group = self.shard.groups.get(group_id)
            if group is None or group.type != "share":
                return [reply(ErrorCode.GROUP_ID_NOT_FOUND)]
            if code := _busy(group):
                return [reply(code)]
            records = [ShareStateRecord(group_id, tp, None) for tp in group.states_of(topic_ids)]
            return self._change(group_id, records, reply) if records else [reply(ErrorCode.NONE)]

        return self.turns.take(group_id, run, lambda code: [reply(code)])

    def delete_topics(self, group: ShareGroup, is_deleted: Callable[[UUID], bool]) -> list[Effect]:
        """Delete the states of topics that were deleted."""
        gone = [tp for tp in group.states if is_deleted(tp.topic_id)]
        if not gone:
            return []
        return [Append([ShareStateRecord(group.id, tp, None) for tp in gone])]

    def _take(
        self,
        group_id: str,
        tp: TopicIdPartition,
        run: Callable[[], list[Effect]],
        refuse: Callable[[ErrorCode], list[Effect]],
    ) -> list[Effect]:
        """Run an event of a share partition when nothing of it, or of its group, is in flight."""
        key = _key(group_id, tp)

        def attempt() -> list[Effect]:
            if group_id in self.turns:
                return self.turns.take(group_id, attempt, refuse)
            if key in self._state_turns:
                return self._state_turns.take(key, attempt, refuse)
            return run()

        return attempt()

    def _store(
        self,
        group: ShareGroup,
        tp: TopicIdPartition,
        state: ShareState,
        then: Callable[[ErrorCode], list[Effect]],
    ) -> list[Effect]:
        group.writing_count += 1

        def complete(code: ErrorCode) -> list[Effect]:
            group.writing_count -= 1
            self.shard.resize(group)
            return then(append_error(code))

        record = ShareStateRecord(group.id, tp, state)
        return self._state_turns.append(_key(group.id, tp), [record], complete)

    def _change(
        self,
        group_id: str,
        records: Sequence[ShareRecord],
        reply: Callable[[ErrorCode], Reply],
    ) -> list[Effect]:
        def complete(code: ErrorCode) -> list[Effect]:
            group = self.shard.groups.get(group_id)
            if group is not None:
                self.shard.resize(group)
            return [reply(append_error(code))]

        return self.turns.append(group_id, records, complete)


def share_heartbeat_error(
    code: ErrorCode, message: str | None = None
) -> ShareGroupHeartbeatResponse:
    """Return the response to a heartbeat that fails."""
    return ShareGroupHeartbeatResponse(
        error_code=code, error_message=message or code.message, member_id=None
    )


def _check(beat: ShareHeartbeat) -> None:
    """Check what does not depend on the group. Raises GroupError."""
    if not beat.member_id or len(beat.member_id) > _MAX_MEMBER_ID_LENGTH:
        raise _invalid(f"MemberId must have 1 to {_MAX_MEMBER_ID_LENGTH} characters")
    if beat.epoch < LEAVE_EPOCH:
        raise _invalid(f"MemberEpoch {beat.epoch} is invalid: it is at least -1")
    if beat.epoch == JOIN_EPOCH and not beat.topics:
        raise _invalid("SubscribedTopicNames must be provided when (re-)joining")


def _metadata_of(beat: ShareHeartbeat, before: ShareMemberMetadata | None) -> ShareMemberMetadata:
    rack_id, topics = beat.rack_id, beat.topics
    if before is not None:
        rack_id = before.rack_id if rack_id is None else rack_id
        topics = before.topics if topics is None else topics
    return ShareMemberMetadata(
        rack_id, beat.client_id, beat.client_host, tuple(sorted(set(topics or ())))
    )


def _busy(group: ShareGroup) -> ErrorCode:
    """Return why the states of a group may not be changed by others than their owners."""
    if group.members:
        return ErrorCode.NON_EMPTY_GROUP
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if group.writing_count else ErrorCode.NONE


def _rebalanced(group: ShareGroup, reason: str) -> LogMessage:
    fields = {
        "group": group.id,
        "protocol": "share",
        "reason": reason,
        "members": len(group.members),
        "epoch": group.epoch,
    }
    return LogMessage("Group rebalanced" if group.members else "Group is empty", fields)


def _assignment(partitions: Partitions) -> Assignment:
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic_id, partitions=indexes)
            for topic_id, indexes in by_topic(partitions).items()
        ]
    )


def _key(group_id: str, tp: TopicIdPartition) -> str:
    return f"{tp.topic_id}:{tp.partition}:{group_id}"


def _not_found(group_id: str) -> GroupError:
    return GroupError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id!r} is not a share group")


def _invalid(message: str) -> GroupError:
    return GroupError(ErrorCode.INVALID_REQUEST, message)
