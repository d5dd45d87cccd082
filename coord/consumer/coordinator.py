"""The events of the consumer groups of a shard: heartbeats, timers, and changes of topics.

A heartbeat does everything: with epoch 0 it joins, with -1 it leaves, with -2 a static member
leaves that is expected to return; otherwise it keeps the session alive, may change the
subscription, and reports the partitions that the member owns. Each heartbeat

1. finds the member, and fences it if its epoch is not the current one;
2. stores its subscription, if that changed, and starts a rebalance (a new group epoch) if the
   subscription or a subscribed topic is another one;
3. computes a new target assignment if the group epoch rose, at most once per interval;
4. takes the member one step towards the target (see `reconciliation`);
5. answers with the member's epoch, and with its partitions if they changed.

Heartbeats that arrive together are handled together: there is one new group epoch, one target, and
one append. Who changes nothing appends nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.protocol.api.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from ottla.protocol.errors import ErrorCode

from ..config import ConsumerGroupConfig
from ..deadlines import Now
from ..effects import Compute, Effect, LogMessage, Reply, append_error
from ..errors import GroupError
from ..group_timers import Timer, TimerKind
from ..metadata_image import MetadataImage
from .assignors import ASSIGNORS, MemberSubscription
from .group import ConsumerGroup, Draft, Rebalance, ResolvedRegex
from .member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerMember,
    CurrentAssignment,
    MemberMetadata,
    MemberState,
)
from .partitions import Partitions, TopicIdPartition, by_topic
from .reconciliation import reconcile
from .regexes import InvalidRegexError, compile_regex, resolve_regex

if TYPE_CHECKING:
    from uuid import UUID

    from ..group_shard import GroupShard

#: The heartbeat interval of members that are not done with a rebalance: they learn sooner what
#: others have released.
_RECONCILING_INTERVAL_MS = 1_000
#: The work of an assignor above which it runs in a thread, in partitions that it looks at: some
#: 20 ms.
_MAX_WORK = 4_000


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeat:
    """A ConsumerGroupHeartbeat request, and what the broker knows of its sender."""

    group_id: str
    member_id: str
    epoch: int
    client_id: str = ""
    client_host: str = ""
    instance_id: str | None = None
    rack_id: str | None = None
    #: -1, and None in what follows: as before.
    rebalance_timeout_ms: int = -1
    topics: tuple[str, ...] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: Partitions | None = None
    #: Whether the sender may know of a topic; None: of all. Expressions match no others.
    may_see: Callable[[str], bool] | None = None

    @property
    def is_full(self) -> bool:
        """Whether the member says everything, as after an error, and so is told everything."""
        return self.epoch == JOIN_EPOCH or (
            self.rebalance_timeout_ms >= 0
            and (self.topics is not None or self.regex is not None)
            and self.owned is not None
        )

    def apply_to(self, before: MemberMetadata | None) -> MemberMetadata:
        """Return the member's metadata with what this heartbeat changes."""
        if before is None:
            before = MemberMetadata(None, None, "", "", (), None, -1, None)
        timeout_ms = self.rebalance_timeout_ms
        return MemberMetadata(
            before.instance_id if self.instance_id is None else self.instance_id,
            before.rack_id if self.rack_id is None else self.rack_id,
            self.client_id,
            self.client_host,
            before.topics if self.topics is None else tuple(sorted(set(self.topics))),
            before.regex if self.regex is None else self.regex or None,
            before.rebalance_timeout_ms if timeout_ms < 0 else timeout_ms,
            before.assignor if self.assignor is None else self.assignor,
        )


class _Arrived(NamedTuple):
    """A heartbeat that is handled together with others."""

    beat: ConsumerHeartbeat
    token: Any
    now: Now
    #: What its expression matches, if that was not known before.
    resolved: ResolvedRegex | None = None


class _Accepted(NamedTuple):
    """A heartbeat, and the member as it was before; None if it joined."""

    arrived: _Arrived
    before: ConsumerMember | None


