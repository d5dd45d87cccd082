"""Members of groups on a stage: each behaves as a real client of its protocol does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from harness.group_stage import HOST, Call, Stage, subscription
from ottla.coord.consumer.coordinator import ConsumerHeartbeat
from ottla.coord.consumer.migration import encode_assignment
from ottla.coord.consumer.partitions import Partitions, TopicIdPartition, partitions_of
from ottla.coord.group_shard import MemberIdentity
from ottla.protocol.compiler import codec
from ottla.protocol.consumer import ConsumerProtocolAssignment
from ottla.protocol.primitives import NIL_UUID


@dataclass
class Agent:
    """A member: what it subscribes to, and what it knows of its membership."""

    stage: Stage
    name: str
    topics: tuple[str, ...] | None = ("orders",)
    regex: str | None = None
    instance_id: str | None = None
    assignor: str | None = None
    rebalance_ms: int = 60_000
    group_id: str = "g"
    member_id: str = ""
    epoch: int = 0
    owned: frozenset[TopicIdPartition] = field(default_factory=frozenset)
    #: What it was told to have.
    assigned: Partitions = frozenset()
    #: What it reported last; None: it has to report.
    reported: Partitions | None = None
    last: Any = None

    def __post_init__(self) -> None:
        self.member_id = self.member_id or self.name

    def send(self, **changes: Any) -> Call:
        """Send a heartbeat with the member's identity, and anything else."""
        fields = {
            "group_id": self.group_id,
            "member_id": self.member_id,
            "epoch": self.epoch,
            "client_id": self.name,
            "client_host": HOST,
            "instance_id": self.instance_id,
        }
        if changes.get("owned") is not None:
            self.owned = self.reported = changes["owned"]
        call = self.stage.consumer_heartbeat(self.name, ConsumerHeartbeat(**(fields | changes)))
        self.last = call
        return call

    def join(self, **changes: Any) -> Call:
        self.epoch, self.owned, self.assigned = 0, frozenset(), frozenset()
        call = self.send(
            **{
                "epoch": 0,
                "rebalance_timeout_ms": self.rebalance_ms,
                "topics": self.topics,
                "regex": self.regex,
                "assignor": self.assignor,
                "owned": frozenset(),
            }
            | changes
        )
        self.reported = frozenset()
        self.read(call)
        return call

    def beat(self, **changes: Any) -> Call:
        """Send a heartbeat: with the owned partitions, if they were not reported yet."""
        owned = None if self.reported == self.owned else self.owned
        call = self.send(**({"owned": owned} | changes))
        self.read(call)
        return call

    def step(self) -> str:
        """Revoke what has to be, take what is new, and send a heartbeat; return its code."""
        return self.finish_step(self.start_step())

    def start_step(self) -> Call:
        self.owned = self.owned & self.assigned if self.owned - self.assigned else self.assigned
        return self.join() if self.epoch <= 0 else self.beat()

    def finish_step(self, call: Call) -> str:
        self.read(call)
        if call.answer is not None and call.answer.error_code:
            self.epoch, self.owned, self.assigned = 0, frozenset(), frozenset()
            self.reported = None
        return "waits" if call.answer is None else call.code

    def read(self, call: Call) -> None:
        """Learn from a response."""
        answer = call.answer
        if answer is None or answer.error_code:
            return
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.assigned = partitions_of(answer.assignment.topic_partitions)

    def leave(self, epoch: int = -1) -> Call:
        call = self.send(epoch=epoch)
        self.epoch, self.owned, self.assigned = 0, frozenset(), frozenset()
        return call

    def commit(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        epoch: int | None = None,
        topic_id: UUID = NIL_UUID,
    ) -> Call:
        identity = MemberIdentity(
            self.member_id, self.instance_id, self.epoch if epoch is None else epoch
        )
        return self.stage.commit(
            self.name, identity, {(topic, partition): offset}, topic_id=topic_id
        )

    @property
    def indexes(self) -> list[int]:
        """The partitions that it was told to have, by index alone."""
        return sorted(tp.partition for tp in self.assigned)

    def shown(self, call: Call) -> str:
        """An answer: the epoch, and the partitions if there are any in it."""
        answer = call.answer
        if answer.error_code:
            return call.code
        if answer.assignment is None:
            return f"{answer.member_epoch}"
        indexes = sorted(
            index for topic in answer.assignment.topic_partitions for index in topic.partitions
        )
        return f"{answer.member_epoch} {indexes}"


def step_together(stage: Stage, agents: Iterable[Agent]) -> list[str]:
    """Let members send heartbeats that arrive at once; return their codes."""
    stage.gathers = True
    calls = [(agent, agent.start_step()) for agent in agents]
    stage.gathers = False
    stage.complete_gathered()
    return [agent.finish_step(call) for agent, call in calls]


class Classic:
    """A member of the classic protocol: eager, so that it owns nothing when it joins."""

    def __init__(self, stage: Stage, name: str, instance_id: str | None = None) -> None:
        self.stage, self.name, self.instance_id = stage, name, instance_id
        self.member_id, self.generation = "", -1
        self.assigned: list[int] = []
        self.joining = None

    @property
    def identity(self) -> MemberIdentity:
        return MemberIdentity(self.member_id, self.instance_id, self.generation)

    def join(self) -> str:
        call = self.stage.join(
            self.name,
            self.member_id,
            instance_id=self.instance_id,
            protocols=(("range", subscription("orders")),),
            version=3,
        )
        self.joining = call
        return self.joined()

    def joined(self) -> str:
        answer = self.joining.answer
        if answer is None:
            return "waits"
        if not answer.error_code:
            self.member_id, self.generation = answer.member_id, answer.generation_id
        return self.joining.code

    def sync(self, assignments: dict[str, list[int]] | None = None) -> str:
        topic_id = self.stage.image.topics["orders"].id
        encoded = {
            member_id: encode_assignment(
                [TopicIdPartition(topic_id, index) for index in indexes], self.stage.image
            )
            for member_id, indexes in (assignments or {}).items()
        }
        call = self.stage.sync(self.name, self.identity, encoded)
        if call.code == "NONE":
            data = memoryview(call.answer.assignment)
            decoded, _end = codec(ConsumerProtocolAssignment, 0).decode(data, 2)
            self.assigned = [
                index for topic in decoded.assigned_partitions for index in topic.partitions
            ]
        return call.code

    def beat(self) -> str:
        return self.stage.heartbeat(self.name, self.identity).code

    def follow(self) -> None:
        """Send a heartbeat, and join again if it says so."""
        if self.beat() == "REBALANCE_IN_PROGRESS":
            self.assigned = []
            assert self.join() == "NONE"
            assert self.sync() == "NONE"
