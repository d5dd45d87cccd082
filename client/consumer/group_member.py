"""Being a member of a consumer group: joining, getting a share, staying alive, leaving.

    UNJOINED ──join──▶ JOINING ──answered──▶ SYNCING ──share──▶ STABLE
        ▲                 │                     │                  │
        └─────refused─────┴──────refused────────┘                  │
        └──rebalance: what must be is let go of, and it joins again┘
        └──forgotten by the group: all that it had is lost─────────┘

An *eager* member lets go of everything before it joins again. A *cooperative* one keeps what it has
while it joins, learns from its share what it is to let go of, and if that is anything, does it and
joins once more (KIP-429). It is cooperative if all of its assignors are.

What the group is told by which request, and what each error means, is in `verdict_of`. Heartbeats
go over a connection of their own: a join may wait for minutes.
"""

from __future__ import annotations

import asyncio
import logging
import random
import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from ottla.protocol.api.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.api.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from ottla.protocol.api.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from ottla.protocol.api.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from ottla.protocol.compiler import codec
from ottla.protocol.consumer import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartitions,
)
from ottla.protocol.errors import DecodeError, ErrorCode, Retry
from ottla.protocol.registry import LEAVE_GROUP
from ottla.protocol.schema import Buffer

from ..cluster import Cluster
from ..errors import ClientError, KafkaError
from ..offsets import group_by_topic, kafka_error
from ..types import TopicPartition
from .assignors import Assignor, Member
from .subscription import partition_counts

logger = logging.getLogger(__name__)

# What we write; what others write is read as far as it is known. Version 2 has all that is used.
_SUBSCRIPTION_VERSION = 2
_ASSIGNMENT_VERSION = 0
_FIRST_TO_LEAVE_TOGETHER = 3
_VERSION = struct.Struct(">h")
_GENERATION = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """How a member and its group treat each other. Times are in seconds."""

    #: A member that was silent for so long is taken for dead.
    session_timeout: float = 45.0
    #: How long members may take to join again when the group rebalances.
    rebalance_timeout: float = 300.0
    heartbeat_interval: float = 3.0
    #: How long the group waits for the application to be done with what it has in hand.
    processing_timeout: float = 30.0

    def __post_init__(self) -> None:
        for name in ("session_timeout", "rebalance_timeout", "heartbeat_interval"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name):g}: it must be positive")
        if self.heartbeat_interval >= self.session_timeout:
            raise ValueError(
                f"heartbeat_interval is {self.heartbeat_interval:g}: it must be shorter than"
                f" session_timeout, which is {self.session_timeout:g}"
            )
        if self.processing_timeout < 0:
            raise ValueError(f"processing_timeout is {self.processing_timeout:g}")

    @property
    def patience(self) -> float:
        """How long what is in hand may hold up a rebalance, and leave time for the rest of it."""
        return min(self.processing_timeout, 0.8 * self.rebalance_timeout)


class Verdict(Enum):
    """What to do about an answer of the coordinator."""

    FINE = "go on"
    REJOIN = "join again, with what the member is and has"
    STALE = "join again; the group has gone on without this member, whose partitions are lost"
    FORGOTTEN = "join again as somebody new; partitions are lost"
    LATER = "ask again later"
    ELSEWHERE = "ask again later, whoever is the coordinator then"
    FATAL = "give up"


_VERDICTS = {
    ErrorCode.NONE: Verdict.FINE,
    ErrorCode.REBALANCE_IN_PROGRESS: Verdict.REJOIN,
    ErrorCode.MEMBER_ID_REQUIRED: Verdict.REJOIN,
    ErrorCode.ILLEGAL_GENERATION: Verdict.STALE,
    ErrorCode.UNKNOWN_MEMBER_ID: Verdict.FORGOTTEN,
}


def verdict_of(code: int) -> Verdict:
    """Say what to do about an error code."""
    known = ErrorCode.of(code)
    if known in _VERDICTS:
        return _VERDICTS[known]
    by_retry = {
        Retry.LATER: Verdict.LATER,
        Retry.REFRESHED: Verdict.ELSEWHERE,
        Retry.NEVER: Verdict.FATAL,
    }
    return by_retry[known.retry]


class MemberState(Enum):
    """Where a member stands; the drawing above says how it gets there."""

    UNJOINED = "unjoined"
    JOINING = "joining"
    SYNCING = "syncing"
    STABLE = "stable"


