"""One consumer group of the classic protocol: a rendezvous that computes nothing itself.

Members join. When all of them have, or those who have not have had their time, the group has a new
generation: one protocol that all know, and one member that leads. The leader gets to know what each
member said when it joined, decides who gets what, and hands that in with its SyncGroup; everybody
else's SyncGroup is answered with it. From then on members send heartbeats, and whoever joins,
leaves, falls silent or wants something else starts it over.

Every method is an event: it takes the time, changes the group, and gives effects. Requests that
must wait are parked as tokens in their member; each is answered exactly once, by some later event.
See `states` for what each request gets in each state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ottla.protocol.api.heartbeat import HeartbeatResponse
from ottla.protocol.api.join_group import JoinGroupResponse, JoinGroupResponseMember
from ottla.protocol.api.sync_group import SyncGroupResponse
from ottla.protocol.errors import ErrorCode

from .deadlines import Deadlines
from .effects import Append, Effect, Reply
from .member import Join, Member
from .records import group_record
from .states import PREDECESSORS, GroupState

#: How long a new member may be parked in its first join: nothing else shows that it is alive.
NEW_MEMBER_TIMEOUT_MS = 5 * 60 * 1000


@dataclass(frozen=True, slots=True)
class ClassicGroupConfig:
    """What a group may be like."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 1_000


class Now(NamedTuple):
    """The time: on a clock that never jumps, for deadlines, and of the day, for what is stored."""

    tick_ms: int
    time_ms: int


class Timer(NamedTuple):
    """What is due: `kind` is session, pending, join or sync; the first two are a member's."""

    group_id: str
    kind: str
    member_id: str = ""


class GroupError(Exception):
    """A request that gets this code."""

    def __init__(self, code: ErrorCode) -> None:
        self.code = code
        super().__init__(code.message)