class ConsumerGroups:
    """The consumer groups of a shard. What is common to all groups is the shard's."""

    def __init__(self, shard: GroupShard) -> None:
        self.shard = shard
        self.turns = shard.turns

    def config_of(self, group_id: str) -> ConsumerGroupConfig:
        """Return the config of a group."""
        overrides = self.image.group_configs.get(group_id, {})
        return self.shard.config.consumer.with_overrides(overrides)

    @property
    def image(self) -> MetadataImage:
        """The topics that exist."""
        return self.shard.image()

    # Heartbeats.

    def heartbeat(self, beat: ConsumerHeartbeat, token: Any, now: Now) -> list[Effect]:
        """Handle ConsumerGroupHeartbeat."""

        def refuse(code: ErrorCode) -> list[Effect]:
            return [Reply(token, heartbeat_error(code))]

        def run() -> list[Effect]:
            if self._needs_turn(beat):
                return self.turns.take(beat.group_id, run, refuse)
            effects = self._guarded(lambda: self._heartbeat(beat, token, now), token)
            if beat.epoch == JOIN_EPOCH and (group := self.shard.groups.get(beat.group_id)):
                self.shard.drop_if_unused(group)  # The group was created, the member refused.
            return effects

        return self.turns.take(beat.group_id, run, refuse, shares=True)

    def _needs_turn(self, beat: ConsumerHeartbeat) -> bool:
        """Whether a heartbeat cannot be handled together with those that are being gathered."""
        if not self.turns.is_gathering(beat.group_id, ""):
            return False
        group = self.shard.groups.get(beat.group_id)
        return (
            group is None
            or group.type != "consumer"
            or beat.epoch < JOIN_EPOCH
            or self.turns.is_gathering(beat.group_id, beat.member_id)
            or self._unresolved_regex(group, beat) is not None
        )

    @staticmethod
    def _unresolved_regex(group: ConsumerGroup, beat: ConsumerHeartbeat) -> str | None:
        """Return the expression of a member, if it is not known what it matches."""
        regex = beat.regex
        if regex is None:
            instance_id = beat.instance_id
            static_id = None if instance_id is None else group.static_members.get(instance_id)
            member = group.members.get(static_id or beat.member_id)
            regex = None if member is None else member.metadata.regex
        return regex if regex and regex not in group.regexes else None

    @staticmethod
    def _guarded(event: Callable[[], list[Effect]], token: Any) -> list[Effect]:
        try:
            return event()
        except GroupError as error:
            return [Reply(token, heartbeat_error(error.code, str(error)))]

    def _heartbeat(self, beat: ConsumerHeartbeat, token: Any, now: Now) -> list[Effect]:
        self._check(beat)
        group = self.shard.groups.get(beat.group_id)
        if group is not None and group.type == "consumer":
            if beat.epoch < JOIN_EPOCH:
                return self._leave(group, beat, token, now)
            return self._beat(group, beat, token, now)
        if beat.epoch != JOIN_EPOCH:
            raise GroupError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"Group {beat.group_id!r} is not a consumer group"
            )
        self.shard.check_new_group(beat.group_id)

        def then(code: ErrorCode) -> list[Effect]:
            if code is not ErrorCode.NONE:
                return [Reply(token, heartbeat_error(append_error(code)))]
            created = self.shard.groups[beat.group_id]
            assert created.type == "consumer"
            return self._guarded(lambda: self._beat(created, beat, token, now), token)

        return self.shard.become_consumer_group(beat.group_id, now, then)

    def _check(self, beat: ConsumerHeartbeat) -> None:
        """Check what does not depend on the group. Raises GroupError."""
        if beat.epoch < LEAVE_STATIC_EPOCH:
            raise _invalid(f"MemberEpoch {beat.epoch} is invalid: it is at least -2")
        if beat.epoch == LEAVE_STATIC_EPOCH and beat.instance_id is None:
            raise _invalid("MemberEpoch -2 requires an InstanceId")
        if beat.epoch < JOIN_EPOCH:
            return
        if beat.epoch == JOIN_EPOCH:
            if beat.rebalance_timeout_ms < 0:
                raise _invalid("RebalanceTimeoutMs must be provided when (re-)joining")
            if beat.owned is None or beat.owned:
                raise _invalid("TopicPartitions must be empty when (re-)joining")
            if beat.topics is None and beat.regex is None:
                raise _invalid(
                    "SubscribedTopicNames or SubscribedTopicRegex must be provided when"
                    " (re-)joining"
                )
        assignors = self.shard.config.consumer.assignors
        if beat.assignor is not None and beat.assignor not in assignors:
            raise GroupError(
                ErrorCode.UNSUPPORTED_ASSIGNOR,
                f"Assignor {beat.assignor!r} is not supported: expected one of"
                f" {', '.join(assignors)}",
            )

    def _beat(
        self, group: ConsumerGroup, beat: ConsumerHeartbeat, token: Any, now: Now
    ) -> list[Effect]:
        """Join, or stay a member."""
        if self._changes_nothing(group, beat):
            self.start_session(group, beat.member_id, now)
            response = ConsumerGroupHeartbeatResponse(
                member_id=beat.member_id,
                member_epoch=beat.epoch,
                heartbeat_interval_ms=self.config_of(group.id).heartbeat_interval_ms,
            )
            return [Reply(token, response)]
        regex = self._unresolved_regex(group, beat)
        if regex is None:
            return self.turns.gather(
                group.id,
                beat.member_id,
                _Arrived(beat, token, now),
                lambda arrived: self._handle(group, arrived),
            )
        self._find(group, beat)

        def go_on(resolved: ResolvedRegex | InvalidRegexError) -> list[Effect]:
            if isinstance(resolved, InvalidRegexError):
                code = ErrorCode.INVALID_REGULAR_EXPRESSION
                return [Reply(token, heartbeat_error(code, str(resolved)))]
            if not self.shard.has_memory_for_member(resolved.size_bytes):
                return [Reply(token, heartbeat_error(ErrorCode.COORDINATOR_NOT_AVAILABLE))]
            return self._handle(group, [_Arrived(beat, token, now, resolved)])

        # Not in the event loop: there may be many topics, and anything may be an expression.
        names = self._visible_topics(beat.may_see)
        return self.turns.compute(group.id, self._resolution(regex, names, now), go_on)

    def _changes_nothing(self, group: ConsumerGroup, beat: ConsumerHeartbeat) -> bool:
        """Whether this is what members of a stable group send: the rest is not looked at then."""
        member = group.members.get(beat.member_id)
        return (
            member is not None
            and member.current.epoch == beat.epoch == group.assignment_epoch == group.epoch
            and member.current.state is MemberState.STABLE
            and group.topics_version == self.image.topics_version
            and not group.regexes
            and beat.instance_id is None
            and not beat.is_full
            and beat.apply_to(member.metadata) == member.metadata
        )

    def _find(self, group: ConsumerGroup, beat: ConsumerHeartbeat) -> ConsumerMember | None:
        """Return the member, or the static member that it replaces. Raises GroupError."""
        if beat.epoch > JOIN_EPOCH:
            member = group.find(beat.member_id, beat.instance_id)
            _check_epoch(member, beat)
            return member
        if beat.instance_id is not None and beat.instance_id in group.static_members:
            static = group.members[group.static_members[beat.instance_id]]
            if static.id == beat.member_id:
                return static
            if static.current.epoch != LEAVE_STATIC_EPOCH and not static.is_classic:
                raise GroupError(
                    ErrorCode.UNRELEASED_INSTANCE_ID,
                    f"Instance id {beat.instance_id!r} is in use by another member",
                )
            return static
        if beat.member_id in group.members:
            return group.members[beat.member_id]
        max_size = self.shard.config.consumer.max_size
        if len(group.members) >= max_size:
            raise GroupError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"Group {group.id!r} has {max_size} members, as many as it may have",
            )
        return None

    def _handle(self, group: ConsumerGroup, arrived: list[_Arrived]) -> list[Effect]:
        """Handle heartbeats: all changes of the group first, and then each member's step."""
        draft = Draft(group)
        effects: list[Effect] = []
        accepted: list[_Accepted] = []
        reason, now = "", arrived[-1].now
        for one in arrived:
            effects += self._refresh_regexes(group, one.beat.may_see, now)
            try:
                before, change = self._accept(draft, one)
            except GroupError as error:
                effects.append(Reply(one.token, heartbeat_error(error.code, str(error))))
            else:
                reason = reason or change
                accepted.append(_Accepted(one, before))
        if not accepted:
            return effects
        if reason:
            draft.remove_unused_regexes()
        self.start_rebalance(draft, reason, now)
        responses = [self._advance(draft, one) for one in accepted]

        def then(code: ErrorCode) -> list[Effect]:
            replies: list[Effect] = []
            for (one, _before), response in zip(accepted, responses, strict=True):
                if code is ErrorCode.NONE:
                    self.start_session(group, one.beat.member_id, one.now)
                    replies.append(Reply(one.token, response))
                else:
                    replies.append(Reply(one.token, heartbeat_error(append_error(code))))
            return replies

        return effects + self.commit(group, draft, now, then)

    def _accept(self, draft: Draft, arrived: _Arrived) -> tuple[ConsumerMember | None, str]:
        """Store what a heartbeat changes of its member; return the member as it was before.

        Also return why the group has to be rebalanced; "": it has not. Raises GroupError.
        """
        beat, resolved = arrived.beat, arrived.resolved
        before = self._find(draft.group, beat)
        known = None if before is None else before.metadata
        metadata = beat.apply_to(known)
        if metadata != known:
            size_bytes = metadata.size_bytes - (0 if known is None else known.size_bytes)
            if size_bytes > 0 and not self.shard.has_memory_for_member(size_bytes):
                raise GroupError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if before is not None and before.id != beat.member_id:
            replace_static(draft, before, beat.member_id, metadata)
        elif metadata != known:
            draft.set_metadata(beat.member_id, metadata)
        if resolved is not None:
            assert metadata.regex is not None
            draft.set_regex(metadata.regex, resolved)
        if known is None:
            # Without a subscription it gets nothing, and the others keep what they have.
            matters = draft.group.epoch == 0 or metadata.topics or metadata.regex
            return None, f"member {beat.member_id} joined" if matters else ""
        if not metadata.has_subscription_of(known):
            return before, f"member {beat.member_id} changed its subscription"
        return before, ""

    def _advance(self, draft: Draft, accepted: _Accepted) -> ConsumerGroupHeartbeatResponse:
        """Take a member a step further, and return what it is answered."""
        beat, before = accepted.arrived.beat, accepted.before
        self.step(draft, beat.member_id, beat.owned)
        after = draft.group.members[beat.member_id].current
        has_changed = before is None or (
            after is not before.current and after.assigned.keys() != before.current.assigned.keys()
        )
        return ConsumerGroupHeartbeatResponse(
            member_id=beat.member_id,
            member_epoch=after.epoch,
            heartbeat_interval_ms=self._interval_of(draft, beat.member_id),
            assignment=_assignment(after.assigned) if beat.is_full or has_changed else None,
        )

    def start_rebalance(self, draft: Draft, reason: str, now: Now) -> None:
        """Start a rebalance for a reason, if there is one, and compute the target if it is due.

        Without a reason, a change of the subscribed topics is one.
        """
        group, image = draft.before, self.image
        if reason or group.topics_version != image.topics_version:
            metadata_hash = draft.group.hash_topics(image)
            if not reason and metadata_hash != group.metadata_hash:
                reason = "a subscribed topic changed"
            if reason:
                draft.bump_epoch(metadata_hash)
                _note_rebalance(group, reason, now)
            group.topics_version = image.topics_version
        self._assign(draft, now)

    @staticmethod
    def step(draft: Draft, member_id: str, owned: Partitions | None) -> None:
        """Take a member a step towards the target."""
        after = draft.group
        member = after.members[member_id]
        current = reconcile(
            member.current,
            after.assignment_epoch,
            after.target_of(member_id),
            lambda tp: after.holders.get(tp, member_id) != member_id,
            owned,
        )
        if current is not member.current:
            draft.set_current(member_id, current)

    def commit(
        self,
        group: ConsumerGroup,
        draft: Draft,
        now: Now,
        then: Callable[[ErrorCode], list[Effect]],
    ) -> list[Effect]:
        """Append the records of a draft, and then go on."""
        if not draft.records:
            return then(ErrorCode.NONE)

        def complete(code: ErrorCode) -> list[Effect]:
            effects = then(code)
            if code is ErrorCode.NONE:
                effects += self._settle(group, now)
            else:
                group.topics_version = -1
            return effects

        return self.turns.append(group.id, draft.records, complete)

    def _settle(self, group: ConsumerGroup, now: Now) -> list[Effect]:
        """Start the timers that the new state of a group asks for, and log a rebalance's end."""
        if self.shard.groups.get(group.id) is not group:
            return []
        effects: list[Effect] = []
        if group.members and group.epoch > group.assignment_epoch:
            effects += self._schedule_assignment(group, now)
        elif group.rebalance is not None and not group.unreconciled:
            reason, started_ms = group.rebalance
            group.rebalance = None
            effects.append(
                LogMessage(
                    "Group rebalanced" if group.members else "Group is empty",
                    {
                        "group": group.id,
                        "protocol": "consumer",
                        "reason": reason,
                        "members": len(group.members),
                        "epoch": group.epoch,
                        "milliseconds": now.tick_ms - started_ms,
                    },
                )
            )
        if not group.members:
            group.empty_since_ms = now.time_ms
        return effects

    def _interval_of(self, draft: Draft, member_id: str) -> int:
        group = draft.group
        interval_ms = self.config_of(group.id).heartbeat_interval_ms
        is_moving = group.epoch > group.assignment_epoch or draft.before.is_resolving
        if is_moving or member_id in group.unreconciled:
            return min(interval_ms, _RECONCILING_INTERVAL_MS)
        return interval_ms

    # Leaving.

    def _leave(
        self, group: ConsumerGroup, beat: ConsumerHeartbeat, token: Any, now: Now
    ) -> list[Effect]:
        member = group.find(beat.member_id, beat.instance_id)
        response = ConsumerGroupHeartbeatResponse(member_id=beat.member_id, member_epoch=beat.epoch)

        def then(code: ErrorCode) -> list[Effect]:
            if code is not ErrorCode.NONE:
                return [Reply(token, heartbeat_error(append_error(code)))]
            return [Reply(token, response)]

        if beat.epoch == LEAVE_EPOCH:
            return self.remove(group, [member], "left", now, then)
        draft = Draft(group)
        draft.set_current(
            member.id,
            CurrentAssignment(
                LEAVE_STATIC_EPOCH,
                member.current.epoch,
                MemberState.STABLE,
                member.current.assigned,
            ),
        )
        self.cancel(group, "rebalance", member.id)
        return self.commit(group, draft, now, then)

    def remove(
        self,
        group: ConsumerGroup,
        members: Iterable[ConsumerMember],
        why: str,
        now: Now,
        then: Callable[[ErrorCode], list[Effect]],
    ) -> list[Effect]:
        """Remove members of a group, and start a rebalance of the others."""
        gone = list(members)
        draft = Draft(group)
        for member in gone:
            draft.remove_member(member.id)
        reason = f"member {', '.join(member.id for member in gone)} {why}"

        def complete(code: ErrorCode) -> list[Effect]:
            for member in gone:
                if code is ErrorCode.NONE:
                    self.cancel_all(group, member.id)
                else:
                    self.start_session(group, member.id, now)
            return then(code)

        if self.shard.may_downgrade(draft):
            return self.shard.downgrade(group, draft, reason, now, complete)
        draft.remove_unused_regexes()
        draft.bump_epoch(draft.group.hash_topics(self.image))
        _note_rebalance(group, reason, now)
        self._assign(draft, now)
        return self.commit(group, draft, now, complete)

    # Timers.

    def activate(self, group: ConsumerGroup, now: Now) -> None:
        """Start the timers of a group that was loaded or upgraded."""
        group.drop_incomplete_members()
        for member in group.members.values():
            self.start_session(group, member.id, now)
        if group.members and group.epoch > group.assignment_epoch:
            self._set(group, "assignment", "", 0, now)

    def expire(self, group: ConsumerGroup, timer: Timer, now: Now) -> list[Effect]:
        """Handle a timer that is due."""

        def run() -> list[Effect]:
            if self.shard.groups.get(group.id) is not group:
                return []
            if timer.kind == "assignment":
                draft = Draft(group)
                if group.epoch > group.assignment_epoch:
                    self._assign(draft, now)
                if not draft.records:
                    return self._settle(group, now)
                return self.commit(group, draft, now, lambda _code: [])
            if timer in self.shard.deadlines or timer.member_id not in group.members:
                return []  # The member was heard of while this waited for its turn.
            why = {
                "session": "had no heartbeat within the session timeout",
                "rebalance": "did not revoke its partitions within the rebalance timeout",
                "join": "did not join again within the rebalance timeout",
                "sync": "did not sync within the rebalance timeout",
            }[timer.kind]
            member = group.members[timer.member_id]
            return self.remove(group, [member], why, now, lambda _code: [])

        return self.turns.take(group.id, run, lambda _code: [])

    def start_session(self, group: ConsumerGroup, member_id: str, now: Now) -> None:
        """Restart the session of a member, and its rebalance timeout if it has to revoke."""
        member = group.members.get(member_id)
        if member is None:
            return
        metadata, current = member.metadata, member.current
        session_ms = self.config_of(group.id).session_timeout_ms
        if metadata.classic is not None:
            session_ms = metadata.classic.session_timeout_ms
        timer = Timer(group.id, "session", member_id)
        self.shard.deadlines.postpone(timer, now.tick_ms + session_ms)
        is_revoking = current.state is MemberState.UNREVOKED_PARTITIONS
        timer = Timer(group.id, "rebalance", member_id)
        if not is_revoking:
            self.shard.deadlines.cancel(timer)
        elif timer not in self.shard.deadlines:
            self._set(group, "rebalance", member_id, metadata.rebalance_timeout_ms, now)

    def cancel(self, group: ConsumerGroup, kind: TimerKind, member_id: str) -> None:
        """Cancel a timer of a member."""
        self.shard.deadlines.cancel(Timer(group.id, kind, member_id))

    def cancel_all(self, group: ConsumerGroup, member_id: str) -> None:
        """Cancel the timers of a member that was removed."""
        for kind in _MEMBER_TIMERS:
            self.cancel(group, kind, member_id)

    def _set(
        self, group: ConsumerGroup, kind: TimerKind, member_id: str, timeout_ms: int, now: Now
    ) -> None:
        self.shard.deadlines.set(Timer(group.id, kind, member_id), now.tick_ms + timeout_ms)

    # Target assignments.

    def _assign(self, draft: Draft, now: Now) -> None:
        """Compute a new target if one is due, and if it does not take long."""
        group = draft.group
        if not group.members or group.epoch == group.assignment_epoch:
            return
        if self._wait_ms(group, now) > 0:
            return
        if self._work(group) <= _MAX_WORK:
            draft.set_targets(self._assignment_task(group)(), group.epoch, now.time_ms)
        elif group.assignment_epoch == 0:
            # The first members have no target yet to stay with: an empty one, and another epoch.
            draft.set_targets({}, group.epoch, 0)
            draft.bump_epoch(group.metadata_hash)

    def _wait_ms(self, group: ConsumerGroup, now: Now) -> int:
        """Return how long the group has to wait for its next target."""
        elapsed_ms = now.time_ms - group.assigned_at_ms
        if elapsed_ms < 0:
            return 0  # The clock was set back.
        return self.config_of(group.id).assignment_interval_ms - elapsed_ms

    def _schedule_assignment(self, group: ConsumerGroup, now: Now) -> list[Effect]:
        wait_ms = self._wait_ms(group, now)
        if wait_ms > 0:
            if Timer(group.id, "assignment") not in self.shard.deadlines:
                self._set(group, "assignment", "", wait_ms, now)
            return []
        if group.is_computing:
            return []  # The next one follows it.
        group.is_computing = True
        epoch = group.epoch
        before = {member.id: member.metadata for member in group.members.values()}

        def computed(targets: dict[str, Partitions]) -> list[Effect]:
            return self.turns.take(group.id, lambda: apply(targets), lambda _code: [])

        def apply(targets: dict[str, Partitions]) -> list[Effect]:
            group.is_computing = False
            if self.shard.groups.get(group.id) is not group or not group.members:
                return []
            if epoch <= group.assignment_epoch:
                return self._settle(group, now)  # The group has become small meanwhile.
            # Also if there is a later epoch by now, as a group that changes all the time would
            # never get a target; only for members that still subscribe to the same.
            current = {
                member.id: targets[member.id]
                for member in group.members.values()
                if member.id in before and member.metadata.has_subscription_of(before[member.id])
            }
            draft = Draft(group)
            draft.set_targets(current, epoch, now.time_ms)
            return self.commit(group, draft, now, lambda _code: [])

        return [Compute(self._assignment_task(group), computed)]

    def _work(self, group: ConsumerGroup) -> int:
        """Estimate how many partitions the assignor looks at."""
        topics = self.image.topics
        count = sum(
            len(topics[name].replicas) for name in group.subscribed_topics() if name in topics
        )
        members = len(group.members)
        return count + members if group.has_equal_subscriptions() else count * members

    def _assignment_task(self, group: ConsumerGroup) -> Callable[[], dict[str, Partitions]]:
        """Return a function that computes the target of a group as it is now."""
        topics = self.image.topics
        existing = [topics[name] for name in group.subscribed_topics() if name in topics]
        ids = {topic.name: topic.id for topic in existing}
        counts = {
            topic.id: len(topic.replicas)
            for topic in sorted(existing, key=lambda topic: topic.id.int)
        }
        members = [(one, group.target_of(one.id)) for one in group.members.values()]
        matches = {regex: resolved.topics for regex, resolved in group.regexes.items()}
        assignor = ASSIGNORS[group.preferred_assignor(self.shard.config.consumer.assignors)]

        def work() -> dict[str, Partitions]:
            known: dict[tuple[tuple[str, ...], str | None], frozenset[UUID]] = {}
            subscriptions = {}
            for member, target in members:
                key = member.metadata.topics, member.metadata.regex
                if key not in known:
                    names = {*key[0], *matches.get(key[1] or "", ())}
                    known[key] = frozenset(ids[name] for name in names if name in ids)
                subscriptions[member.id] = MemberSubscription(
                    known[key], target, member.instance_id
                )
            return assignor(subscriptions, counts)

        return work

    # Regular expressions.

    def _visible_topics(self, may_see: Callable[[str], bool] | None) -> list[str]:
        topics = self.image.topics
        return list(topics if may_see is None else filter(may_see, topics))

    def _resolution(
        self, regex: str, names: Sequence[str], now: Now
    ) -> Callable[[], ResolvedRegex | InvalidRegexError]:
        version = self.image.topics_version

        def work() -> ResolvedRegex | InvalidRegexError:
            try:
                matcher = compile_regex(regex)
            except InvalidRegexError as error:
                return error
            return ResolvedRegex(resolve_regex(matcher, names), version, now.time_ms)

        return work

    def _refresh_regexes(
        self, group: ConsumerGroup, may_see: Callable[[str], bool] | None, now: Now
    ) -> list[Effect]:
        """Resolve the expressions of a group again, if topics changed or it was long ago."""
        interval_ms = self.shard.config.consumer.regex_refresh_interval_ms
        version = self.image.topics_version
        is_current = (
            group.regexes_version == version
            and now.tick_ms - group.regexes_resolved_ms <= interval_ms
        )
        if not group.regexes or group.is_resolving or is_current:
            return []
        group.is_resolving = True
        group.regexes_version, group.regexes_resolved_ms = version, now.tick_ms
        names = self._visible_topics(may_see)
        tasks = {regex: self._resolution(regex, names, now) for regex in group.regexes}

        def work() -> dict[str, ResolvedRegex | InvalidRegexError]:
            return {regex: task() for regex, task in tasks.items()}

        def computed(results: dict[str, ResolvedRegex | InvalidRegexError]) -> list[Effect]:
            return self.turns.take(group.id, lambda: apply(results), lambda _code: [])

        def apply(results: dict[str, ResolvedRegex | InvalidRegexError]) -> list[Effect]:
            group.is_resolving = False
            draft = Draft(group)
            for regex, resolved in results.items():
                before = group.regexes.get(regex)
                if (
                    before is not None
                    and isinstance(resolved, ResolvedRegex)
                    and before.topics != resolved.topics
                ):
                    draft.set_regex(regex, resolved)
            if draft.records:
                draft.bump_epoch(draft.group.hash_topics(self.image))
                _note_rebalance(group, "a regular expression matches other topics", now)
                self._assign(draft, now)
            return self.commit(group, draft, now, lambda _code: [])

        return [Compute(work, computed)]