class Owner(Protocol):
    """Whose partitions they are: the consumer."""

    def wanted_topics(self) -> Collection[str]:
        """Give what it is subscribed to."""

    def owned(self) -> frozenset[TopicPartition]:
        """Give what it has."""

    async def release(
        self, places: Collection[TopicPartition], patience: float, is_lost: Callable[[], bool]
    ) -> None:
        """Let go of partitions in good order; `is_lost` turns true if it is too late for that."""

    async def lose(self, places: Collection[TopicPartition]) -> None:
        """Let go of partitions that others may have already."""

    async def receive(self, places: Collection[TopicPartition]) -> None:
        """Take partitions."""

    def freeze(self) -> None:
        """Give nothing more of what it has: that is lost, and about to be let go of."""


class GroupMember:
    """A member of a group, for as long as `run` runs."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        owner: Owner,
        assignors: Sequence[Assignor],
        config: GroupConfig,
        instance_id: str | None = None,
    ) -> None:
        self.state = MemberState.UNJOINED
        self.member_id = ""
        self.generation_id = -1
        #: The assignor that the group chose.
        self.protocol = ""
        self.is_leader = False
        #: As the leader, what anybody wants, and how many partitions there were to share out.
        self.shared_topics: Collection[str] = ()
        self.counts: dict[str, int] = {}
        self.instance_id = instance_id
        self._cluster = cluster
        self._group = group
        self._owner = owner
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._config = config
        self._rejoins = asyncio.Event()
        self._is_lost = False
        self._tries = 0

    def __repr__(self) -> str:
        return f"<GroupMember {self.member_id} of {self._group}, {self.state.value}>"

    @property
    def is_cooperative(self) -> bool:
        """Whether it keeps what it has while it joins."""
        return all(assignor.is_cooperative for assignor in self._assignors.values())

    @property
    def identity(self) -> tuple[int, str, str | None]:
        """Who commits: generation, member id and instance id."""
        return self.generation_id, self.member_id, self.instance_id

    def rejoin(self) -> None:
        """Join again: what it wants, or what there is to share out, has changed."""
        self._rejoins.set()

    def heed(self, code: int, generation_id: int) -> Verdict:
        """Act on the answer to a commit or heartbeat of a generation."""
        verdict = verdict_of(code)
        if generation_id != self.generation_id or self.state is not MemberState.STABLE:
            return verdict  # it has joined again since
        if verdict in (Verdict.STALE, Verdict.FORGOTTEN):
            self._lose_standing(verdict)
        if verdict in (Verdict.REJOIN, Verdict.STALE, Verdict.FORGOTTEN):
            self.rejoin()
        elif verdict is Verdict.ELSEWHERE:
            self._cluster.invalidate_coordinator(self._group)
        return verdict

    async def run(self) -> None:
        """Be a member. Raises KafkaError when the group will not have it."""
        tasks = [asyncio.create_task(self._take_part()), asyncio.create_task(self._beat())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def leave(self) -> None:
        """Leave, if it is in and comes and goes; a static member is expected back."""
        member_id, self.member_id = self.member_id, ""
        self.generation_id = -1
        self.is_leader = False
        self.shared_topics, self.counts = (), {}
        self._become(MemberState.UNJOINED)
        if not member_id or self.instance_id is not None:
            return
        node = await self._cluster.coordinator_of(self._group)
        connection = await self._cluster.connect(node, "group")
        version = connection.version_for(LEAVE_GROUP)
        identity = MemberIdentity(member_id=member_id, reason="the consumer was closed")
        request = (
            LeaveGroupRequest(group_id=self._group, members=[identity])
            if version >= _FIRST_TO_LEAVE_TOGETHER
            else LeaveGroupRequest(group_id=self._group, member_id=member_id)
        )
        await connection.send(request, LeaveGroupResponse, version=version)

    # Taking part.

    async def _take_part(self) -> None:
        while True:
            await self._make_ready()
            self._rejoins.clear()
            try:
                given = await self._join()
            except (ClientError, KafkaError) as error:
                if not error.retriable:
                    raise
                level = logging.DEBUG if self._tries else logging.WARNING  # not over and over
                logger.log(level, "group %s: %s", self._group, error)
                self._cluster.invalidate_coordinator(self._group)
                await self._pause()
                continue
            if given is None:
                continue
            self._tries = 0
            if not await self._settle(given):
                self._rejoins.set()
            await self._rejoins.wait()

    async def _make_ready(self) -> None:
        """Let go of what must be let go of before joining."""
        owned = self._owner.owned()
        if self._is_lost:
            if owned:
                await self._owner.lose(owned)
        elif not self.is_cooperative and owned:
            await self._release(owned)
        self._become(MemberState.UNJOINED)
        self._is_lost = False

    async def _release(self, places: frozenset[TopicPartition]) -> None:
        await self._owner.release(places, self._config.patience, lambda: self._is_lost)

    async def _settle(self, given: frozenset[TopicPartition]) -> bool:
        """Have what was given, and nothing else; False if that takes another round."""
        owned = self._owner.owned()
        if excess := owned - given:
            await self._release(excess)
        if self._is_lost:
            return False
        if fresh := given - owned:
            await self._owner.receive(fresh)
        # Others get what was let go of when the group has gathered once more.
        return not excess

    async def _join(self) -> frozenset[TopicPartition] | None:
        """Join and get a share. None: it did not work out, and is to be tried again."""
        self._become(MemberState.JOINING)
        answer = await self._cluster.send_to_coordinator(
            self._group,
            self._join_request(),
            JoinGroupResponse,
            channel="join",
            # It is answered when everybody has joined, or has had the time.
            timeout=self._config.rebalance_timeout + self._cluster.config.timeouts.request,
        )
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            return None
        if not await self._is_fine(answer.error_code, "joining"):
            return None
        self.member_id = answer.member_id
        self.generation_id = answer.generation_id
        self.protocol = answer.protocol_name or ""
        self.is_leader = answer.leader == answer.member_id
        if not self.is_leader:
            self.shared_topics, self.counts = (), {}
        if self.protocol not in self._assignors:
            reason = f"group {self._group!r} chose {self.protocol!r}, which was not offered"
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, reason)
        self._become(MemberState.SYNCING)
        shares: Mapping[str, Iterable[TopicPartition]] = {}
        if self.is_leader and not answer.skip_assignment:
            shares = await self._share_out(answer.members)
        request = SyncGroupRequest(
            group_id=self._group,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocol_name=self.protocol,
            assignments=[
                SyncGroupRequestAssignment(member_id=name, assignment=encode_assignment(share))
                for name, share in shares.items()
            ],
        )
        synced = await self._cluster.send_to_coordinator(
            self._group,
            request,
            SyncGroupResponse,
            channel="join",
            timeout=self._config.rebalance_timeout + self._cluster.config.timeouts.request,
        )
        if not await self._is_fine(synced.error_code, "getting a share"):
            return None
        self._become(MemberState.STABLE)
        return decode_assignment(synced.assignment)

    def _join_request(self) -> JoinGroupRequest:
        topics = sorted(self._owner.wanted_topics())
        owned = self._owner.owned()
        return JoinGroupRequest(
            group_id=self._group,
            session_timeout_ms=int(self._config.session_timeout * 1000),
            rebalance_timeout_ms=int(self._config.rebalance_timeout * 1000),
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocols=[
                JoinGroupRequestProtocol(
                    name=name,
                    metadata=encode_subscription(
                        topics, owned, self.generation_id, has_data=assignor.is_cooperative
                    ),
                )
                for name, assignor in self._assignors.items()
            ],
        )

    async def _share_out(
        self, joined: Sequence[JoinGroupResponseMember]
    ) -> Mapping[str, Iterable[TopicPartition]]:
        """Decide, as the leader, who gets what."""
        members = [decode_member(one) for one in joined]
        topics = sorted({topic for member in members for topic in member.topics})
        metadata = await self._cluster.refresh(topics)
        self.shared_topics = topics
        self.counts = partition_counts(metadata, topics, self.counts)
        return self._assignors[self.protocol].assign(members, self.counts)

    async def _is_fine(self, code: int, what: str) -> bool:
        """Act on the answer to a join or sync: wait, forget who it is, or raise."""
        verdict = verdict_of(code)
        if verdict is Verdict.FINE:
            return True
        error = kafka_error(code, f"group {self._group!r}, {what}")
        assert error is not None
        if verdict is Verdict.FATAL:
            raise error
        logger.info("%s", error)
        if verdict in (Verdict.STALE, Verdict.FORGOTTEN):
            self._lose_standing(verdict)
        elif verdict is not Verdict.REJOIN:
            if verdict is Verdict.ELSEWHERE:
                self._cluster.invalidate_coordinator(self._group)
            await self._pause()
        return False

    # Staying.

    async def _beat(self) -> None:
        """Tell the coordinator, time and again, that the member is alive."""
        pause = self._config.heartbeat_interval
        # A coordinator that hangs is left in time: another one may wait for a sign of life.
        timeout = min(self._cluster.config.timeouts.request, self._config.session_timeout / 3)
        while True:
            await asyncio.sleep(pause)
            pause = self._config.heartbeat_interval
            if self.state is not MemberState.STABLE or self._is_lost:
                continue  # a join that waits is a sign of life
            generation_id = self.generation_id
            request = HeartbeatRequest(
                group_id=self._group,
                generation_id=generation_id,
                member_id=self.member_id,
                group_instance_id=self.instance_id,
            )
            try:
                answer = await self._cluster.send_to_coordinator(
                    self._group, request, HeartbeatResponse, channel="heartbeat", timeout=timeout
                )
            except (ClientError, KafkaError) as error:
                if not error.retriable:
                    raise
                logger.info("group %s: a heartbeat failed: %s", self._group, error)
                self._cluster.invalidate_coordinator(self._group)
                pause = min(pause, self._cluster.config.retry.max_backoff)
                continue
            if self.heed(answer.error_code, generation_id) is Verdict.FATAL:
                self._is_lost = True
                raise kafka_error(answer.error_code, f"group {self._group!r}") or AssertionError

    def _lose_standing(self, verdict: Verdict) -> None:
        self._is_lost = True
        self.generation_id = -1
        if verdict is Verdict.FORGOTTEN:
            self.member_id = ""
        self._owner.freeze()

    def _become(self, state: MemberState) -> None:
        self.state = state

    async def _pause(self) -> None:
        pause = self._cluster.config.retry.delay(self._tries, random.random())  # noqa: S311
        self._tries += 1
        await asyncio.sleep(pause)


# What members say to each other.


def encode_subscription(
    topics: Sequence[str],
    owned: Collection[TopicPartition],
    generation_id: int,
    *,
    has_data: bool,
) -> bytes:
    """Say what a member wants and has.

    Older versions of Java's cooperative assignor look for the generation in the user data.
    """
    message = ConsumerProtocolSubscription(
        topics=topics,
        user_data=_GENERATION.pack(generation_id) if has_data else None,
        owned_partitions=_topic_partitions(owned),
        generation_id=generation_id if owned else -1,
    )
    version = bytearray(_VERSION.pack(_SUBSCRIPTION_VERSION))
    return bytes(
        codec(ConsumerProtocolSubscription, _SUBSCRIPTION_VERSION).encode(message, version, [])
    )


def decode_member(joined: JoinGroupResponseMember) -> Member:
    """Understand what a member wants and has; one that makes no sense wants nothing."""
    assert ConsumerProtocolSubscription.versions is not None
    try:
        view = memoryview(joined.metadata)
        version = min(_version_of(view), ConsumerProtocolSubscription.versions.last)
        said, _end = codec(ConsumerProtocolSubscription, version).decode(view, _VERSION.size)
    except DecodeError as error:
        logger.warning("member %s says what makes no sense: %s", joined.member_id, error)
        said = ConsumerProtocolSubscription()
    return Member(
        joined.member_id,
        frozenset(said.topics),
        joined.group_instance_id,
        frozenset(_places(said.owned_partitions)),
        said.generation_id,
    )


def encode_assignment(share: Iterable[TopicPartition]) -> bytes:
    """Say what a member gets."""
    message = ConsumerProtocolAssignment(
        assigned_partitions=_topic_partitions(share), user_data=b""
    )
    version = bytearray(_VERSION.pack(_ASSIGNMENT_VERSION))
    return bytes(
        codec(ConsumerProtocolAssignment, _ASSIGNMENT_VERSION).encode(message, version, [])
    )


def decode_assignment(data: Buffer) -> frozenset[TopicPartition]:
    """Understand what a member gets; no bytes are nothing. Raises DecodeError."""
    view = memoryview(data)
    if not view:
        return frozenset()
    _version_of(view)
    said, _end = codec(ConsumerProtocolAssignment, _ASSIGNMENT_VERSION).decode(view, _VERSION.size)
    return frozenset(_places(said.assigned_partitions))


def _version_of(view: memoryview) -> int:
    if len(view) < _VERSION.size:
        raise DecodeError(f"{len(view)} bytes, and a version alone has {_VERSION.size}")
    version = int(_VERSION.unpack_from(view)[0])
    if version < 0:
        raise DecodeError(f"version {version}")
    return version


def _topic_partitions(places: Iterable[TopicPartition]) -> list[TopicPartitions]:
    return [
        TopicPartitions(topic=topic, partitions=[place.partition for place in some])
        for topic, some in group_by_topic(places)
    ]


def _places(topics: Iterable[TopicPartitions]) -> Iterable[TopicPartition]:
    for topic in topics:
        for number in topic.partitions:
            yield TopicPartition(topic.topic, number)