class Group:
    """A group. Its deadlines are set in `timers`, and come back through `expire`."""

    def __init__(self, group_id: str, config: ClassicGroupConfig, timers: Deadlines[Timer]) -> None:
        self.id = group_id
        self.config = config
        self.state = GroupState.EMPTY
        #: When its last member left, by the time of day: its offsets expire some time after that.
        self.empty_since_ms = -1
        self.generation = 0
        #: None for a group that has never had a member.
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        #: Ids that were given out, and have not come back to join.
        self.pending: dict[str, int] = {}
        self._timers = timers
        self._static: dict[str, str] = {}
        # In the first rebalance of an empty group: how much longer it may be delayed, and whether
        # somebody came during the delay.
        self._delay_left_ms: int | None = None
        self._has_newcomer = False
        self._not_synced: set[str] = set()
        # Whether the leader of this generation has said who gets what: it says so once.
        self._is_assigned = False

    def __repr__(self) -> str:
        return (
            f"<Group {self.id} {self.state.value}, generation {self.generation},"
            f" {len(self.members)} members>"
        )

    # Requests.

    def join(self, join: Join, token: Any, now: Now) -> list[Effect]:
        """Take a JoinGroup."""
        try:
            self._check_joins(join)
            if not join.member_id:
                return self._join_unknown(join, token, now)
            return self._join_known(join, token, now)
        except GroupError as error:
            return [Reply(token, refused_join(error.code, join.member_id))]

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
        """Take a SyncGroup; `protocol` is its type and name, where they are given."""
        try:
            member = self._member(member_id, instance_id)
            self._check_generation(generation)
            if any(
                given is not None and given != own
                for given, own in zip(protocol, (self.protocol_type, self.protocol), strict=True)
            ):
                raise GroupError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            if self.state is GroupState.PREPARING_REBALANCE:
                raise GroupError(ErrorCode.REBALANCE_IN_PROGRESS)
        except GroupError as error:
            return [Reply(token, SyncGroupResponse(error_code=error.code))]
        self._not_synced.discard(member_id)
        if self.state is GroupState.STABLE:
            self._restart_session(member, now)
            return [Reply(token, self._synced(member))]
        effects = self._unpark_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
        member.sync = token
        if member_id == self.leader and not self._is_assigned:
            self._is_assigned = True
            generation = self.generation
            given = {name: assignments.get(name, b"") for name in self.members}

            def stored(error: Exception | None) -> list[Effect]:
                return self._assigned(generation, given, error, now)

            effects.append(Append(self.id, [group_record(self, now.time_ms, given)], stored))
        return effects

    def heartbeat(
        self, member_id: str, instance_id: str | None, generation: int, token: Any, now: Now
    ) -> list[Effect]:
        """Take a Heartbeat."""
        try:
            member = self._member(member_id, instance_id)
            self._check_generation(generation)
        except GroupError as error:
            return [Reply(token, HeartbeatResponse(error_code=error.code))]
        self._restart_session(member, now)
        is_rebalancing = self.state is GroupState.PREPARING_REBALANCE
        code = ErrorCode.REBALANCE_IN_PROGRESS if is_rebalancing else ErrorCode.NONE
        return [Reply(token, HeartbeatResponse(error_code=code))]

    def leave(
        self, member_id: str, instance_id: str | None, now: Now
    ) -> tuple[ErrorCode, list[Effect]]:
        """Take one member of a LeaveGroup. Without an id, it is whoever has the instance id."""
        try:
            if not member_id and instance_id is not None:
                member_id = self._static.get(instance_id, "")
            if member_id in self.pending:
                self._forget_pending(member_id)
                return ErrorCode.NONE, self._complete_if_all_joined(now)
            member = self._member(member_id, instance_id)
        except GroupError as error:
            return error.code, []
        return ErrorCode.NONE, self._remove_and_go_on(member, now)

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, now: Now
    ) -> None:
        """Take note of an OffsetCommit. Raises GroupError if it may not be."""
        if generation < 0 and self.state is GroupState.EMPTY:
            return  # from somebody whose partitions are not assigned here
        member = self._member(member_id, instance_id)
        self._check_generation(generation)
        if self.state is GroupState.COMPLETING_REBALANCE:
            raise GroupError(ErrorCode.REBALANCE_IN_PROGRESS)
        self._restart_session(member, now)

    def expire(self, timer: Timer, now: Now) -> list[Effect]:
        """Take note that a time is over."""
        if timer.kind == "join":
            return self._join_is_over(now)
        if timer.kind == "sync":
            return self._sync_is_over(now)
        if timer.kind == "pending":
            self.pending.pop(timer.member_id, None)
            return self._complete_if_all_joined(now)
        member = self.members.get(timer.member_id)
        if member is None:
            return []
        if member.is_parked and not member.is_new:
            self._restart_session(member, now)
            return []
        return self._remove_and_go_on(member, now)

    def die(self) -> None:
        """End; there are no members."""
        for member_id in list(self.pending):
            self._forget_pending(member_id)
        self._become(GroupState.DEAD)

    # Questions.

    @property
    def is_dead(self) -> bool:
        """Whether it is being removed."""
        return self.state is GroupState.DEAD

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long its members may take to join again."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # What a start reads.

    def restore(self, generation: int, leader: str | None, members: Iterable[Member]) -> None:
        """Be what a record says; called before any request."""
        self.generation = generation
        self.leader = leader
        for member in members:
            member.is_new = False
            self.members[member.id] = member
            if member.instance_id is not None:
                self._static[member.instance_id] = member.id
        self.state = GroupState.STABLE if self.members else GroupState.EMPTY

    def restart_sessions(self, now: Now) -> None:
        """Give everybody who was there before a restart the time to say that they still are."""
        for member in self.members.values():
            self._restart_session(member, now)

    # Joining.

    def _check_joins(self, join: Join) -> None:
        if self.state is GroupState.DEAD:
            raise GroupError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        low, high = self.config.min_session_timeout_ms, self.config.max_session_timeout_ms
        if not low <= join.session_timeout_ms <= high:
            raise GroupError(ErrorCode.INVALID_SESSION_TIMEOUT)
        names = {name for name, _data in join.protocols}
        if not join.protocol_type or not names:
            raise GroupError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if self.members and join.protocol_type != self.protocol_type:
            raise GroupError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        others = [member for member in self.members.values() if member.id != join.member_id]
        if others and not names & self._candidates(others):
            raise GroupError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        is_known = (
            join.member_id in self.members
            or join.member_id in self.pending
            or (not join.member_id and join.instance_id in self._static)
        )
        if not is_known and len(self.members) + len(self.pending) >= self.config.max_size:
            raise GroupError(ErrorCode.GROUP_MAX_SIZE_REACHED)

    def _join_unknown(self, join: Join, token: Any, now: Now) -> list[Effect]:
        if join.instance_id is not None:
            member_id = f"{join.instance_id}-{join.unique}"
            if join.instance_id in self._static:
                return self._replace(self._static[join.instance_id], member_id, join, token, now)
            return self._add(member_id, join, token, now)
        member_id = f"{join.client_id}-{join.unique}"
        if not join.requires_known_id:
            return self._add(member_id, join, token, now)
        self.pending[member_id] = join.session_timeout_ms
        self._set_timer("pending", now.tick_ms + join.session_timeout_ms, member_id)
        return [Reply(token, refused_join(ErrorCode.MEMBER_ID_REQUIRED, member_id))]

    def _join_known(self, join: Join, token: Any, now: Now) -> list[Effect]:
        if join.member_id in self.pending and join.instance_id is None:
            self._forget_pending(join.member_id)
            return self._add(join.member_id, join, token, now)
        member = self._member(join.member_id, join.instance_id)
        has_changed = member.protocols != join.protocols
        if self.state is GroupState.PREPARING_REBALANCE:
            member.update(join)
            return self._park_join(member, token) + self._complete_if_all_joined(now)
        is_lost_answer = not has_changed and (
            self.state is GroupState.COMPLETING_REBALANCE or member.id != self.leader
        )
        if is_lost_answer:
            self._restart_session(member, now)
            return [Reply(token, self._joined(member))]
        member.update(join)
        return self._park_join(member, token) + self._prepare(now)

    def _add(self, member_id: str, join: Join, token: Any, now: Now) -> list[Effect]:
        if not self.members:
            self.protocol_type = join.protocol_type
        member = self.members[member_id] = Member.of(member_id, join)
        if member.instance_id is not None:
            self._static[member.instance_id] = member_id
        if self.leader is None:
            self.leader = member_id
        self._has_newcomer = True
        effects = self._park_join(member, token)
        self._set_timer("session", now.tick_ms + NEW_MEMBER_TIMEOUT_MS, member_id)
        if self.state is GroupState.PREPARING_REBALANCE:
            return effects + self._complete_if_all_joined(now)
        return effects + self._prepare(now)

    def _replace(self, old_id: str, new_id: str, join: Join, token: Any, now: Now) -> list[Effect]:
        """Let a static member come back under another id: its old one is fenced."""
        old = self.members.pop(old_id)
        self._timers.cancel(Timer(self.id, "session", old_id))
        effects = self._unpark(old, ErrorCode.FENCED_INSTANCE_ID)
        was_leader = self.leader == old_id
        old_leader = self.leader or ""
        member = self.members[new_id] = Member.of(new_id, join)
        member.assignment, member.is_new = old.assignment, False
        assert join.instance_id is not None
        self._static[join.instance_id] = new_id
        if was_leader:
            self.leader = new_id
        if old_id in self._not_synced:
            self._not_synced.remove(old_id)
            self._not_synced.add(new_id)
        self._restart_session(member, now)
        if self.state is GroupState.STABLE and self._choose() == self.protocol:
            # Nothing changes for the others. One that leads must not assign anew: newer clients
            # can be told so; older ones are told that somebody else leads.
            skips = was_leader and join.can_skip_assignment
            member.join = token

            def stored(error: Exception | None) -> list[Effect]:
                if self.state is not GroupState.STABLE or member.join is not token:
                    return []  # it waits with the others, or has been answered
                member.join = None
                self._prolong_session(member, now)
                if error is not None:
                    return [Reply(token, refused_join(ErrorCode.COORDINATOR_NOT_AVAILABLE))]
                answer = self._joined(member, leader=None if skips else old_leader, skips=skips)
                return [Reply(token, answer)]

            return [*effects, Append(self.id, [group_record(self, now.time_ms)], stored)]
        effects += self._park_join(member, token)
        if self.state is GroupState.PREPARING_REBALANCE:
            return effects + self._complete_if_all_joined(now)
        return effects + self._prepare(now)

    # Rebalancing.

    def _prepare(self, now: Now) -> list[Effect]:
        """Begin a rebalance."""
        effects: list[Effect] = []
        if self.state is GroupState.COMPLETING_REBALANCE:
            for member in self.members.values():
                member.assignment = b""
                if member.sync is not None:
                    self._prolong_session(member, now)
                effects += self._unpark_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
        self._cancel_timer("sync")
        self._not_synced.clear()
        was_empty = self.state is GroupState.EMPTY
        self._become(GroupState.PREPARING_REBALANCE)
        timeout = self.rebalance_timeout_ms
        delay = min(self.config.initial_rebalance_delay_ms, timeout)
        if was_empty and delay > 0:
            # Members of a new group come one after the other: one rebalance for all of them.
            self._delay_left_ms = timeout - delay
            self._has_newcomer = False
            self._set_timer("join", now.tick_ms + delay)
            return effects
        self._delay_left_ms = None
        self._set_timer("join", now.tick_ms + timeout)
        return effects + self._complete_if_all_joined(now)

    def _complete_if_all_joined(self, now: Now) -> list[Effect]:
        if (
            self.state is not GroupState.PREPARING_REBALANCE
            or self._delay_left_ms is not None
            or self.pending
            or any(member.join is None for member in self.members.values())
        ):
            return []
        return self._complete(now)

    def _join_is_over(self, now: Now) -> list[Effect]:
        if self._delay_left_ms and self._has_newcomer:
            delay = min(self.config.initial_rebalance_delay_ms, self._delay_left_ms)
            self._delay_left_ms -= delay
            self._has_newcomer = False
            self._set_timer("join", now.tick_ms + delay)
            return []
        return self._complete(now)

    def _complete(self, now: Now) -> list[Effect]:
        """End the wait for joins: there is a new generation."""
        self._delay_left_ms = None
        self._cancel_timer("join")
        for member in [m for m in self.members.values() if m.join is None]:
            if member.instance_id is None:
                self._remove(member)  # nothing of it is parked
        joined = [member for member in self.members.values() if member.join is not None]
        if self.members and not joined:
            # Static members have until the end of their session to come back.
            timeout = max(self.rebalance_timeout_ms, self.config.min_session_timeout_ms)
            self._set_timer("join", now.tick_ms + timeout)
            return []
        self.generation += 1
        if not self.members:
            self._become(GroupState.EMPTY)
            self.empty_since_ms = now.time_ms
            self.protocol = self.leader = None
            return [Append(self.id, [group_record(self, now.time_ms)], lambda _error: [])]
        if self.leader not in self.members or self.members[self.leader].join is None:
            self.leader = joined[0].id
        self.protocol = self._choose()
        self._become(GroupState.COMPLETING_REBALANCE)
        self._is_assigned = False
        self._not_synced = set(self.members)
        self._set_timer("sync", now.tick_ms + self.rebalance_timeout_ms)
        effects: list[Effect] = []
        for member in self.members.values():
            token, member.join = member.join, None
            member.is_new = False
            if token is not None:
                effects.append(Reply(token, self._joined(member)))
                self._restart_session(member, now)
        return effects

    def _assigned(
        self, generation: int, given: Mapping[str, bytes], error: Exception | None, now: Now
    ) -> list[Effect]:
        """Hand out the assignments that the leader made, now that they are written down."""
        if self.state is not GroupState.COMPLETING_REBALANCE or generation != self.generation:
            return []  # it has gone on since, and answered those who waited
        if error is not None:
            return self._prepare(now)
        for member in self.members.values():
            member.assignment = given.get(member.id, b"")
        self._become(GroupState.STABLE)
        effects: list[Effect] = []
        for member in self.members.values():
            token, member.sync = member.sync, None
            if token is not None:
                effects.append(Reply(token, self._synced(member)))
                self._prolong_session(member, now)
        return effects

    def _sync_is_over(self, now: Now) -> list[Effect]:
        """Remove who was given a generation and never asked for its assignment."""
        effects: list[Effect] = []
        late = [self.members[name] for name in self._not_synced if name in self.members]
        self._not_synced.clear()
        for member in late:
            effects += self._remove(member)
        return effects + self._prepare(now) if late else effects

    def _remove_and_go_on(self, member: Member, now: Now) -> list[Effect]:
        effects = self._remove(member)
        if self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            return effects + self._prepare(now)
        return effects + self._complete_if_all_joined(now)

    def _remove(self, member: Member) -> list[Effect]:
        del self.members[member.id]
        self._timers.cancel(Timer(self.id, "session", member.id))
        self._not_synced.discard(member.id)
        if member.instance_id is not None:
            self._static.pop(member.instance_id, None)
        if self.leader == member.id:
            joined = (m.id for m in self.members.values() if m.join is not None)
            self.leader = next(joined, next(iter(self.members), None))
        return self._unpark(member, ErrorCode.UNKNOWN_MEMBER_ID)

    # Small things.

    def _become(self, state: GroupState) -> None:
        if state is not self.state:
            assert self.state in PREDECESSORS[state], f"{self.state} → {state}"
            self.state = state

    def _member(self, member_id: str, instance_id: str | None) -> Member:
        """Give a member that is who it says it is. Raises GroupError."""
        if self.state is GroupState.DEAD:
            raise GroupError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if instance_id is not None:
            current = self._static.get(instance_id)
            if current is not None and current != member_id:
                raise GroupError(ErrorCode.FENCED_INSTANCE_ID)
            if current is None:
                raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID)
        member = self.members.get(member_id)
        if member is None:
            raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def _check_generation(self, generation: int) -> None:
        if generation != self.generation:
            raise GroupError(ErrorCode.ILLEGAL_GENERATION)

    def _candidates(self, members: Iterable[Member]) -> frozenset[str]:
        """Give the protocols that all of these have."""
        return frozenset.intersection(*{member.names for member in members})

    def _choose(self) -> str | None:
        """Choose a protocol that all have: each votes for its favourite of those."""
        candidates = self._candidates(self.members.values())
        if not candidates:
            return None
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def _joined(
        self, member: Member, *, leader: str | None = None, skips: bool = False
    ) -> JoinGroupResponse:
        leader = leader or self.leader or ""
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol,
            leader=leader,
            skip_assignment=skips,
            member_id=member.id,
            members=[
                JoinGroupResponseMember(
                    member_id=other.id,
                    group_instance_id=other.instance_id,
                    metadata=other.metadata(self.protocol),
                )
                for other in self.members.values()
            ]
            if leader == member.id
            else (),
        )

    def _synced(self, member: Member) -> SyncGroupResponse:
        return SyncGroupResponse(
            protocol_type=self.protocol_type,
            protocol_name=self.protocol,
            assignment=member.assignment,
        )

    def _park_join(self, member: Member, token: Any) -> list[Effect]:
        """Park a join in the place of one that the member must have given up on."""
        effects: list[Effect] = []
        if member.join is not None:
            answer = refused_join(ErrorCode.REBALANCE_IN_PROGRESS, member.id)
            effects.append(Reply(member.join, answer))
        effects += self._unpark_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
        member.join = token
        return effects

    def _unpark_sync(self, member: Member, code: ErrorCode) -> list[Effect]:
        token, member.sync = member.sync, None
        return [] if token is None else [Reply(token, SyncGroupResponse(error_code=code))]

    def _unpark(self, member: Member, code: ErrorCode) -> list[Effect]:
        """Answer whatever a member that is no more was waiting for."""
        token, member.join = member.join, None
        effects = self._unpark_sync(member, code)
        return effects if token is None else [*effects, Reply(token, refused_join(code, member.id))]

    def _restart_session(self, member: Member, now: Now) -> None:
        self._set_timer("session", now.tick_ms + member.session_timeout_ms, member.id)

    def _prolong_session(self, member: Member, now: Now) -> None:
        """Restart a session, but not from a time that was long ago: writing may take its time."""
        timer = Timer(self.id, "session", member.id)
        self._timers.postpone(timer, now.tick_ms + member.session_timeout_ms)

    def _forget_pending(self, member_id: str) -> None:
        del self.pending[member_id]
        self._timers.cancel(Timer(self.id, "pending", member_id))

    def _set_timer(self, kind: str, when: int, member_id: str = "") -> None:
        self._timers.set(Timer(self.id, kind, member_id), when)

    def _cancel_timer(self, kind: str) -> None:
        self._timers.cancel(Timer(self.id, kind))


def refused_join(code: ErrorCode, member_id: str = "") -> JoinGroupResponse:
    """Give the answer to a join that gets an error."""
    return JoinGroupResponse(error_code=code, member_id=member_id, protocol_name="")
