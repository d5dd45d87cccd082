"""A stage for a group shard: a clock, a log, and calls that are answered exactly once.

The stage does what a broker does with the effects of a shard, in order. A test decides when time
passes, when an append completes, and when the shard is loaded again from the log.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

from ottla.coord.config import (
    ClassicGroupConfig,
    ConsumerGroupConfig,
    GroupCoordinatorConfig,
)
from ottla.coord.consumer.coordinator import ConsumerHeartbeat
from ottla.coord.deadlines import Now
from ottla.coord.effects import Append, Compute, Effect, Gather, LogMessage, Reply
from ottla.coord.group_shard import AnyGroup, GroupShard, MemberIdentity
from ottla.coord.member import Join, Protocols
from ottla.coord.metadata_image import KeyValue, MetadataImage, Topic, TopicPartition, topic_record
from ottla.coord.records import CommittedOffset
from ottla.coord.share.coordinator import ShareGroups, ShareHeartbeat
from ottla.protocol.compiler import codec
from ottla.protocol.consumer import ConsumerProtocolSubscription
from ottla.protocol.errors import ErrorCode
from ottla.protocol.primitives import NIL_UUID

#: The time of day when the monotonic clock is at 0.
EPOCH_MS = 1_700_000_000_000
HOST = "/10.0.0.1"
MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS


def subscription(*topics: str) -> bytes:
    """The metadata of a consumer that subscribes to these topics."""
    message = ConsumerProtocolSubscription(topics=topics)
    return bytes(codec(ConsumerProtocolSubscription, 0).encode(message, bytearray(b"\0\0"), []))


RANGE: Protocols = (("range", subscription("orders")),)


def a_config(**configs: Any) -> GroupCoordinatorConfig:
    """A config, with those of a single group among the others."""
    group_configs = {
        name: configs.pop(name) for name in list(configs) if hasattr(ClassicGroupConfig, name)
    }
    consumer_configs = {
        name: configs.pop(name) for name in list(configs) if hasattr(ConsumerGroupConfig, name)
    }
    return GroupCoordinatorConfig(
        group=ClassicGroupConfig(**group_configs),
        consumer=ConsumerGroupConfig(**consumer_configs),
        **configs,
    )


@dataclass(eq=False)
class Call:
    """A request: its answer is None while it waits."""

    who: str
    what: str
    answer: Any = None

    @property
    def code(self) -> str:
        return self.answer.error_code.name if self.answer.error_code else "NONE"


class Stage:
    """One shard and its surroundings. `log` has what was appended."""

    def __init__(self, config: GroupCoordinatorConfig | None = None) -> None:
        self.tick_ms = 0
        self.config = config or a_config()
        self.log: list[KeyValue] = []
        #: The topics that exist.
        self.image = MetadataImage()
        self.shard = loaded([], self.config, self.now, self.image)
        #: What was logged.
        self.messages: list[LogMessage] = []
        #: Appends that have not completed yet, while `holds`.
        self.held: deque[Append] = deque()
        self.holds = False
        #: What was gathered and is not complete yet, while `gathers`.
        self.gathered: list[Gather] = []
        self.gathers = False
        #: What a thread computes, while `computes`.
        self.computing: list[Compute] = []
        self.computes = False
        self.waiting: list[Call] = []
        self.on_answer: Callable[[Call], None] = lambda call: None
        self.on_append: Callable[[Append], None] = lambda append: None
        self._uniques: defaultdict[str, count[int]] = defaultdict(lambda: count(1))

    @property
    def now(self) -> Now:
        return Now(self.tick_ms, EPOCH_MS + self.tick_ms)

    @property
    def group(self) -> AnyGroup:
        return self.shard.groups["g"]

    @property
    def state(self) -> Any:
        group = self.shard.groups.get("g")
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
        return self._call(who, "join", lambda call: self.shard.join(group_id, join, call, self.now))

    def sync(
        self,
        who: str,
        identity: MemberIdentity,
        assignments: Mapping[str, bytes] | None = None,
        protocol: tuple[str | None, str | None] = (None, None),
        group_id: str = "g",
    ) -> Call:
        def event(call: Call) -> list[Effect]:
            return self.shard.sync(group_id, identity, protocol, assignments or {}, call, self.now)

        return self._call(who, "sync", event)

    def heartbeat(self, who: str, identity: MemberIdentity, group_id: str = "g") -> Call:
        return self._call(
            who,
            "heartbeat",
            lambda call: self.shard.heartbeat(group_id, identity, call, self.now),
        )

    def consumer_heartbeat(self, who: str, heartbeat: ConsumerHeartbeat) -> Call:
        return self._call(
            who,
            "consumer heartbeat",
            lambda call: self.shard.consumer_heartbeat(heartbeat, call, self.now),
        )

    def share_heartbeat(self, who: str, heartbeat: ShareHeartbeat) -> Call:
        return self._call(
            who,
            "share heartbeat",
            lambda call: self.shard.share_heartbeat(heartbeat, call, self.now),
        )

    def share_event(self, event: Callable[[ShareGroups, Call], list[Effect]]) -> Call:
        """Handle a request about the states of share partitions."""
        return self._call("leader", "state", lambda call: event(self.shard.share_groups, call))

    def create_topic(self, name: str, partitions: int) -> Topic:
        """Create a topic, or give it so many partitions."""
        existing = self.image.topics.get(name)
        topic_id = uuid5(NAMESPACE_OID, f"{name}{len(self.image.topics)}")
        topic = Topic(name, existing.id if existing else topic_id, ((0,),) * partitions, {})
        self.image.replay(*topic_record(topic))
        return topic

    def leave(self, who: str, *members: tuple[str, str | None], group_id: str = "g") -> Call:
        return self._call(
            who, "leave", lambda call: self.shard.leave(group_id, members, call, self.now)
        )

    def commit(
        self,
        who: str,
        identity: MemberIdentity,
        offsets: Mapping[tuple[str, int], int],
        metadata: str = "",
        version: int = 9,
        group_id: str = "g",
        topic_id: UUID = NIL_UUID,
    ) -> Call:
        time_ms = self.now.time_ms

        def event(call: Call) -> list[Effect]:
            return self.shard.commit(
                group_id,
                identity,
                {
                    TopicPartition(*tp): CommittedOffset(offset, -1, metadata, time_ms, topic_id)
                    for tp, offset in offsets.items()
                },
                lambda codes: Reply(call, codes),
                self.now,
                version=version,
            )

        return self._call(who, "commit", event)

    def delete_groups(self, who: str, *group_ids: str) -> Call:
        return self._call(
            who,
            "delete groups",
            lambda call: self.shard.delete_groups(
                group_ids, lambda codes: Reply(call, dict(codes))
            ),
        )

    def delete_offsets(
        self, who: str, *topic_partitions: tuple[str, int], group_id: str = "g"
    ) -> Call:
        return self._call(
            who,
            "delete offsets",
            lambda call: self.shard.delete_offsets(
                group_id,
                [TopicPartition(*tp) for tp in topic_partitions],
                lambda code, codes: Reply(call, (code, codes)),
            ),
        )

    def delete_topic(self, name: str) -> None:
        self._run(self.shard.delete_topics([name]))

    def clean_up(self) -> None:
        self._run(self.shard.clean_up(self.now))

    def committed(self, group_id: str = "g") -> dict[TopicPartition, int]:
        return {tp: c.offset for tp, c in self.shard.offsets.of_group(group_id).items()}

    # Time.

    def wait(self, ms: int) -> None:
        """Let time pass, with each timer handled when it is due."""
        end_ms = self.tick_ms + ms
        while (next_ms := self.shard.deadlines.next()) is not None and next_ms <= end_ms:
            self.jump(next_ms - self.tick_ms)
        self.jump(end_ms - self.tick_ms)

    def jump(self, ms: int) -> None:
        """Let time pass at once: timers that are due are handled at the end."""
        self.tick_ms += max(ms, 0)
        self._run(self.shard.expire(self.now))

    # Appends.

    def release(self, code: ErrorCode = ErrorCode.NONE) -> None:
        """Complete the first append that is held, or let it fail."""
        self._run(self._complete(self.held.popleft(), code))

    def release_all(self) -> None:
        while self.held:
            self.release()

    def complete_gathered(self) -> None:
        """Complete what requests have gathered."""
        while self.gathered:
            self._run(self.gathered.pop(0).complete())

    def complete_computation(self) -> None:
        """Complete the first computation of a thread."""
        effect = self.computing.pop(0)
        self._run(effect.complete(effect.work()))

    # The end.

    def restart(self, survivors: int = 0) -> list[Call]:
        """Load the shard again from the log, to which so many held appends were written.

        Returns the calls that are never answered.
        """
        for append in list(self.held)[:survivors]:
            self.log.extend(map(GroupShard.encode, append.records))
        self.held.clear()
        self.gathered.clear()
        self.computing.clear()
        self.shard = loaded(self.log, self.config, self.now, self.image)
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
                continue
            if isinstance(effect, LogMessage):
                self.messages.append(effect)
                continue
            if isinstance(effect, Gather):
                if self.gathers:
                    self.gathered.append(effect)
                else:
                    todo.extend(effect.complete())
                continue
            if isinstance(effect, Compute):
                # What a turn is held for is computed at once.
                if self.computes and "g" not in self.shard.turns:
                    self.computing.append(effect)
                else:
                    todo.extend(effect.complete(effect.work()))
                continue
            self.on_append(effect)
            if self.holds or self.held:
                self.held.append(effect)
            else:
                todo.extend(self._complete(effect, ErrorCode.NONE))

    def _complete(self, append: Append, code: ErrorCode) -> list[Effect]:
        if code is ErrorCode.NONE:
            self.log.extend(map(GroupShard.encode, append.records))
            for record in append.records:
                self.shard.replay(record)
        return append.complete(code)


def loaded(
    log: Iterable[KeyValue],
    config: GroupCoordinatorConfig,
    now: Now,
    image: MetadataImage | None = None,
) -> GroupShard:
    """A shard that has replayed a log: the last record of each key, as the broker does."""
    topics = image or MetadataImage()
    shard = GroupShard(config, image=lambda: topics)
    latest: dict[bytes, bytes | None] = {}
    for key, value in log:
        latest.pop(key, None)
        latest[key] = value
    for key, value in latest.items():
        record = GroupShard.decode(key, value)
        if record is not None:
            shard.replay(record)
    shard.activate(now)
    return shard
