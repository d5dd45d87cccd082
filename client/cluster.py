"""A cluster: metadata of brokers and topics, and the connections to the brokers.

Metadata is fetched when it is needed, cached for a while, and fetched again when a broker reports
that it is wrong. Operations that may succeed later are retried with exponential backoff, until they
succeed, fail for good, or time out.

Connections are by node and *channel*: responses of a connection come in order, so a fetch that
waits for records must not share one with a heartbeat. An address that cannot be reached is not
tried again for a while, longer each time, whatever the request; where any broker will do, one that
is known to respond comes first. So a broker that is down, or hangs, only delays requests that need
it. One that responds may be cut off from the others, and know nothing of new leaders: while errors
go on and its metadata is the same, other brokers are asked, too.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple, TypeVar
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

if TYPE_CHECKING:
    from .security import SecurityConfig

M = TypeVar("M", bound=Message)
T = TypeVar("T")

_ANY = -1
_DEFAULT_PORT = 9092
# The last version of FindCoordinator with a single key.
_LAST_OF_ONE_KEY = 3
# Key types of FindCoordinator.
_GROUP, _TRANSACTION = 0, 1

logger = logging.getLogger(__name__)

Address = tuple[str, int]


class Node(NamedTuple):
    """A broker."""

    id: int
    host: str
    port: int
    rack: str | None = None


class PartitionInfo(NamedTuple):
    """The leader and the replicas of a partition."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic in the metadata."""

    name: str
    id: UUID
    partitions: tuple[PartitionInfo, ...]
    is_internal: bool
    error: ErrorCode


@dataclass(slots=True)
class Metadata:
    """The cached metadata."""

    cluster_id: str | None = None
    controller: int = -1
    nodes: dict[int, Node] = field(default_factory=dict)
    topics: dict[str, TopicInfo] = field(default_factory=dict)
    #: When each topic was last fetched, by the monotonic clock.
    fetched_at: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Unreachable:
    """An address that cannot be reached: consecutive failures, and when it may be tried again."""

    failures: int
    retry_at: float
    reason: str


