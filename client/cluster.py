"""The brokers of a cluster: who they are, who leads what, and a connection to each that is needed.

A router. What it knows of topics and leaders it learns when somebody asks, keeps for a while, and
learns again when a broker says that it is wrong. Operations that may be tried again are, with
growing pauses, until they succeed, fail for good, or have taken too long.

Connections are by node and *channel*: answers of one connection come in order, so that a fetch that
waits for records must not share one with a heartbeat. An address that cannot be reached is left in
peace for a while, longer each time, whoever asks; where any broker will do, one that is known to
answer is asked first. So one broker that is down, or hangs, keeps nobody waiting who does not need
it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar
from uuid import UUID

from ottla.protocol.api.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.api.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from ottla.protocol.errors import (
    ErrorCode,
    KafkaError,
    RefreshError,
    RetriableError,
    error_of,
)
from ottla.protocol.primitives import NIL_UUID
from ottla.protocol.registry import Api
from ottla.protocol.schema import Message

from .config import ClientConfig
from .connection import BrokerConnection
from .errors import ClientError, ClosedError, ConnectionLostError, DeadlineError
from .types import TopicPartition

M = TypeVar("M", bound=Message)
T = TypeVar("T")

_ANY = -1
_DEFAULT_PORT = 9092
# The last version in which one coordinator is asked for; the newer ones say the same of many.
_LAST_OF_ONE_KEY = 3

logger = logging.getLogger(__name__)

Address = tuple[str, int]


class Node(NamedTuple):
    """A broker."""

    id: int
    host: str
    port: int
    rack: str | None = None


class PartitionInfo(NamedTuple):
    """Who has a partition."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """What is known of a topic."""

    name: str
    id: UUID
    partitions: tuple[PartitionInfo, ...]
    is_internal: bool
    error: ErrorCode


@dataclass(slots=True)
class Metadata:
    """What is known of the cluster, and since when."""

    cluster_id: str | None = None
    controller: int = -1
    nodes: dict[int, Node] = field(default_factory=dict)
    topics: dict[str, TopicInfo] = field(default_factory=dict)
    learned: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Failure:
    """An address that could not be reached: how often in a row, and until when it is left alone."""

    tries: int
    until: float
    reason: str


class Cluster:
    """A cluster, by the addresses of some of its brokers: "host:port,host:port" or a list."""

    def __init__(self, bootstrap: str | Sequence[str], config: ClientConfig | None = None) -> None:
        self.config = config or ClientConfig()
        self.metadata = Metadata()
        self._bootstrap = parse_addresses(bootstrap)
        self._connections: dict[tuple[Address, str], BrokerConnection] = {}
        self._connecting: dict[tuple[Address, str], asyncio.Lock] = {}
        self._failures: dict[Address, _Failure] = {}
        self._coordinators: dict[str, int] = {}
        self._refreshing: asyncio.Lock = asyncio.Lock()
        self._looking_up: dict[str, asyncio.Lock] = {}
        self._is_closed = False

    async def close(self) -> None:
        """Close all connections."""
        self._is_closed = True
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        await asyncio.sleep(0)  # let transports end

    # Asking.

    async def send(
        self,
        node_id: int,
        request: Message,
        response: type[M],
        *,
        channel: str = "main",
        timeout: float | None = None,
        max_version: int | None = None,
    ) -> M:
        """Ask a node, once."""
        started = time.perf_counter()
        try:
            connection = await self.connect(node_id, channel)
            answer = await connection.send(
                request, response, timeout=timeout, max_version=max_version
            )
        except Exception as error:
            self.report(request.api, node_id, started, error)
            raise
        self.report(request.api, node_id, started, None)
        return answer

    def report(
        self, api: Api | None, node_id: int, started: float, error: Exception | None
    ) -> None:
        """Tell the hook, if there is one, what became of a request."""
        hook = self.config.on_request
        if hook is not None and api is not None:
            try:
                hook(api.name, node_id, time.perf_counter() - started, error)
            except Exception:  # it is somebody else's code, and no reason for a request to fail
                logger.exception("on_request failed for %s", api.name)

    async def send_to_any(
        self, request: Message, response: type[M], *, timeout: float | None = None
    ) -> M:
        """Ask whoever answers first, known nodes and then the addresses given at the start."""
        return await self.send(_ANY, request, response, timeout=timeout)

    async def send_to_controller(
        self, request: Message, response: type[M], *, max_version: int | None = None
    ) -> M:
        """Ask the broker that changes metadata, whichever that is by now."""
        await self.refresh([])
        node_id = self.metadata.controller
        if node_id < 0:
            raise RetriableError(ErrorCode.NOT_CONTROLLER, "there is no controller right now")
        return await self.send(node_id, request, response, max_version=max_version)

    async def send_to_coordinator(
        self,
        group_id: str,
        request: Message,
        response: type[M],
        *,
        channel: str = "group",
        timeout: float | None = None,
    ) -> M:
        """Ask the coordinator of a group."""
        node_id = await self.coordinator_of(group_id)
        return await self.send(node_id, request, response, channel=channel, timeout=timeout)

    async def retry(
        self, attempt: Callable[[], Awaitable[T]], *, timeout: float | None = None, what: str = ""
    ) -> T:
        """Try until it succeeds, fails for good, or takes too long.

        Before each further try metadata and coordinators that may be wrong are forgotten.
        """
        seconds = self.config.timeouts.operation if timeout is None else timeout
        deadline = time.monotonic() + seconds
        tries = 0
        while True:
            try:
                return await attempt()
            except (KafkaError, ClientError) as error:
                if not error.retriable or self._is_closed:
                    raise
                if needs_metadata_refresh(error):
                    self.invalidate()
                pause = self.config.retry.delay(tries, random.random())  # noqa: S311
                tries += 1
                if time.monotonic() + pause > deadline:
                    reason = f"{what or 'the operation'} did not succeed in {seconds:g} s: {error}"
                    raise DeadlineError(reason) from error
                await asyncio.sleep(pause)

    # Knowing.

    async def topic(self, name: str) -> TopicInfo:
        """Give what is known of a topic, looked up if need be. Raises KafkaError."""
        info = self.metadata.topics.get(name)
        now = time.monotonic()
        age = now - self.metadata.learned.get(name, float("-inf"))
        if info is None or info.error or age > self.config.metadata_max_age:
            async with self._looking_up.setdefault(name, asyncio.Lock()):
                # Of many who want it at once, one asks.
                if self.metadata.learned.get(name, float("-inf")) < now:
                    await self.refresh([name])
            info = self.metadata.topics.get(name)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if info is None else info.error
        if info is None or code:
            raise error_of(code, f"topic {name!r}: {code.message}") or AssertionError
        return info

    async def leader_of(self, place: TopicPartition) -> int:
        """Give the node that leads a partition. Raises KafkaError."""
        found = (await self.leaders_of([place]))[place]
        if isinstance(found, Exception):
            raise found
        return found

    async def leaders_of(
        self, places: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int | KafkaError | ClientError]:
        """Give the nodes that lead partitions, or why there is none. Each topic is looked up once.

        Of a partition without a leader the topic is looked up again next time.
        """
        found: dict[TopicPartition, int | KafkaError | ClientError] = {}
        by_topic: dict[str, list[TopicPartition]] = {}
        for place in places:
            by_topic.setdefault(place.topic, []).append(place)
        for topic, some in by_topic.items():
            try:
                info = await self.topic(topic)
            except (KafkaError, ClientError) as error:
                found.update(dict.fromkeys(some, error))
                continue
            found.update({place: _leader_in(info, place) for place in some})
            if any(isinstance(found[place], RefreshError) for place in some):
                self.invalidate([topic])
        return found

    async def coordinator_of(self, group_id: str) -> int:
        """Give the node that coordinates a group. Raises KafkaError."""
        found = self._coordinators.get(group_id)
        if found is not None:
            return found
        place = await self.send(
            _ANY,
            FindCoordinatorRequest(key=group_id),
            FindCoordinatorResponse,
            max_version=_LAST_OF_ONE_KEY,
        )
        error = error_of(place.error_code, place.error_message)
        if error is not None:
            raise error
        node = Node(place.node_id, place.host, place.port)
        self.metadata.nodes[node.id] = node
        self._coordinators[group_id] = node.id
        return node.id

    def invalidate(self, topics: Iterable[str] | None = None) -> None:
        """Look topics up again when they are next needed, all of them if none are named."""
        if topics is None:
            self.metadata.learned.clear()
            self._coordinators.clear()
        else:
            for name in topics:
                self.metadata.learned.pop(name, None)

    def invalidate_coordinator(self, group_id: str) -> None:
        """Look the coordinator of a group up again when it is next needed."""
        self._coordinators.pop(group_id, None)

    async def refresh(self, topics: Collection[str] | None, *, may_create: bool = True) -> Metadata:
        """Learn about topics, all of them if None; and about the brokers in any case.

        One that is not there is made where that is allowed, by the configuration and the caller.
        """
        request = MetadataRequest(
            topics=None if topics is None else [MetadataRequestTopic(name=name) for name in topics],
            allow_auto_topic_creation=(
                self.config.allow_auto_create and may_create and bool(topics)
            ),
        )
        # Brokers have it at hand. Who takes long will take longer, and others wait for this.
        seconds = min(self.config.timeouts.request, self.config.timeouts.connect)
        async with self._refreshing:
            answer = await self.send_to_any(request, MetadataResponse, timeout=seconds)
            self._learn(answer, is_all=topics is None)
        return self.metadata

    def _learn(self, answer: MetadataResponse, *, is_all: bool) -> None:
        now = time.monotonic()
        known = self.metadata
        known.cluster_id = answer.cluster_id
        known.controller = answer.controller_id
        if answer.brokers:
            known.nodes = {
                broker.node_id: Node(broker.node_id, broker.host, broker.port, broker.rack)
                for broker in answer.brokers
            }
        if is_all:
            known.topics, known.learned = {}, {}
        for topic in answer.topics:
            if topic.name is not None:
                known.topics[topic.name] = _topic_info(topic)
                known.learned[topic.name] = now

    # Connecting.

    async def connect(self, node_id: int, channel: str = "main") -> BrokerConnection:
        """Give a connection to a node, or to any. Raises ConnectionLostError."""
        if node_id != _ANY:
            node = self.metadata.nodes.get(node_id)
            if node is None:
                await self.refresh([])
                node = self.metadata.nodes.get(node_id)
            if node is None:
                raise ConnectionLostError(f"there is no broker {node_id}")
            return await self._connect((node.host, node.port), channel)
        addresses = [(node.host, node.port) for node in self.metadata.nodes.values()]
        random.shuffle(addresses)
        reasons = []
        for address in sorted(
            dict.fromkeys([*addresses, *self._bootstrap]),
            key=lambda address: self._doubt(address, channel),
        ):
            try:
                return await self._connect(address, channel)
            except ConnectionLostError as error:
                reasons.append(str(error))
        raise ConnectionLostError("; ".join(dict.fromkeys(reasons)))

    def _doubt(self, address: Address, channel: str) -> int:
        """Say how little is to be expected: a broker that answers is better than one that may."""
        connection = self._connections.get((address, channel))
        if connection is not None and connection.is_open:
            return 0
        return 1 if connection is None and address not in self._failures else 2

    async def _connect(self, address: Address, channel: str) -> BrokerConnection:
        self._check_open()
        key = (address, channel)
        connection = self._connections.get(key)
        if connection is not None and connection.is_open:
            return connection
        async with self._connecting.setdefault(key, asyncio.Lock()):
            connection = self._connections.get(key)
            if connection is None or not connection.is_open:
                connection = await self._open(address)
                try:
                    self._check_open()  # it may have been closed meanwhile
                except ClosedError:
                    connection.close()
                    raise
                self._connections[key] = connection
        return connection

    async def _open(self, address: Address) -> BrokerConnection:
        """Connect, unless that has just failed: all who want to wait as long as one would."""
        failure = self._failures.get(address)
        if failure is not None and time.monotonic() < failure.until:
            raise ConnectionLostError(failure.reason)
        try:
            connection = await BrokerConnection.open(*address, self.config)
        except ConnectionLostError as error:
            tries = 0 if failure is None else failure.tries + 1
            pause = self.config.retry.delay(tries, random.random())  # noqa: S311
            self._failures[address] = _Failure(tries, time.monotonic() + pause, str(error))
            raise
        self._failures.pop(address, None)
        return connection

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the client has been closed")


def needs_metadata_refresh(error: Exception) -> bool:
    """Whether an error may mean that somebody else has to be asked by now."""
    return isinstance(error, RefreshError | ConnectionLostError | DeadlineError)


def parse_addresses(bootstrap: str | Sequence[str]) -> list[Address]:
    """Read "host:port,…" or a list of such. Raises ValueError."""
    texts = bootstrap.split(",") if isinstance(bootstrap, str) else list(bootstrap)
    found = []
    for text in texts:
        stripped = text.strip()
        host, colon, port = stripped.rpartition(":")
        if not colon or stripped.endswith("]"):
            host, port = stripped, str(_DEFAULT_PORT)
        host = host.strip("[]")
        if not host or not port.isdigit() or not 0 < int(port) < 65_536:
            raise ValueError(f"{text!r} is no address: host:port is")
        found.append((host, int(port)))
    return found


def _leader_in(info: TopicInfo, place: TopicPartition) -> int | KafkaError:
    if not 0 <= place.partition < len(info.partitions):
        return KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"{place}: the topic has {len(info.partitions)} partitions",
        )
    leader = info.partitions[place.partition].leader
    if leader >= 0:
        return leader
    return RefreshError(ErrorCode.LEADER_NOT_AVAILABLE, f"{place} has no leader")


def _topic_info(topic: MetadataResponseTopic) -> TopicInfo:
    ordered = sorted(topic.partitions, key=lambda partition: partition.partition_index)
    return TopicInfo(
        name=topic.name or "",
        id=topic.topic_id or NIL_UUID,
        partitions=tuple(
            PartitionInfo(
                partition.leader_id,
                partition.leader_epoch,
                tuple(partition.replica_nodes),
                tuple(partition.isr_nodes),
                ErrorCode.of(partition.error_code),
            )
            for partition in ordered
        ),
        is_internal=topic.is_internal,
        error=ErrorCode.of(topic.error_code),
    )
