"""One consumer group of the classic protocol: the state machine of its rebalances.

Members join. When all of them have, or the rebalance timeout of the missing ones has passed, the
group has a new generation: one protocol that all members support, and one member that leads. The
leader gets the metadata of all members, computes the assignment, and sends it with its SyncGroup;
everybody else's SyncGroup is answered from it. From then on members send heartbeats. A member that
joins, leaves, expires or changes its subscription starts the next rebalance. The coordinator itself
assigns nothing.

Every method is an event: it takes the time, and returns effects. A request that has to wait is kept
as a token in its member, and answered exactly once, by a later event. See `states` for the response
to each request in each state.

Of a group, a completed generation is durable: `replay` applies its record, and so makes the group
Stable. Everything before that is soft state: who has joined, which generation, leader and protocol
come next, and the timers. A restart in the middle of a rebalance returns to the generation before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from ottla.protocol.api.heartbeat import HeartbeatResponse
from ottla.protocol.api.sync_group import SyncGroupResponse
from ottla.protocol.errors import ErrorCode

from .config import ClassicGroupConfig
from .deadlines import Deadlines, Now
from .effects import Append, Effect, LogMessage, Reply, append_error
from .errors import GroupError
from .group_timers import GroupTimers, Timer
from .member import Join, Member, Protocols
from .membership import Membership
from .records import GroupMetadataValue, GroupRecord
from .responses import join_error, join_response, sync_response
from .states import PREDECESSORS, GroupState
from .waiting import refuse_sync, refuse_waiting, wait_in_join


class Group:
    """A group. Its timers are among `deadlines`; when one is due, the shard calls `expire`."""

    type: Literal["classic"] = "classic"

    def __init__(
        self, group_id: str, config: ClassicGroupConfig, deadlines: Deadlines[Timer]
    ) -> None:
        self.id = group_id
        self.config = config
        self.state = GroupState.EMPTY
        #: When the last member left, by the time of day; its offsets expire some time after that.
        self.empty_since_ms = -1
        self.generation = 0
        #: None for a group that never had a member.
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.membership = Membership()
        #: What the members of the last generation subscribed to; None before the first one.
        self.subscriptions: Sequence[bytes] | None = None
        # The size of those whose members have left, or have other metadata by now: they are kept
        # until the next generation. And the ids of the others.
        self._replaced_bytes = 0
        self._current: set[int] = set()
        # Soft state of the rebalance in progress.
        self._timers = GroupTimers(group_id, deadlines)
        # Initial delay of an empty group: how much longer it may be extended, and whether a member
        # joined since it was last extended.
        self._delay_left_ms: int | None = None
        self._has_new_member = False
        self._not_synced: set[str] = set()
        # Whether the leader of this generation has sent the assignment: the first one counts.
        self._has_assignment = False
        # Why and since when it rebalances, for the log.
        self._rebalance_reason: str | None = None
        self._rebalance_start_ms = 0

    def __repr__(self) -> str:
        return (
            f"<Group {self.id} {self.state.value}, generation {self.generation},"
            f" {len(self.members)} members>"
        )

    @property
    def members(self) -> dict[str, Member]:
        """The members by id."""
        return self.membership.members

    @property
    def is_empty(self) -> bool:
        """Whether it has no members, and no rebalance is in progress."""
        return self.state is GroupState.EMPTY

    @property
    def size_bytes(self) -> int:
        """The estimated memory of its members."""
        return self.membership.size_bytes + self._replaced_bytes

    @property
    def pending(self) -> set[str]:
        """Member ids that were handed out, but that nobody joined with yet."""
        return self.membership.pending

    # Durable state.

    def restore(self, metadata: GroupMetadataValue) -> None:
        """Become what a record describes. Called while the shard loads, before any request."""
        self.protocol_type = metadata.protocol_type or None
        self.protocol = metadata.protocol
        self.empty_since_ms = metadata.current_state_timestamp
        self.generation = metadata.generation
        self.leader = metadata.leader
        self.membership = Membership(
            Member.from_record(member, metadata.protocol) for member in metadata.members
        )
        self.state = GroupState.STABLE if self.members else GroupState.EMPTY
        self._note_subscriptions()

    def replay(self, metadata: GroupMetadataValue) -> None:
        """Apply a record that was just appended: the generation that it describes is complete.

        The record was made from this group. If the group has moved on since, its state is newer
        than the record, which then changes nothing.
        """
        if self.state is GroupState.COMPLETING_REBALANCE and metadata.generation == self.generation:
            for member in metadata.members:
                self.membership.assign(self.members[member.member_id], bytes(member.assignment))
            self._become(GroupState.STABLE)

    def start_sessions(self, now: Now) -> None:
        """Start the sessions of all members, after a load: they have not been heard of yet."""
        for member in self.members.values():
            self._timers.start_session(member, now)

    def die(self) -> None:
        """End, without members: the group was removed from its shard."""
        self.forget_pending_members()
        self._become(GroupState.DEAD)

    def refuse_all_waiting(self, code: ErrorCode) -> list[Effect]:
        """Answer all requests that wait with an error: the group gets another protocol."""
        effects: list[Effect] = []
        for member in self.members.values():
            effects += refuse_waiting(member, code)
        return effects

    def cancel_timers(self) -> None:
        """Cancel all timers: the group has another protocol."""
        self._timers.cancel_join()
        self._timers.cancel_sync()
        for member_id in self.members:
            self._timers.cancel_session(member_id)

    def rebalance(self, reason: str, now: Now) -> list[Effect]:
        """Start a rebalance."""
        return self._prepare_rebalance(reason, now)

    def forget_pending_members(self) -> None:
        """Forget the member ids that were handed out and not used yet."""
        for member_id in list(self.pending):
            self._remove_pending(member_id)

    def _record(self, now: Now, assignments: Mapping[str, bytes] | None = None) -> GroupRecord:
        """Return the record of this generation, with `assignments` if they are new."""
        return GroupRecord(
            self.id,
            GroupMetadataValue(
                protocol_type=self.protocol_type or "",
                generation=self.generation,
                protocol=self.protocol,
                leader=self.leader,
                current_state_timestamp=now.time_ms,
                members=[
                    member.to_record(
                        self.protocol,
                        member.assignment
                        if assignments is None
                        else assignments.get(member.id, b""),
                    )
                    for member in self.members.values()
                ],
            ),
        )

    # Requests.

    def join(self, join: Join, token: Any, now: Now) -> list[Effect]:
        """Handle JoinGroup."""
        try:
            self._check_join(join)
            if not join.member_id:
                return self._join_new(join, token, now)
            return self._join_known(join, token, now)
        except GroupError as error:
            return [Reply(token, join_error(error.code, join.member_id))]

    def sync(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        protocol: tuple[str | None, str | None],
        assignments: Mapping[str, bytes],
        token: Any,
        now: Now,
    ) -> list[Effect]:
        """Handle SyncGroup. `protocol` is the type and the name, None where not sent."""
        try:
            member = self._find(member_id, instance_id)
            self._check_generation(generation)
            if any(
                sent is not None and sent != current
                for sent, current in zip(protocol, (self.protocol_type, self.protocol), strict=True)
            ):
                raise GroupError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            if self.state is GroupState.PREPARING_REBALANCE:
                raise GroupError(ErrorCode.REBALANCE_IN_PROGRESS)
        except GroupError as error:
            return [Reply(token, SyncGroupResponse(error_code=error.code))]
        self._not_synced.discard(member_id)
        if self.state is GroupState.STABLE:
            self._timers.start_session(member, now)
            return [Reply(token, sync_response(self, member))]
        effects = refuse_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
        member.waiting_sync = token
        if member_id == self.leader and not self._has_assignment:
            self._has_assignment = True
            effects.append(self._append_assignments(assignments, now))
        return effects

    def heartbeat(
        self, member_id: str, instance_id: str | None, generation: int, token: Any, now: Now
    ) -> list[Effect]:
        """Handle Heartbeat."""
        try:
            member = self._find(member_id, instance_id)
            self._check_generation(generation)
        except GroupError as error:
            return [Reply(token, HeartbeatResponse(error_code=error.code))]
        self._timers.start_session(member, now)
        is_rebalancing = self.state is GroupState.PREPARING_REBALANCE
        code = ErrorCode.REBALANCE_IN_PROGRESS if is_rebalancing else ErrorCode.NONE
        return [Reply(token, HeartbeatResponse(error_code=code))]

    def leave(
        self, member_id: str, instance_id: str | None, now: Now
    ) -> tuple[ErrorCode, list[Effect]]:
        """Handle one member of a LeaveGroup. It may be named by its instance id alone."""
        try:
            if not member_id and instance_id is not None:
                member_id = self.membership.static_member_id(instance_id) or ""
            if member_id in self.pending:
                self._remove_pending(member_id)
                return ErrorCode.NONE, self._complete_join_if_all_joined(now)
            member = self._find(member_id, instance_id)
        except GroupError as error:
            return error.code, []
        return ErrorCode.NONE, self._remove_and_rebalance(member, "left", now)

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, now: Now
    ) -> None:
        """Check an OffsetCommit, and restart the member's session. Raises GroupError."""
        if generation < 0 and self.state is GroupState.EMPTY:
            return  # A consumer that assigns itself partitions, without being a member.
        member = self._find(member_id, instance_id)
        self._check_generation(generation)
        if self.state is GroupState.COMPLETING_REBALANCE:
            raise GroupError(ErrorCode.REBALANCE_IN_PROGRESS)
        self._timers.start_session(member, now)

    def check_transactional_commit(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> None:
        """Check a TxnOffsetCommit, in any state of the group. Raises GroupError.

        A producer that claims no membership is fenced by its epoch alone.
        """
        if generation < 0 and (
            self.state is GroupState.EMPTY or (not member_id and instance_id is None)
        ):
            return
        self._find(member_id, instance_id)
        self._check_generation(generation)

    def expire(self, timer: Timer, now: Now) -> list[Effect]:
        """Handle a timer that is due."""
        if timer.kind == "join":
            return self._expire_join(now)
        if timer.kind == "sync":
            return self._expire_sync(now)
        if timer.kind == "pending":
            self.pending.discard(timer.member_id)
            return self._complete_join_if_all_joined(now)
        member = self.members.get(timer.member_id)
        if member is None:
            return []
        if member.is_waiting and not member.is_new:
            self._timers.start_session(member, now)
            return []
        why = "had no heartbeat within the session timeout"
        return self._remove_and_rebalance(member, why, now)

    # Joining.

    def _check_join(self, join: Join) -> None:
        if self.state is GroupState.DEAD:
            raise GroupError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if not join.protocol_type or not join.protocols:
            raise GroupError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if self.members and join.protocol_type != self.protocol_type:
            raise GroupError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        self.membership.check_join(join, self.config.max_size)

    def _join_new(self, join: Join, token: Any, now: Now) -> list[Effect]:
        if join.instance_id is not None:
            member_id = f"{join.instance_id}-{join.unique}"
            old_id = self.membership.static_member_id(join.instance_id)
            if old_id is not None:
                return self._replace_static(self.members[old_id], member_id, join, token, now)
            return self._add(member_id, join, token, now)
        member_id = f"{join.client_id}-{join.unique}"
        if not join.requires_known_id:
            return self._add(member_id, join, token, now)
        self.pending.add(member_id)
        self._timers.start_pending(member_id, join.session_timeout_ms, now)
        return [Reply(token, join_error(ErrorCode.MEMBER_ID_REQUIRED, member_id))]

    def _join_known(self, join: Join, token: Any, now: Now) -> list[Effect]:
        if join.member_id in self.pending and join.instance_id is None:
            self._remove_pending(join.member_id)
            return self._add(join.member_id, join, token, now)
        member = self._find(join.member_id, join.instance_id)
        is_unchanged = member.protocols == join.protocols
        if self.state is GroupState.PREPARING_REBALANCE:
            self._update(member, join)
            return wait_in_join(member, token) + self._complete_join_if_all_joined(now)
        is_retry = is_unchanged and (
            self.state is GroupState.COMPLETING_REBALANCE or member.id != self.leader
        )
        if is_retry:
            self._timers.start_session(member, now)
            return [Reply(token, join_response(self, member))]
        self._update(member, join)
        reason = f"member {member.id} {'joined again' if is_unchanged else 'changed its metadata'}"
        return wait_in_join(member, token) + self._prepare_rebalance(reason, now)

    def _add(self, member_id: str, join: Join, token: Any, now: Now) -> list[Effect]:
        if not self.members:
            self.protocol_type = join.protocol_type
        member = Member.from_join(member_id, join)
        self.membership.add(member)
        if self.leader is None:
            self.leader = member_id
        self._has_new_member = True
        effects = wait_in_join(member, token)
        self._timers.start_first_session(member, now)
        return effects + self._rebalance(f"member {member_id} joined", now)

    def _replace_static(
        self, old: Member, new_id: str, join: Join, token: Any, now: Now
    ) -> list[Effect]:
        """Replace a static member that restarted: it gets a new id, and the old one is fenced."""
        effects = refuse_waiting(old, ErrorCode.FENCED_INSTANCE_ID)
        old_leader = self.leader or ""
        was_leader = self.leader == old.id
        member = Member.from_join(new_id, join)
        member.assignment, member.is_new = old.assignment, False
        self._remove_member(old)
        self.membership.add(member)
        if was_leader:
            self.leader = new_id
        if old.id in self._not_synced:
            self._not_synced.remove(old.id)
            self._not_synced.add(new_id)
        self._timers.cancel_session(old.id)
        self._timers.start_session(member, now)
        if self.state is GroupState.STABLE and self.membership.choose_protocol() == self.protocol:
            append = self._append_replacement(member, join, old_leader, token, now)
            return [*effects, append]
        reason = f"static member {new_id} replaced {old.id}"
        return effects + wait_in_join(member, token) + self._rebalance(reason, now)

    def _append_replacement(
        self, member: Member, join: Join, old_leader: str, token: Any, now: Now
    ) -> Append:
        """Append the new id of a static member, then answer its join without a rebalance."""
        # A leader must not assign again. Newer clients understand SkipAssignment; older ones are
        # sent another leader.
        skip_assignment = self.leader == member.id and join.can_skip_assignment
        member.waiting_join = token

        def complete(code: ErrorCode) -> list[Effect]:
            if self.state is not GroupState.STABLE or member.waiting_join is not token:
                return []  # A rebalance has started, which answers the join, or did.
            member.waiting_join = None
            self._timers.extend_session(member, now)
            if code is not ErrorCode.NONE:
                return [Reply(token, join_error(append_error(code)))]
            leader = None if skip_assignment else old_leader
            return [
                Reply(
                    token,
                    join_response(self, member, leader=leader, skip_assignment=skip_assignment),
                )
            ]

        return Append([self._record(now)], complete)

    # Rebalancing.

    def _rebalance(self, reason: str, now: Now) -> list[Effect]:
        """Start a rebalance, or complete the one in progress if this was its last join."""
        if self.state is GroupState.PREPARING_REBALANCE:
            return self._complete_join_if_all_joined(now)
        return self._prepare_rebalance(reason, now)

    def _prepare_rebalance(self, reason: str, now: Now) -> list[Effect]:
        """Start a rebalance: wait for the members to join. The reason is logged at its end."""
        if self._rebalance_reason is None:
            self._rebalance_reason, self._rebalance_start_ms = reason, now.tick_ms
        effects: list[Effect] = []
        if self.state is GroupState.COMPLETING_REBALANCE:
            for member in self.members.values():
                self.membership.assign(member, b"")
                if member.waiting_sync is not None:
                    self._timers.extend_session(member, now)
                effects += refuse_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
        self._timers.cancel_sync()
        self._not_synced.clear()
        was_empty = self.state is GroupState.EMPTY
        self._become(GroupState.PREPARING_REBALANCE)
        timeout_ms = self.membership.rebalance_timeout_ms
        delay_ms = min(self.config.initial_rebalance_delay_ms, timeout_ms)
        if was_empty and delay_ms == 0:
            # Like the end of a longer delay: pending member ids are not waited for.
            return effects + self._complete_join(now)
        if was_empty:
            # The first members of a group join one after another: one rebalance for all of them.
            self._delay_left_ms = timeout_ms - delay_ms
            self._has_new_member = False
            self._timers.start_join(delay_ms, now)
            return effects
        self._delay_left_ms = None
        self._timers.start_join(timeout_ms, now)
        return effects + self._complete_join_if_all_joined(now)

    def _complete_join_if_all_joined(self, now: Now) -> list[Effect]:
        if (
            self.state is not GroupState.PREPARING_REBALANCE
            or self._delay_left_ms is not None
            or self.pending
            or any(member.waiting_join is None for member in self.members.values())
        ):
            return []
        return self._complete_join(now)

    def _expire_join(self, now: Now) -> list[Effect]:
        if self._delay_left_ms and self._has_new_member:
            delay_ms = min(self.config.initial_rebalance_delay_ms, self._delay_left_ms)
            self._delay_left_ms -= delay_ms
            self._has_new_member = False
            self._timers.start_join(delay_ms, now)
            return []
        return self._complete_join(now)

    def _complete_join(self, now: Now) -> list[Effect]:
        """Stop waiting for joins, and start a new generation with the members that joined."""
        self._delay_left_ms = None
        self._timers.cancel_join()
        for member in list(self.members.values()):
            if member.waiting_join is None and member.instance_id is None:
                self._remove(member)  # None of its requests is waiting.
        joined = self.membership.joined
        if self.members and not joined:
            # Static members may come back until their sessions end.
            timeout_ms = max(
                self.membership.rebalance_timeout_ms, self.config.min_session_timeout_ms
            )
            self._timers.start_join(timeout_ms, now)
            return []
        self.generation += 1
        if not self.members:
            self._become(GroupState.EMPTY)
            self.empty_since_ms = now.time_ms
            self.protocol = self.leader = None
            self._note_subscriptions()
            return [Append([self._record(now)]), *self._log_rebalance(now)]
        if self.leader not in self.members or self.members[self.leader].waiting_join is None:
            self.leader = joined[0].id
        self.protocol = self.membership.choose_protocol()
        self._note_subscriptions()
        self._become(GroupState.COMPLETING_REBALANCE)
        self._has_assignment = False
        self._not_synced = set(self.members)
        self._timers.start_sync(self.membership.rebalance_timeout_ms, now)
        effects: list[Effect] = []
        for member in self.members.values():
            token, member.waiting_join = member.waiting_join, None
            member.is_new = False
            if token is not None:
                effects.append(Reply(token, join_response(self, member)))
                self._timers.start_session(member, now)
        return effects

    def _append_assignments(self, assignments: Mapping[str, bytes], now: Now) -> Append:
        """Append the leader's assignments, then answer the members that wait for theirs."""
        generation = self.generation

        def complete(code: ErrorCode) -> list[Effect]:
            if generation != self.generation:
                return []
            if code is not ErrorCode.NONE:
                is_current = self.state is GroupState.COMPLETING_REBALANCE
                reason = "the assignment could not be stored"
                return self._prepare_rebalance(reason, now) if is_current else []
            if self.state is not GroupState.STABLE:
                return []
            return [*self._answer_syncs(now), *self._log_rebalance(now)]

        return Append([self._record(now, assignments)], complete)

    def _answer_syncs(self, now: Now) -> list[Effect]:
        effects: list[Effect] = []
        for member in self.members.values():
            token, member.waiting_sync = member.waiting_sync, None
            if token is not None:
                effects.append(Reply(token, sync_response(self, member)))
                self._timers.extend_session(member, now)
        return effects

    def _expire_sync(self, now: Now) -> list[Effect]:
        """Remove the members that joined the generation, but did not sync."""
        effects: list[Effect] = []
        late = [self.members[name] for name in self._not_synced if name in self.members]
        self._not_synced.clear()
        for member in late:
            effects += self._remove(member)
        if not late:
            return effects
        reason = f"{_names(late)} did not sync within the rebalance timeout"
        return effects + self._prepare_rebalance(reason, now)

    def _remove_and_rebalance(self, member: Member, why: str, now: Now) -> list[Effect]:
        effects = self._remove(member)
        if self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            return effects + self._prepare_rebalance(f"member {member.id} {why}", now)
        return effects + self._complete_join_if_all_joined(now)

    def _remove(self, member: Member) -> list[Effect]:
        self._remove_member(member)
        self._timers.cancel_session(member.id)
        self._not_synced.discard(member.id)
        if self.leader == member.id:
            joined = self.membership.joined
            self.leader = joined[0].id if joined else next(iter(self.members), None)
        return refuse_waiting(member, ErrorCode.UNKNOWN_MEMBER_ID)

    def _remove_pending(self, member_id: str) -> None:
        self.pending.remove(member_id)
        self._timers.cancel_pending(member_id)

    def _log_rebalance(self, now: Now) -> list[Effect]:
        """Return the log message at the end of a rebalance."""
        if self._rebalance_reason is None:
            return []
        reason, self._rebalance_reason = self._rebalance_reason, None
        fields = {
            "group": self.id,
            "protocol": "classic",
            "reason": reason,
            "members": len(self.members),
            "generation": self.generation,
            "milliseconds": now.tick_ms - self._rebalance_start_ms,
        }
        return [LogMessage("Group rebalanced" if self.members else "Group is empty", fields)]

    # Checks.

    def _become(self, state: GroupState) -> None:
        if state is not self.state:
            assert self.state in PREDECESSORS[state], f"{self.state} → {state}"
            self.state = state

    def _find(self, member_id: str, instance_id: str | None) -> Member:
        """Return the member that a request comes from. Raises GroupError."""
        if self.state is GroupState.DEAD:
            raise GroupError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return self.membership.find(member_id, instance_id)

    def _note_subscriptions(self) -> None:
        self.subscriptions = [member.metadata(self.protocol) for member in self.members.values()]
        self._replaced_bytes = 0
        self._current = set(map(id, self.subscriptions))

    def _update(self, member: Member, join: Join) -> None:
        before = member.protocols
        self.membership.update(member, join)
        if member.protocols is not before:
            self._note_replaced(before)

    def _remove_member(self, member: Member) -> None:
        self.membership.remove(member)
        self._note_replaced(member.protocols)

    def _note_replaced(self, protocols: Protocols) -> None:
        for _name, metadata in protocols:
            if id(metadata) in self._current:
                self._current.remove(id(metadata))
                self._replaced_bytes += len(metadata)

    def _check_generation(self, generation: int) -> None:
        if generation != self.generation:
            raise GroupError(ErrorCode.ILLEGAL_GENERATION)


def _names(members: Iterable[Member]) -> str:
    return ", ".join(f"member {member.id}" for member in members)