class Cluster:
    """A cluster, by its bootstrap servers: "host:port,host:port" or a list."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        config: ClientConfig | None = None,
        security: SecurityConfig | None = None,
    ) -> None:
        self.config = config or ClientConfig()
        if security is not None:
            self.config = replace(self.config, security=security)
        self.metadata = Metadata()
        self._bootstrap = parse_addresses(bootstrap)
        self._connections: dict[tuple[Address, str], BrokerConnection] = {}
        self._connect_locks: dict[tuple[Address, str], asyncio.Lock] = {}
        self._unreachable: dict[Address, _Unreachable] = {}
        # By key type and key.
        self._coordinators: dict[tuple[int, str], int] = {}
        self._refresh_lock = asyncio.Lock()
        self._topic_locks: dict[str, asyncio.Lock] = {}
        # Whether metadata was fetched after an error, and the broker knew nothing new.
        self._asks_others = False
        self._is_closed = False

    async def close(self) -> None:
        """Close all connections."""
        self._is_closed = True
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        await asyncio.sleep(0)  # lets the transports close

    # Requests.

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
        """Send a request to a node, once, and return the response."""
        started = time.perf_counter()
        try:
            connection = await self.connect(node_id, channel)
            result = await connection.send(
                request, response, timeout=timeout, max_version=max_version
            )
        except Exception as error:
            self.report(request.api, node_id, started, error)
            raise
        self.report(request.api, node_id, started, None)
        return result

    def report(
        self, api: Api | None, node_id: int, started: float, error: Exception | None
    ) -> None:
        """Call the `on_request` hook, if there is one."""
        hook = self.config.on_request
        if hook is not None and api is not None:
            try:
                hook(api.name, node_id, time.perf_counter() - started, error)
            except Exception:  # a bug in the hook must not fail the request
                logger.exception("on_request failed for %s", api.name)

    async def send_to_any(
        self, request: Message, response: type[M], *, timeout: float | None = None
    ) -> M:
        """Send a request to any broker: one of the known nodes, or a bootstrap server."""
        return await self.send(_ANY, request, response, timeout=timeout)

    async def send_to_controller(
        self, request: Message, response: type[M], *, max_version: int | None = None
    ) -> M:
        """Send a request to the current controller."""
        await self.refresh([])
        node_id = self.metadata.controller
        if node_id < 0:
            raise RetriableError(ErrorCode.NOT_CONTROLLER, "The cluster has no controller")
        return await self.send(node_id, request, response, max_version=max_version)

    async def send_to_coordinator(
        self,
        group_id: str,
        request: Message,
        response: type[M],
        *,
        channel: str = "group",
        timeout: float | None = None,
        max_version: int | None = None,
    ) -> M:
        """Send a request to the coordinator of a group."""
        node_id = await self.coordinator_of(group_id)
        return await self.send(
            node_id, request, response, channel=channel, timeout=timeout, max_version=max_version
        )

    async def retry(
        self, attempt: Callable[[], Awaitable[T]], *, timeout: float | None = None, what: str = ""
    ) -> T:
        """Call `attempt` until it succeeds, fails for good, or times out.

        `what` names the operation in the DeadlineError. Cached metadata that an error calls into
        question is invalidated before the next attempt.
        """
        seconds = self.config.timeouts.operation if timeout is None else timeout
        deadline = time.monotonic() + seconds
        failures = 0
        while True:
            try:
                return await attempt()
            except (KafkaError, ClientError) as error:
                if not error.retriable or self._is_closed:
                    raise
                if needs_metadata_refresh(error):
                    self.invalidate()
                delay = self.config.retry.delay(failures, random.random())  # noqa: S311
                failures += 1
                if time.monotonic() + delay > deadline:
                    operation = what or "The operation"
                    reason = f"{operation} did not succeed within {seconds:g} s: {error}"
                    raise DeadlineError(reason) from error
                await asyncio.sleep(delay)

    # Metadata.

    async def topic(self, name: str) -> TopicInfo:
        """Return the metadata of a topic, fetched if necessary. Raises KafkaError."""
        info = self.metadata.topics.get(name)
        now = time.monotonic()
        age = now - self.metadata.fetched_at.get(name, float("-inf"))
        if info is None or info.error or age > self.config.metadata_max_age:
            async with self._topic_locks.setdefault(name, asyncio.Lock()):
                # Of concurrent callers, one sends the request.
                if self.metadata.fetched_at.get(name, float("-inf")) < now:
                    await self.refresh([name])
            info = self.metadata.topics.get(name)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if info is None else info.error
        if info is None or code:
            raise error_of(code, f"topic {name!r}: {code.message}") or AssertionError
        return info

    async def leader_of(self, tp: TopicPartition) -> int:
        """Return the node that leads a partition. Raises KafkaError."""
        leader = (await self.leaders_of([tp]))[tp]
        if isinstance(leader, Exception):
            raise leader
        return leader

    async def leaders_of(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int | KafkaError | ClientError]:
        """Return the leader of each partition, or the error. Each topic is looked up once.

        The metadata of a topic with a leaderless partition is fetched again next time.
        """
        leaders: dict[TopicPartition, int | KafkaError | ClientError] = {}
        by_topic: dict[str, list[TopicPartition]] = {}
        for tp in partitions:
            by_topic.setdefault(tp.topic, []).append(tp)
        for topic, tps in by_topic.items():
            try:
                info = await self.topic(topic)
            except (KafkaError, ClientError) as error:
                leaders.update(dict.fromkeys(tps, error))
                continue
            leaders.update({tp: _leader(info, tp) for tp in tps})
            if any(isinstance(leaders[tp], RefreshError) for tp in tps):
                self.invalidate([topic])
        return leaders

    async def coordinator_of(self, group_id: str) -> int:
        """Return the node that coordinates a group. Raises KafkaError."""
        return await self._find_coordinator(_GROUP, group_id)

    async def transaction_coordinator_of(self, transactional_id: str) -> int:
        """Return the node that coordinates a transactional id. Raises KafkaError."""
        return await self._find_coordinator(_TRANSACTION, transactional_id)

    async def _find_coordinator(self, key_type: int, key: str) -> int:
        coordinator = self._coordinators.get((key_type, key))
        if coordinator is not None:
            return coordinator
        response = await self.send(
            _ANY,
            FindCoordinatorRequest(key=key, key_type=key_type),
            FindCoordinatorResponse,
            max_version=_LAST_OF_ONE_KEY,
        )
        error = error_of(response.error_code, response.error_message)
        self._asks_others = error is not None
        if error is not None:
            raise error
        node = Node(response.node_id, response.host, response.port)
        self.metadata.nodes[node.id] = node
        self._coordinators[key_type, key] = node.id
        return node.id

    def invalidate(self, topics: Iterable[str] | None = None) -> None:
        """Have topics fetched again on next use; with None, all topics and coordinators."""
        if topics is None:
            self.metadata.fetched_at.clear()
            self._coordinators.clear()
        else:
            for name in topics:
                self.metadata.fetched_at.pop(name, None)

    def invalidate_coordinator(self, group_id: str) -> None:
        """Find the coordinator of a group again when it is next needed."""
        self._coordinators.pop((_GROUP, group_id), None)

    async def refresh(
        self,
        topics: Collection[str] | None,
        *,
        may_create: bool = True,
        after_error: bool = False,
    ) -> Metadata:
        """Fetch the metadata of topics (None is all) and brokers.

        A missing topic is created if `allow_auto_create`, `may_create` and the broker allow it.
        If what is known has led to an error (`after_error`, or it was invalidated), and the broker
        knows nothing else, another one may be asked next time.
        """
        request = MetadataRequest(
            topics=None if topics is None else [MetadataRequestTopic(name=name) for name in topics],
            allow_auto_topic_creation=(
                self.config.allow_auto_create and may_create and bool(topics)
            ),
        )
        fetched_at = self.metadata.fetched_at
        is_invalid = any(
            name in self.metadata.topics and name not in fetched_at for name in topics or ()
        )
        # Brokers have it in memory. One that is slow is probably stuck, and others wait for this.
        seconds = min(self.config.timeouts.request, self.config.timeouts.connect)
        async with self._refresh_lock:
            response = await self.send_to_any(request, MetadataResponse, timeout=seconds)
            is_unchanged = not self._update(response, is_all=topics is None)
            self._asks_others = is_unchanged and (after_error or is_invalid)
        return self.metadata

    def _update(self, response: MetadataResponse, *, is_all: bool) -> bool:
        """Follow a response; return whether it has changed a topic."""
        now = time.monotonic()
        metadata = self.metadata
        metadata.cluster_id = response.cluster_id
        metadata.controller = response.controller_id
        if response.brokers:
            metadata.nodes = {
                broker.node_id: Node(broker.node_id, broker.host, broker.port, broker.rack)
                for broker in response.brokers
            }
        known = metadata.topics
        has_changed = False
        if is_all:
            metadata.topics, metadata.fetched_at = {}, {}
        for topic in response.topics:
            if topic.name is not None:
                before = known.get(topic.name)
                info = _without_stale_leaders(_topic_info(topic), before)
                has_changed = has_changed or info != before
                metadata.topics[topic.name] = info
                metadata.fetched_at[topic.name] = now
        return has_changed

    # Connections.

    async def connect(self, node_id: int, channel: str = "main") -> BrokerConnection:
        """Return a connection to a node, or to any broker.

        Raises ConnectionLostError and AuthenticationError.
        """
        if node_id != _ANY:
            node = self.metadata.nodes.get(node_id)
            if node is None:
                await self.refresh([])
                node = self.metadata.nodes.get(node_id)
            if node is None:
                raise ConnectionLostError(f"Unknown broker {node_id}")
            return await self._connect((node.host, node.port), channel)
        addresses = [(node.host, node.port) for node in self.metadata.nodes.values()]
        random.shuffle(addresses)
        reasons = []
        for address in sorted(
            dict.fromkeys([*addresses, *self._bootstrap]),
            key=lambda address: self._preference(address, channel),
        ):
            try:
                return await self._connect(address, channel)
            except ConnectionLostError as error:
                reasons.append(str(error))
        raise ConnectionLostError("; ".join(dict.fromkeys(reasons)))

    def _preference(self, address: Address, channel: str) -> int:
        """Return the sort key of an address: 0 is connected, 1 untried, 2 failed or lost."""
        connection = self._connections.get((address, channel))
        if connection is not None and connection.is_open:
            return 0
        if connection is None and address not in self._unreachable:
            return 0 if self._asks_others else 1
        return 2

    async def _connect(self, address: Address, channel: str) -> BrokerConnection:
        self._check_open()
        key = (address, channel)
        connection = self._connections.get(key)
        if connection is not None and connection.is_open:
            return connection
        async with self._connect_locks.setdefault(key, asyncio.Lock()):
            connection = self._connections.get(key)
            if connection is None or not connection.is_open:
                connection = await self._open(address)
                try:
                    self._check_open()  # closed meanwhile
                except ClosedError:
                    connection.close()
                    raise
                self._connections[key] = connection
        return connection

    async def _open(self, address: Address) -> BrokerConnection:
        """Connect, unless the address has just failed: callers share the backoff."""
        unreachable = self._unreachable.get(address)
        if unreachable is not None and time.monotonic() < unreachable.retry_at:
            raise ConnectionLostError(unreachable.reason)
        try:
            connection = await BrokerConnection.open(*address, self.config)
        except ConnectionLostError as error:
            if unreachable is None or unreachable.reason != str(error):
                logger.warning("%s; retrying", error)
            failures = 0 if unreachable is None else unreachable.failures + 1
            retry_at = time.monotonic() + self.config.retry.delay(failures, random.random())  # noqa: S311
            self._unreachable[address] = _Unreachable(failures, retry_at, str(error))
            raise
        if self._unreachable.pop(address, None) is not None:
            logger.info("Connected to %s:%d", *address)
        return connection

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("The client is closed")


def needs_metadata_refresh(error: Exception) -> bool:
    """Whether an error may mean that the leader, coordinator or controller has changed."""
    return isinstance(error, RefreshError | ConnectionLostError | DeadlineError)


def parse_addresses(bootstrap: str | Sequence[str]) -> list[Address]:
    """Parse "host:port,…" or a list of such. Raises ValueError."""
    texts = bootstrap.split(",") if isinstance(bootstrap, str) else list(bootstrap)
    addresses = []
    for text in texts:
        stripped = text.strip()
        host, colon, port = stripped.rpartition(":")
        if not colon or stripped.endswith("]"):
            host, port = stripped, str(_DEFAULT_PORT)
        host = host.strip("[]")
        if not host or not port.isdigit() or not 0 < int(port) < 65_536:
            raise ValueError(f"Invalid address {text!r}: expected host:port")
        addresses.append((host, int(port)))
    return addresses


def _leader(info: TopicInfo, tp: TopicPartition) -> int | KafkaError:
    if not 0 <= tp.partition < len(info.partitions):
        return KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"{tp}: the topic has {len(info.partitions)} partitions",
        )
    leader = info.partitions[tp.partition].leader
    if leader >= 0:
        return leader
    return RefreshError(ErrorCode.LEADER_NOT_AVAILABLE, f"{tp} has no leader")


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


def _without_stale_leaders(info: TopicInfo, known: TopicInfo | None) -> TopicInfo:
    """Return metadata with the leaders that are known from a broker with newer metadata."""
    if known is None or known.id != info.id or info.id == NIL_UUID:
        return info
    pairs = zip_longest(info.partitions, known.partitions[: len(info.partitions)])
    partitions = tuple(
        before if before is not None and before.leader_epoch > now.leader_epoch >= 0 else now
        for now, before in pairs
    )
    return info if partitions == info.partitions else replace(info, partitions=partitions)
