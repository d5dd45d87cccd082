"""The brokers of a cluster: who they are, who leads what, and a connection to each that is needed.

A router. What it knows of topics and leaders it learns when somebody asks, keeps for a while, and
learns again when a broker says that it is wrong. Operations that may be tried again are, with
growing pauses, until they succeed, fail for good, or have taken too long.

Connections are by node and *channel*: answers of one connection come in order, so that a fetch that
waits for records must not share one with a heartbeat.
"""

from __future__ import annotations

import asyncio
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
from ottla.protocol.errors import ErrorCode, KafkaError, RefreshError, error_of
from ottla.protocol.primitives import NIL_UUID
from ottla.protocol.registry import FIND_COORDINATOR
from ottla.protocol.schema import Message

from .config import ClientConfig
from .connection import Connection
from .errors import ClientError, ClosedError, ConnectionLostError, DeadlineError
from .types import TopicPartition

M = TypeVar("M", bound=Message)
T = TypeVar("T")

_ANY = -1
_DEFAULT_PORT = 9092
_FIRST_WITH_MANY_KEYS = 4


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


class Cluster:
    """A cluster, by the addresses of some of its brokers: "host:port,host:port" or a list."""

    def __init__(self, bootstrap: str | Sequence[str], config: ClientConfig | None = None) -> None:
        self.config = config or ClientConfig()
        self.metadata = Metadata()
        self._bootstrap = parse_addresses(bootstrap)
        self._connections: dict[tuple[str, int, str], Connection] = {}
        self._connecting: dict[tuple[str, int, str], asyncio.Lock] = {}
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

    async def ask(
        self,
        node_id: int,
        request: Message,
        response: type[M],
        *,
        channel: str = "main",
        timeout: float | None = None,
        most: int | None = None,
    ) -> M:
        """Ask a node, once."""
        started = time.perf_counter()
        error: Exception | None = None
        try:
            connection = await self.connect(node_id, channel)
            return await connection.ask(request, response, timeout=timeout, most=most)
        except Exception as failure:
            error = failure
            raise
        finally:
            hook = self.config.on_request
            if hook is not None and request.api is not None:
                hook(request.api.name, node_id, time.perf_counter() - started, error)

    async def ask_any(
        self, request: Message, response: type[M], *, timeout: float | None = None
    ) -> M:
        """Ask whoever answers first, known nodes and then the addresses given at the start."""
        return await self.ask(_ANY, request, response, timeout=timeout)

    async def ask_controller(
        self, request: Message, response: type[M], *, timeout: float | None = None
    ) -> M:
        """Ask the broker that changes metadata."""
        if self.metadata.controller not in self.metadata.nodes:
            await self.refresh([])
        return await self.ask(self.metadata.controller, request, response, timeout=timeout)

    async def ask_coordinator(
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
        return await self.ask(node_id, request, response, channel=channel, timeout=timeout)

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
                if isinstance(error, RefreshError | ConnectionLostError):
                    self.forget()
                pause = self.config.backoff.seconds(tries, random.random())  # noqa: S311
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
            info = self.metadata.topics[name]
        if info.error:
            raise error_of(info.error, f"topic {name!r}: {info.error.message}") or AssertionError
        return info

    async def leader_of(self, place: TopicPartition) -> int:
        """Give the node that leads a partition. Raises KafkaError."""
        info = await self.topic(place.topic)
        if not 0 <= place.partition < len(info.partitions):
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"{place}: the topic has {len(info.partitions)} partitions",
            )
        partition = info.partitions[place.partition]
        if partition.leader < 0:
            self.forget([place.topic])
            raise RefreshError(ErrorCode.LEADER_NOT_AVAILABLE, f"{place} has no leader")
        return partition.leader

    async def coordinator_of(self, group_id: str) -> int:
        """Give the node that coordinates a group. Raises KafkaError."""
        found = self._coordinators.get(group_id)
        if found is not None:
            return found
        connection = await self.connect(_ANY)
        version = connection.version_for(FIND_COORDINATOR)
        many = version >= _FIRST_WITH_MANY_KEYS
        request = (
            FindCoordinatorRequest(coordinator_keys=[group_id])
            if many
            else FindCoordinatorRequest(key=group_id)
        )
        answer = await connection.ask_in(version, request, FindCoordinatorResponse)
        place = answer.coordinators[0] if many else answer
        error = error_of(place.error_code, place.error_message)
        if error is not None:
            raise error
        node = Node(place.node_id, place.host, place.port)
        self.metadata.nodes[node.id] = node
        self._coordinators[group_id] = node.id
        return node.id

    def forget(self, topics: Iterable[str] | None = None) -> None:
        """Look topics up again when they are next needed, all of them if none are named."""
        if topics is None:
            self.metadata.learned.clear()
            self._coordinators.clear()
        else:
            for name in topics:
                self.metadata.learned.pop(name, None)

    def forget_coordinator(self, group_id: str) -> None:
        """Look the coordinator of a group up again when it is next needed."""
        self._coordinators.pop(group_id, None)

    async def refresh(self, topics: Collection[str] | None) -> Metadata:
        """Learn about topics, all of them if None; and about the brokers in any case."""
        request = MetadataRequest(
            topics=None if topics is None else [MetadataRequestTopic(name=name) for name in topics],
            allow_auto_topic_creation=self.config.allow_auto_create and bool(topics),
        )
        async with self._refreshing:
            answer = await self.ask_any(request, MetadataResponse)
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

    async def connect(self, node_id: int, channel: str = "main") -> Connection:
        """Give a connection to a node, or to any. Raises ConnectionLostError."""
        if node_id != _ANY:
            node = self.metadata.nodes.get(node_id)
            if node is None:
                await self.refresh([])
                node = self.metadata.nodes.get(node_id)
            if node is None:
                raise ConnectionLostError(f"there is no broker {node_id}")
            return await self._connect(node.host, node.port, channel)
        addresses = [(node.host, node.port) for node in self.metadata.nodes.values()]
        random.shuffle(addresses)
        # A broker that answers is better than one that may hang.
        addresses.sort(key=lambda address: not self._is_connected((*address, channel)))
        reasons = []
        for host, port in [*addresses, *self._bootstrap]:
            try:
                return await self._connect(host, port, channel)
            except ConnectionLostError as error:
                reasons.append(str(error))
        raise ConnectionLostError("; ".join(dict.fromkeys(reasons)))

    async def _connect(self, host: str, port: int, channel: str) -> Connection:
        self._check_open()
        key = (host, port, channel)
        connection = self._connections.get(key)
        if connection is not None and connection.is_open:
            return connection
        async with self._connecting.setdefault(key, asyncio.Lock()):
            connection = self._connections.get(key)
            if connection is None or not connection.is_open:
                connection = await Connection.open(host, port, self.config)
                try:
                    self._check_open()  # it may have been closed meanwhile
                except ClosedError:
                    connection.close()
                    raise
                self._connections[key] = connection
        return connection

    def _is_connected(self, key: tuple[str, int, str]) -> bool:
        connection = self._connections.get(key)
        return connection is not None and connection.is_open

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the client has been closed")


def parse_addresses(bootstrap: str | Sequence[str]) -> list[tuple[str, int]]:
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