def replace_static(
    draft: Draft, replaced: ConsumerMember, member_id: str, metadata: MemberMetadata
) -> None:
    """Let a static member continue under another member id, without a rebalance."""
    target = draft.group.target_of(replaced.id)
    draft.remove_member(replaced.id)
    draft.set_metadata(member_id, metadata)
    draft.set_target(member_id, target)
    draft.set_current(member_id, CurrentAssignment(assigned=replaced.current.assigned))


def heartbeat_error(code: ErrorCode, message: str | None = None) -> ConsumerGroupHeartbeatResponse:
    """Return the response to a heartbeat that fails."""
    return ConsumerGroupHeartbeatResponse(
        error_code=code, error_message=message or code.message, member_id=None
    )


def _check_epoch(member: ConsumerMember, beat: ConsumerHeartbeat) -> None:
    """Raise GroupError if the member has another epoch.

    The response with the latest epoch may have been lost: a member with the one before it, that
    owns nothing else than it has, is taken for this member.
    """
    current = member.current
    if beat.epoch == current.epoch:
        return
    if (
        beat.epoch == current.previous_epoch
        and beat.epoch < current.epoch
        and beat.owned is not None
        and beat.owned <= current.assigned.keys()
    ):
        return
    relation = "larger" if beat.epoch > current.epoch else "smaller"
    raise GroupError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The member epoch {beat.epoch} is {relation} than the epoch {current.epoch} that the"
        " coordinator knows",
    )


def _assignment(partitions: Iterable[TopicIdPartition]) -> Assignment:
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic_id, partitions=indexes)
            for topic_id, indexes in by_topic(partitions).items()
        ]
    )


def _note_rebalance(group: ConsumerGroup, reason: str, now: Now) -> None:
    if group.rebalance is None:
        group.rebalance = Rebalance(reason, now.tick_ms)


def _invalid(message: str) -> GroupError:
    return GroupError(ErrorCode.INVALID_REQUEST, message)


_MEMBER_TIMERS: tuple[TimerKind, ...] = ("session", "rebalance", "join", "sync")
