"""A stage for the group coordinator: a clock, a log, and calls that are answered exactly once.

Nothing here is the coordinator's: the stage does what a broker does with its effects, in order, and
lets a test say when time passes, when a write is done, and when the coordinator is another one.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from ottla.coord.effects import Append, Effect, Reply
from ottla.coord.group import ClassicGroupConfig, Group, Now
from ottla.coord.group_shard import (
    GroupCoordinatorConfig,
    GroupShard,
    MemberIdentity,
    TopicPartition,
)
from ottla.coord.member import Join, Protocols
from ottla.coord.metadata_image import KeyValue
from ottla.coord.records import CommittedOffset
from ottla.coord.states import GroupState
from ottla.protocol.compiler import codec
from ottla.protocol.consumer import ConsumerProtocolSubscription

#: The time of day when the clock is at 0.
EPOCH_MS = 1_700_000_000_000
HOST = "/10.0.0.1"
MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS


def subscription(*topics: str) -> bytes:
    """What a consumer says that it wants."""
    message = ConsumerProtocolSubscription(topics=topics)
    return bytes(codec(ConsumerProtocolSubscription, 0).encode(message, bytearray(b"\0\0"), []))


RANGE: Protocols = (("range", subscription("orders")),)


def a_config(**changes: Any) -> GroupCoordinatorConfig:
    """Settings, with those of groups among the others."""
    of_groups = {
        name: changes.pop(name) for name in list(changes) if hasattr(ClassicGroupConfig, name)
    }
    return GroupCoordinatorConfig(group=ClassicGroupConfig(**of_groups), **changes)


@dataclass(eq=False)
class Call:
    """A request: its answer is None for as long as it waits."""

    who: str
    what: str
    answer: Any = None

    @property
    def code(self) -> str:
        return self.answer.error_code.name if self.answer.error_code else "NONE"


class Stage:
    """One coordinator and its surroundings. `log` has what was written."""

    def __init__(self, config: GroupCoordinatorConfig | None = None) -> None:
        self.tick_ms = 0
        self.config = config or a_config()
        self.coordinator = GroupShard(self.config)
        self.log: list[KeyValue] = []
        #: Writes that are not done yet, while `holds`.
        self.held: deque[Append] = deque()
        self.holds = False
        self.waiting: list[Call] = []
        self.on_answer: Callable[[Call], None] = lambda call: None
        self.on_write: Callable[[Append], None] = lambda store: None
        self._uniques: defaultdict[str, count[int]] = defaultdict(lambda: count(1))

    @property
    def now(self) -> Now:
        return Now(self.tick_ms, EPOCH_MS + self.tick_ms)

    @property
    def group(self) -> Group:
        return self.coordinator.groups["g"]

    @property
    def state(self) -> GroupState | None:
        group = self.coordinator.groups.get("g")
        return group and group.state

    # Requests.

    def join(
        self,
        who: str,
        member_id: str = "",
        *,
        instance_id: str | None = None,
        protocols: Protocols = RANGE,
        version: int = 9,
        session_ms: int = 10_000,
        rebalance_ms: int = MINUTE_MS,
        protocol_type: str = "consumer",
        group_id: str = "g",
    ) -> Call:
        join = Join(
            member_id=member_id,
            instance_id=instance_id,
            client_id=who,
            client_host=HOST,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            protocol_type=protocol_type,
            protocols=protocols,
            unique=str(next(self._uniques[instance_id or who])) if not member_id else "",
            requires_known_id=version >= 4,
            can_skip_assignment=version >= 9,
        )
        return self._call(
            who, "join", lambda call: self.coordinator.join(group_id, join, call, self.now)
        )

    def sync(
        self,
        who: str,
        identity: MemberIdentity,
        assignments: Mapping[str, bytes] | None = None,
        protocol: tuple[str | None, str | None] = (None, None),
        group_id: str = "g",
    ) -> Call:
        def event(call: Call) -> list[Effect]:
            return self.coordinator.sync(
                group_id, identity, protocol, assignments or {}, call, self.now
            )

        return self._call(who, "sync", event)

    def heartbeat(self, who: str, identity: MemberIdentity, group_id: str = "g") -> Call:
        return self._call(
            who,
            "heartbeat",
            lambda call: self.coordinator.heartbeat(group_id, identity, call, self.now),
        )

    def leave(self, who: str, *members: tuple[str, str | None], group_id: str = "g") -> Call:
        return self._call(
            who, "leave", lambda call: self.coordinator.leave(group_id, members, call, self.now)
        )

    def commit(
        self,
        who: str,
        identity: MemberIdentity,
        offsets: Mapping[TopicPartition, int],
        metadata: str = "",
        version: int = 9,
        group_id: str = "g",
    ) -> Call:
        time_ms = self.now.time_ms

        def event(call: Call) -> list[Effect]:
            return self.coordinator.commit(
                group_id,
                identity,
                {
                    place: CommittedOffset(at, -1, metadata, time_ms)
                    for place, at in offsets.items()
                },
                lambda codes: Reply(call, codes),
                self.now,
                knows_missing_groups=version >= 9,
            )

        return self._call(who, "commit", event)

    def delete_groups(self, who: str, *group_ids: str) -> Call:
        return self._call(
            who,
            "delete groups",
            lambda call: self.coordinator.delete_groups(
                group_ids, lambda codes: Reply(call, dict(codes))
            ),
        )

    def delete_offsets(self, who: str, *places: TopicPartition, group_id: str = "g") -> Call:
        return self._call(
            who,
            "delete offsets",
            lambda call: self.coordinator.delete_offsets(
                group_id, places, lambda code, codes: Reply(call, (code, codes))
            ),
        )

    def forget_topic(self, name: str) -> None:
        self._run(self.coordinator.forget_topic(name))

    def clean_up(self) -> None:
        self._run(self.coordinator.clean_up(self.now))

    def committed(self, group_id: str = "g") -> dict[TopicPartition, int]:
        return {p: c.offset for p, c in self.coordinator.committed(group_id).items()}

    # Time.

    def wait(self, ms: int) -> None:
        """Let time pass, and each deadline be noticed when it is there."""
        end_ms = self.tick_ms + ms
        while (next_ms := self.coordinator.timers.next()) is not None and next_ms <= end_ms:
            self.jump(next_ms - self.tick_ms)
        self.jump(end_ms - self.tick_ms)

    def jump(self, ms: int) -> None:
        """Let time pass that nobody looks at: what is due is noticed at the end."""
        self.tick_ms += max(ms, 0)
        self._run(self.coordinator.expire(self.now))

    # Writing.

    def release(self, error: Exception | None = None) -> None:
        """Let the first of the writes that are held be done, or fail."""
        self._done(self.held.popleft(), error)

    def release_all(self) -> None:
        while self.held:
            self.release()

    # The end.

    def restart(self, survivors: int = 0) -> list[Call]:
        """Be another coordinator, which reads the log, with so many writes that were not done.

        Gives the calls that get no answer any more.
        """
        for store in list(self.held)[:survivors]:
            self.log.extend(store.records)
        self.held.clear()
        self.coordinator = replayed(self.log, self.config)
        self.coordinator.loaded({*self.coordinator.groups, *self.coordinator.offsets}, self.now)
        lost, self.waiting = self.waiting, []
        return lost

    def _call(self, who: str, what: str, event: Callable[[Call], list[Effect]]) -> Call:
        call = Call(who, what)
        self.waiting.append(call)
        self._run(event(call))
        return call

    def _run(self, effects: Iterable[Effect]) -> None:
        todo = deque(effects)
        while todo:
            effect = todo.popleft()
            if isinstance(effect, Reply):
                call = effect.token
                assert call in self.waiting, f"{call} is answered again: {effect.response}"
                self.waiting.remove(call)
                call.answer = effect.response
                self.on_answer(call)
            elif self.holds or self.held:
                self.held.append(effect)
                self.on_write(effect)
            else:
                self.on_write(effect)
                self.log.extend(effect.records)
                todo.extend(effect.stored(None))

    def _done(self, store: Append, error: Exception | None) -> None:
        if error is None:
            self.log.extend(store.records)
        self._run(store.stored(error))


def replayed(log: Iterable[KeyValue], config: GroupCoordinatorConfig) -> GroupShard:
    """Give a coordinator that has read a log."""
    coordinator = GroupShard(config)
    for key, value in log:
        coordinator.replay(key, value)
    return coordinator
