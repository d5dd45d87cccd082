"""Fetch: read record batches, waiting until `min_bytes` are available.

The response is sent at once if there are min_bytes of records, if any partition has an error, or if
max_wait_ms is 0; otherwise when enough bytes have been appended or max_wait_ms has passed. With
isolation level read_committed, only records below the last stable offset are returned and counted,
with a list of the transactions among them that were aborted.

From version 13 on topics have ids instead of names: `TopicKey` is what the version has.

Records are views of mapped segments, passed to the socket without a copy. Pages that are not in the
page cache are read by a thread first, so that the event loop never waits for the disk. So are
indexes that are not in memory, and batch headers; the fetch has not taken effect before.

A request with very many partitions is read in slices, between which other connections are served.
It takes effect when the last slice was read, so no request of its connection is started before.
What is appended meanwhile to a partition that was read already counts as appended while it waits.

Consumers read from the leader, or, from version 11 on, from any follower. With a rack-aware
replica.selector.class, the leader names the follower in the consumer's rack and returns no records.

Of the session of a follower, only the partitions that have changed are read (`FollowerSession`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from uuid import UUID

from ottla.coord.metadata_image import METADATA_TOPIC, METADATA_TOPIC_ID
from ottla.coord.partition_state import NO_LEADER
from ottla.protocol.api.fetch import (
    LAST_VERSION_WITH_REPLICA_ID,
    LAST_VERSION_WITH_TOPIC_NAMES,
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from ottla.protocol.errors import ErrorCode
from ottla.storage.cold_reads import ColdRead
from ottla.storage.errors import OffsetOutOfRangeError
from ottla.storage.log import LogSlice
from ottla.storage.read_mode import NO_WAITING, ColdReadError

from ...partitions.partition import Partition, Role
from ..authorization import CLUSTER, CLUSTER_ACTION, DENIED, READ, TOPIC, allows, check
from ..errors import EXPECTED_ERRORS, ApiError, NotLeaderError, error_code_of
from ..fetch_sessions import CLOSE, OPEN, FetchSession, TopicKey
from ..follower_session import FollowerSession
from ..memory_account import fetch_request_bytes
from ..slices import SLICE_ELEMENTS, in_slices
from ..waiters import Waiter, WaiterRegistry

if TYPE_CHECKING:
    from ...broker import Broker
    from ...observability.metrics import TopicTraffic
    from ..dispatch import RequestContext

#: Replica ids that mean a consumer: Kafka's ordinary and debugging consumer ids.
_CONSUMER_IDS = (-1, -2)
_READ_COMMITTED = 1
_FIRST_VERSION_WITH_PREFERRED_REPLICA = 11
_FIRST_VERSION_WITH_LEADER = 12
_FIRST_VERSION_WITH_ENDPOINTS = 16
_NOT_FOUND = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
#: The name and the id of the metadata log, which is not a topic.
_METADATA_LOG = (METADATA_TOPIC, METADATA_TOPIC_ID)

_Result = FetchResponse | asyncio.Future[FetchResponse]


def handle(
    broker: Broker, context: RequestContext, request: FetchRequest
) -> _Result | Coroutine[Any, Any, _Result]:
    """Handle Fetch."""
    session = None
    replica_id = _replica_id(context.version, request)
    if replica_id not in _CONSUMER_IDS:
        if not allows(broker, context, CLUSTER_ACTION, CLUSTER):
            return _refuse_replica(context.version, request, DENIED[TOPIC])
        if broker.replicas is not None:
            try:
                broker.replicas.check_follower(context, request.replica_state)
            except ApiError as error:
                return FetchResponse(error_code=error.code)
        elif not broker.cluster.sessions.is_registered(replica_id, context.connection):
            return _refuse_replica(context.version, request)
        else:
            _record_follower_offset(broker, context.version, request)
    # Most clients send (0, -1): no session.
    if request.session_id or request.session_epoch != CLOSE:
        max_sessions = broker.config.max_incremental_fetch_session_cache_slots
        max_partitions = broker.config.broker_max_partitions
        try:
            session = broker.fetch_sessions.of(
                request,
                max_sessions,
                max_partitions,
                context.received_at,
                uses_topic_ids=context.version > LAST_VERSION_WITH_TOPIC_NAMES,
                follower=request.replica_state if _is_replica(broker, context, request) else None,
            )
        except ApiError as error:
            return FetchResponse(error_code=error.code)
        if isinstance(session, FollowerSession):
            session.begin_fetch(int(time.monotonic() * 1000))
    if _is_large(request, session):
        return _read_large_and_respond(broker, context, request, session)
    result = _read(broker, context, request, session, is_first=True)
    if result.cold is not None:
        return _read_cold_and_respond(broker, context, request, session, result)
    delayed = _park(broker, context, request, session, result)
    if delayed is not None:
        return delayed
    if result.is_in_page_cache():
        return _response(broker, context, request, session, result)
    return _DelayedFetch(broker, context, request, session).load_into_page_cache(result)


def _park(
    broker: Broker,
    context: RequestContext,
    request: FetchRequest,
    session: FetchSession | None,
    result: _ReadResult,
) -> asyncio.Future[FetchResponse] | None:
    """Return the future of a fetch that waits for records; None if it is answered now."""
    missing_bytes = request.min_bytes - result.size_bytes
    if context.usage is not None:
        missing_bytes = _min_bytes(broker, context, request) - result.size_bytes
    must_wait = missing_bytes > 0 and request.max_wait_ms > 0
    if not must_wait or result.has_error:
        return None
    if isinstance(session, FollowerSession):
        if session.must_answer(result.data):
            return None
    elif not result.partitions:
        return None
    parked_bytes = fetch_request_bytes(request)
    if not broker.memory.fits(parked_bytes):
        return None
    delayed = _DelayedFetch(broker, context, request, session)
    return delayed.wait(result, missing_bytes, parked_bytes)


def _min_bytes(broker: Broker, context: RequestContext, request: FetchRequest) -> int:
    """Return how many bytes a fetch waits for: any, if it may not get as many as it asks for."""
    return request.min_bytes if request.min_bytes <= _max_bytes(broker, context, request) else 1


def _is_large(request: FetchRequest, session: FetchSession | None) -> bool:
    """Whether a request names more partitions than one slice has."""
    if session is not None:
        return session.count_to_read() > SLICE_ELEMENTS
    topics = request.topics
    if len(topics) == 1:
        return len(topics[0].partitions) > SLICE_ELEMENTS
    return sum(len(topic.partitions) for topic in topics) > SLICE_ELEMENTS


async def _read_large_and_respond(
    broker: Broker, context: RequestContext, request: FetchRequest, session: FetchSession | None
) -> _Result:
    """Read very many partitions in slices, and then proceed as with few."""
    result = await _read_in_slices(broker, context, request, session, is_first=True)
    return await _park_or_respond(broker, context, request, session, result)


async def _read_cold_and_respond(
    broker: Broker,
    context: RequestContext,
    request: FetchRequest,
    session: FetchSession | None,
    result: _ReadResult,
) -> _Result:
    """Go on with a read that would have waited for the disk, and then proceed as with others."""
    await _read_cold(broker, context, request, session, result)
    return await _park_or_respond(broker, context, request, session, result)


async def _park_or_respond(
    broker: Broker,
    context: RequestContext,
    request: FetchRequest,
    session: FetchSession | None,
    result: _ReadResult,
) -> _Result:
    # No broker has more partitions than that: do not wait for those that are named repeatedly.
    may_wait = len(result.partitions) <= broker.config.broker_max_partitions
    if may_wait and context.connection.is_open:
        delayed = _park(broker, context, request, session, result)
        if delayed is not None:
            return delayed
    result.release()
    if await result.is_in_page_cache_in_slices():
        return _response(broker, context, request, session, result)
    return _DelayedFetch(broker, context, request, session).load_into_page_cache(result)


def _replica_id(version: int, request: FetchRequest) -> int:
    if version <= LAST_VERSION_WITH_REPLICA_ID:
        return request.replica_id
    return request.replica_state.replica_id


def _is_replica(broker: Broker, context: RequestContext, request: FetchRequest) -> bool:
    """Whether a request comes from a follower of replicated partitions."""
    return (
        broker.replicas is not None and _replica_id(context.version, request) not in _CONSUMER_IDS
    )


class _ColdPartition(NamedTuple):
    """Where a read stopped, because it would have waited for the disk."""

    topic: TopicKey
    fetched: FetchPartition
    read: ColdRead
    #: What remains to be read after it.
    remaining: Sequence[tuple[TopicKey, FetchPartition]]


class _ReadResult:
    """What one read of all partitions of a request returned."""

    __slots__ = (
        "cold",
        "data",
        "has_error",
        "is_first",
        "partitions",
        "remaining_bytes",
        "sent",
        "size_bytes",
        "slices",
        "waiter",
    )

    def __init__(self, max_bytes: int, *, is_first: bool) -> None:
        self.remaining_bytes = max_bytes
        #: Whether the request is read for the first time, and not after a wait.
        self.is_first = is_first
        #: The response of each partition, with its topic.
        self.data: list[tuple[TopicKey, PartitionData]] = []
        #: The partitions that were read without an error.
        self.partitions: list[Partition] = []
        #: The records, with their index in `data`.
        self.slices: list[tuple[int, LogSlice]] = []
        #: How many bytes of which topic, for the metrics.
        self.sent: list[tuple[TopicTraffic, int]] = []
        self.size_bytes = 0
        self.has_error = False
        #: Where the read stopped; None if it is complete.
        self.cold: _ColdPartition | None = None
        #: Counts what is appended to what was read, if other tasks run before it waits.
        self.waiter: Waiter | None = None

    def release(self) -> None:
        """Do not wait for more."""
        if self.waiter is not None:
            self.waiter.cancel()
            self.waiter = None

    def is_in_page_cache(self) -> bool:
        """Whether all records are in the page cache."""
        try:
            return all(log_slice.is_in_page_cache() for _index, log_slice in self.slices)
        except OSError:
            return False  # Reading it in a thread finds and reports the error.

    async def is_in_page_cache_in_slices(self) -> bool:
        """Whether all records are in the page cache, serving other connections in between."""
        async for slices in in_slices(self.slices):
            try:
                if not all(log_slice.is_in_page_cache() for _index, log_slice in slices):
                    return False
            except OSError:
                return False
        return True


def _max_bytes(broker: Broker, context: RequestContext, request: FetchRequest) -> int:
    """Return how many bytes a response may have."""
    max_bytes = min(request.max_bytes, broker.config.fetch_max_bytes)
    usage = context.usage
    limit = None if usage is None else usage.max_fetch_bytes
    return max_bytes if limit is None else min(max_bytes, limit)


def _read(
    broker: Broker,
    context: RequestContext,
    request: FetchRequest,
    session: FetchSession | None,
    *,
    is_first: bool = False,
) -> _ReadResult:
    """Read each partition, up to its own limit and the limit of the response.

    Stops where it would wait for the disk, with `cold` of the result: `_read_cold` goes on.
    The first read of a follower's request acknowledges what the follower has.
    """
    result = _ReadResult(_max_bytes(broker, context, request), is_first=is_first)
    wanted = _partitions_of(context.version, request) if session is None else session.to_read()
    with NO_WAITING:
        _read_slice(broker, context, request, session, iter(wanted), result)
    if result.cold is not None:
        result.waiter = _new_waiter(broker, context, request, session, result)
    return result


def _new_waiter(
    broker: Broker,
    context: RequestContext,
    request: FetchRequest,
    session: FetchSession | None,
    result: _ReadResult,
) -> Waiter:
    """Return a waiter for appends to the partitions that were read, from now on."""
    is_committed = request.isolation_level == _READ_COMMITTED
    waiter = Waiter(is_committed=is_committed)
    waiter.register(_registries(broker, context, request, session, result.partitions))
    return waiter


def _registries(
    broker: Broker,
    context: RequestContext,
    request: FetchRequest,
    session: FetchSession | None,
    partitions: Sequence[Partition],
) -> Iterable[WaiterRegistry]:
    if isinstance(session, FollowerSession):
        return (session.waiters,)
    if _is_replica(broker, context, request):
        return (partition.replica_waiters for partition in partitions)
    return (partition.waiters for partition in partitions)


async def _read_in_slices(
    broker: Broker,
    context: RequestContext,
    request: FetchRequest,
    session: FetchSession | None,
    *,
    is_first: bool = False,
) -> _ReadResult:
    """Read all partitions, and serve other connections in between."""
    result = _ReadResult(_max_bytes(broker, context, request), is_first=is_first)
    # Another request of the session may change it.
    wanted = (
        _partitions_of(context.version, request) if session is None else list(session.to_read())
    )
    result.waiter = _new_waiter(broker, context, request, session, result)
    try:
        async for wanted_in_slice in in_slices(wanted):
            with NO_WAITING:
                _read_slice(broker, context, request, session, iter(wanted_in_slice), result)
            await _read_cold(broker, context, request, session, result)
    except BaseException:
        result.release()
        raise
    return result


async def _read_cold(
    broker: Broker,
    context: RequestContext,
    request: FetchRequest,
    session: FetchSession | None,
    result: _ReadResult,
) -> None:
    """Go on where a read stopped: a thread loads what is missing for a partition."""
    while result.cold is not None:
        topic, fetched, cold_read, remaining = result.cold
        result.cold = None
        try:
            await asyncio.to_thread(cold_read.load)
        except EXPECTED_ERRORS as error:
            cold_read.install()  # It may have rebuilt an index all the same.
            result.has_error = True
            result.data.append((topic, _error_data(fetched.partition, error)))
        else:
            cold_read.install()
            _read_slice(broker, context, request, session, iter([(topic, fetched)]), result)
        with NO_WAITING:
            _read_slice(broker, context, request, session, iter(remaining), result)


def _read_slice(
    broker: Broker,
    context: RequestContext,
    request: FetchRequest,
    session: FetchSession | None,
    wanted: Iterator[tuple[TopicKey, FetchPartition]],
    result: _ReadResult,
) -> None:
    """Read partitions, and add them to a result, up to one that would wait for the disk."""
    data, version = result.data, context.version
    follower_session = session if isinstance(session, FollowerSession) else None
    authorizer = broker.authorizer
    find = _finder(broker, version)
    is_consumer = _replica_id(version, request) in _CONSUMER_IDS
    is_committed = is_consumer and request.isolation_level == _READ_COMMITTED
    aborted: list[AbortedTransaction] | None = None
    for topic, fetched in wanted:
        index, is_throttled = fetched.partition, False
        try:
            if is_consumer:
                if authorizer is not None:
                    _check_read(broker, context, topic)
                try:
                    partition = find(topic, index)
                except NotLeaderError:
                    followed = broker.topics.find_followed(topic, index)
                    if followed is None or version < _FIRST_VERSION_WITH_PREFERRED_REPLICA:
                        raise
                    partition = followed
            else:
                partition = _find_for_follower(broker, topic, index)
            partition.check_epoch(fetched.current_leader_epoch)
            if fetched.last_fetched_epoch >= 0 and (diverging := _divergence(partition, fetched)):
                result.has_error = True  # Not one for the client, but an answer at once.
                data.append((topic, _empty_data(partition, diverging_epoch=diverging)))
                continue
            if request.rack_id and is_consumer and broker.replicas is not None:
                preferred = broker.replicas.preferred_read_replica(
                    context, partition, fetched.fetch_offset, request.rack_id
                )
                if preferred >= 0:
                    result.has_error = True  # As above.
                    data.append((topic, _empty_data(partition, preferred_read_replica=preferred)))
                    continue
            max_bytes = min(fetched.partition_max_bytes, result.remaining_bytes)
            if is_committed:
                log_slice, transactions = partition.read_committed(fetched.fetch_offset, max_bytes)
                aborted = [
                    AbortedTransaction(
                        producer_id=transaction.producer_id, first_offset=transaction.first_offset
                    )
                    for transaction in transactions
                ]
            elif is_consumer or broker.replicas is None:
                log_slice = partition.read(fetched.fetch_offset, max_bytes)
            else:
                log_slice = partition.read_as_follower(fetched.fetch_offset, max_bytes)
                is_throttled = broker.replicas.throttles_follower(
                    partition, request.replica_state.replica_id
                )
                if is_throttled and broker.replicas.is_leader_throttle_exceeded():
                    log_slice = LogSlice(memoryview(b""), partition.log.active_segment, 0)
                if result.is_first:
                    broker.replicas.record_fetch(partition, request.replica_state, fetched)
            if is_consumer and not log_slice.view and not _may_have_more(broker, partition):
                raise NotLeaderError(NO_LEADER, partition.leader_epoch)
        except ColdReadError:
            if result.remaining_bytes > 0 or not result.size_bytes:
                cold_read = partition.cold_read(
                    fetched.fetch_offset,
                    max_bytes,
                    is_committed=is_committed,
                    is_replica=not is_consumer and broker.replicas is not None,
                )
                result.cold = _ColdPartition(topic, fetched, cold_read, list(wanted))
                return
            # The response is full: it is not worth the wait.
            log_slice = LogSlice(memoryview(b""), partition.log.active_segment, 0)
            aborted = [] if is_committed else None
        except EXPECTED_ERRORS as error:
            result.has_error = True
            if session is not None and session.has_found(topic, index):
                error = _session_error(broker, topic, error)
            leader = _current_leader(broker, topic, index, error, version)
            start_offset = -1
            if not is_consumer and isinstance(error, OffsetOutOfRangeError):
                start_offset = partition.log.start_offset
            data.append((topic, _error_data(index, error, leader, start_offset)))
            continue
        result.partitions.append(partition)
        if result.waiter is not None and follower_session is None:
            result.waiter.register(_registries(broker, context, request, session, [partition]))
        records = log_slice.view
        size_bytes = len(records)
        # The first batch of a response is returned however large it is, or a consumer would never
        # get past it (KIP-74).
        if size_bytes > max_bytes and result.size_bytes:
            records, size_bytes = records[:0], 0
            aborted = [] if is_committed else None
        if size_bytes:
            if is_throttled and broker.replicas is not None:
                broker.replicas.record_sent(size_bytes)
            result.slices.append((len(data), log_slice))
            result.sent.append((partition.traffic, size_bytes))
            result.size_bytes += size_bytes
            result.remaining_bytes -= size_bytes
        partition_data = PartitionData(
            partition_index=index,
            high_watermark=partition.high_watermark,
            last_stable_offset=partition.last_stable_offset,
            log_start_offset=partition.log.start_offset,
            aborted_transactions=aborted,
            records=records,
        )
        data.append((topic, partition_data))
        if follower_session is not None:
            follower_session.was_read(topic, fetched, partition)


def _may_have_more(broker: Broker, partition: Partition) -> bool:
    """Whether a consumer at the end of a partition should wait here."""
    return partition.role is not Role.LEADER or broker.may_lead(partition)


def _partitions_of(
    version: int, request: FetchRequest
) -> Iterable[tuple[TopicKey, FetchPartition]]:
    if version <= LAST_VERSION_WITH_TOPIC_NAMES:
        return (
            (topic.topic, partition) for topic in request.topics for partition in topic.partitions
        )
    return (
        (topic.topic_id, partition) for topic in request.topics for partition in topic.partitions
    )


def _check_read(broker: Broker, context: RequestContext, topic: TopicKey) -> None:
    """Raise ApiError if the client may not read a topic; nothing if no topic has the id."""
    if isinstance(topic, UUID):
        found = broker.topics.image.topics_by_id.get(topic)
        if found is None:
            return
        topic = found.name
    check(broker, context, READ, TOPIC, topic)


def _finder(broker: Broker, version: int) -> Callable[[TopicKey, int], Partition]:
    """Return the function that finds partitions by what the version has: topic names or ids."""
    topics = broker.topics
    find = topics.find if version <= LAST_VERSION_WITH_TOPIC_NAMES else topics.find_by_id
    return cast("Callable[[TopicKey, int], Partition]", find)


def _response(
    broker: Broker,
    context: RequestContext,
    request: FetchRequest,
    session: FetchSession | None,
    result: _ReadResult,
) -> FetchResponse:
    data, session_id = result.data, 0
    usage = context.usage
    if usage is not None and result.size_bytes:
        seconds = usage.fetch_throttle_seconds(result.size_bytes)
        if seconds > 0:  # The session stays as it is.
            return FetchResponse(
                throttle_time_ms=max(int(seconds * 1000), 1),
                session_id=0 if session is None else session.id,
            )
    if result.size_bytes:
        _count(broker, context, request, result)
    if session is not None:
        session_id = session.id
        changed = [entry for entry in data if session.update_sent(*entry)]
        session.move_to_end(
            (topic, partition.partition_index) for topic, partition in changed if partition.records
        )
        if request.session_epoch != OPEN:
            data = changed
    topics: dict[TopicKey, list[PartitionData]] = {}
    for topic, partition in data:
        topics.setdefault(topic, []).append(partition)
    has_endpoints = result.has_error and context.version >= _FIRST_VERSION_WITH_ENDPOINTS
    return FetchResponse(
        session_id=session_id,
        responses=[_topic_response(topic, partitions) for topic, partitions in topics.items()],
        node_endpoints=_endpoints(broker, context, data) if has_endpoints else (),
    )


def _count(
    broker: Broker, context: RequestContext, request: FetchRequest, result: _ReadResult
) -> None:
    """Count what a consumer or a follower is sent."""
    if _replica_id(context.version, request) in _CONSUMER_IDS:
        broker.metrics.fetched_bytes.observe(result.size_bytes)
        for traffic, size_bytes in result.sent:
            traffic.bytes_out += size_bytes
    else:
        for traffic, size_bytes in result.sent:
            traffic.replication_bytes_out += size_bytes


def _topic_response(topic: TopicKey, partitions: Sequence[PartitionData]) -> FetchableTopicResponse:
    if isinstance(topic, UUID):
        return FetchableTopicResponse(topic_id=topic, partitions=partitions)
    return FetchableTopicResponse(topic=topic, partitions=partitions)


def _endpoints(
    broker: Broker, context: RequestContext, data: Iterable[tuple[TopicKey, PartitionData]]
) -> list[NodeEndpoint]:
    """Return the endpoints of other leaders, so that clients need no Metadata request (KIP-951)."""
    leaders = {partition.current_leader.leader_id for _topic, partition in data}
    nodes = broker.cluster.known_nodes(leaders, context)
    return [NodeEndpoint(node_id=node.id, host=node.host, port=node.port) for node in nodes]


def _session_error(broker: Broker, topic: TopicKey, error: Exception) -> Exception:
    """Return the error of a partition that the session had found, as Kafka reports it.

    A session keeps the name that its topic id had: it tells a deleted topic from one that was
    created again. An id that was never found is unknown.
    """
    if error_code_of(error) is not ErrorCode.UNKNOWN_TOPIC_ID or not isinstance(topic, UUID):
        return error
    image = broker.topics.image
    is_recreated = image.deleted_topics.get(topic) in image.topics
    return ApiError(
        ErrorCode.INCONSISTENT_TOPIC_ID if is_recreated else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )


def _current_leader(
    broker: Broker, topic: TopicKey, index: int, error: Exception, version: int
) -> LeaderIdAndEpoch:
    """Return the leader that a client does not know, according to its error."""
    if isinstance(error, NotLeaderError) and version >= _FIRST_VERSION_WITH_LEADER:
        return LeaderIdAndEpoch(leader_id=error.leader_id, leader_epoch=error.leader_epoch)
    if (
        error_code_of(error) is ErrorCode.FENCED_LEADER_EPOCH
        and version >= _FIRST_VERSION_WITH_ENDPOINTS
    ):
        followed = broker.topics.find_followed(topic, index)
        if followed is not None and followed.state is not None:
            leader_id, leader_epoch = followed.state.leader, followed.leader_epoch
        else:
            leader_id = broker.config.broker_id
            leader_epoch = _finder(broker, version)(topic, index).leader_epoch
        return LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=leader_epoch)
    return LeaderIdAndEpoch()


def _error_data(
    index: int,
    error: Exception,
    leader: LeaderIdAndEpoch | None = None,
    log_start_offset: int = -1,
) -> PartitionData:
    code = error_code_of(error)
    return PartitionData(
        partition_index=index,
        error_code=code,
        high_watermark=-1,
        log_start_offset=log_start_offset,
        current_leader=leader or LeaderIdAndEpoch(),
        # As Kafka: null only if the partition was found.
        aborted_transactions=() if code in _NOT_FOUND else None,
        records=b"",
    )


class _DelayedFetch:
    """A fetch that waits for appends or for the disk, and then completes its future."""

    def __init__(
        self,
        broker: Broker,
        context: RequestContext,
        request: FetchRequest,
        session: FetchSession | None,
    ) -> None:
        self._broker = broker
        self._context = context
        self._request = request
        self._session = session
        self._is_committed = request.isolation_level == _READ_COMMITTED
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[FetchResponse] = self._loop.create_future()

    def wait(
        self, result: _ReadResult, missing_bytes: int, parked_bytes: int
    ) -> asyncio.Future[FetchResponse]:
        """Wait for `missing_bytes` or max_wait_ms, then read again.

        It does not keep what the first read returned, so it holds no segment open meanwhile.
        """
        # Reading from the connection may be paused until then. Do not wait longer than its idle
        # timeout, so that a dead peer is noticed.
        wait_ms = min(self._request.max_wait_ms, self._broker.config.connections_max_idle_ms)
        self._deadline = self._loop.time() + wait_ms / 1000
        self._wait_for(result, missing_bytes)
        memory = self._broker.memory
        memory.parked_bytes += parked_bytes

        def end(_future: asyncio.Future[FetchResponse]) -> None:
            self._waiter.cancel()
            memory.parked_bytes -= parked_bytes

        self._future.add_done_callback(end)
        return self._future

    def _wait_for(self, result: _ReadResult, missing_bytes: int) -> None:
        self._waiter = result.waiter or _new_waiter(
            self._broker, self._context, self._request, self._session, result
        )
        self._waiter.wait(missing_bytes, self._deadline - self._loop.time(), self._complete)

    def load_into_page_cache(self, result: _ReadResult) -> asyncio.Future[FetchResponse]:
        """Read the result into the page cache in a thread, then complete with it."""
        self._broker.start_task(self._load_into_page_cache(result))
        return self._future

    def _complete(self) -> None:
        if self._future.done():
            return
        if _is_large(self._request, self._session):
            self._broker.start_task(self._complete_slowly())
            return
        try:
            result = _read(self._broker, self._context, self._request, self._session)
            if result.cold is not None:
                self._broker.start_task(self._complete_slowly(result))
                return
            if self._must_wait_longer(result):
                return
            if result.is_in_page_cache():
                self._future.set_result(self._response(result))
            else:
                self.load_into_page_cache(result)
        except Exception as error:  # noqa: BLE001  # Reported where the future is awaited.
            self._future.set_exception(error)

    async def _complete_slowly(self, result: _ReadResult | None = None) -> None:
        """Read in slices, or go on with a read that would have waited for the disk."""
        arguments = self._broker, self._context, self._request, self._session
        try:
            if result is None:
                result = await _read_in_slices(*arguments)
            else:
                await _read_cold(*arguments, result)
        except Exception as error:  # noqa: BLE001  # Reported where the future is awaited.
            if not self._future.done():
                self._future.set_exception(error)
            return
        if self._future.done():
            result.release()
        elif not self._must_wait_longer(result):
            result.release()
            await self._load_into_page_cache(result)

    def _must_wait_longer(self, result: _ReadResult) -> bool:
        """Whether to wait on, which it then does."""
        min_bytes = self._request.min_bytes
        if self._context.usage is not None:
            min_bytes = _min_bytes(self._broker, self._context, self._request)
        missing_bytes = min_bytes - result.size_bytes
        if self._is_committed and missing_bytes > 0 and self._may_wait_longer(result):
            self._wait_for(result, missing_bytes)
            return True
        return False

    def _response(self, result: _ReadResult) -> FetchResponse:
        return _response(self._broker, self._context, self._request, self._session, result)

    def _may_wait_longer(self, result: _ReadResult) -> bool:
        """Whether to wait on, after a marker that has not made enough records visible."""
        return (
            not result.has_error
            and not self._waiter.was_forced
            and self._loop.time() < self._deadline
        )

    async def _load_into_page_cache(self, result: _ReadResult) -> None:
        future = self._future
        try:
            for number, (at, log_slice) in enumerate(result.slices, start=1):
                if number % SLICE_ELEMENTS == 0:
                    await asyncio.sleep(0)
                topic, data = result.data[at]
                try:
                    if not log_slice.is_in_page_cache():
                        await asyncio.to_thread(log_slice.load_into_page_cache)
                except OSError as error:
                    result.data[at] = topic, _error_data(data.partition_index, error)
            if not future.done():
                future.set_result(self._response(result))
        except Exception as error:  # noqa: BLE001  # Reported where the future is awaited.
            if not future.done():
                future.set_exception(error)


def _record_follower_offset(broker: Broker, version: int, request: FetchRequest) -> None:
    """Record how far a follower has replicated the metadata log: up to its fetch offset."""
    for topic in request.topics:
        if _key_of(version, topic) in _METADATA_LOG and topic.partitions:
            broker.cluster.liveness.record_heartbeat(
                _replica_id(version, request), topic.partitions[0].fetch_offset
            )


def _key_of(version: int, topic: FetchTopic) -> TopicKey:
    return topic.topic if version <= LAST_VERSION_WITH_TOPIC_NAMES else topic.topic_id


def _find_for_follower(broker: Broker, topic: TopicKey, index: int) -> Partition:
    """Return a partition that other brokers replicate: in a static cluster, the metadata log."""
    if broker.replicas is not None and isinstance(topic, UUID):
        return broker.topics.find_by_id(topic, index)
    if topic not in _METADATA_LOG:
        raise ApiError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if isinstance(topic, str)
            else ErrorCode.UNKNOWN_TOPIC_ID
        )
    return broker.topics.metadata_log.partition


def _refuse_replica(
    version: int,
    request: FetchRequest,
    code: ErrorCode = ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
) -> FetchResponse:
    """Refuse a fetch with a replica id that does not come from that broker."""
    error = ApiError(code)
    return FetchResponse(
        responses=[
            _topic_response(
                _key_of(version, topic),
                [_error_data(partition.partition, error) for partition in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _divergence(partition: Partition, fetched: FetchPartition) -> EpochEndOffset | None:
    """Return where the log of the client's last leader ends, if that is before its offset."""
    if partition.role is Role.FOLLOWER and fetched.fetch_offset > partition.log.end_offset:
        return None  # A consumer has read more from the leader.
    epoch, end_offset = partition.end_of_epoch(fetched.last_fetched_epoch)
    if epoch < 0:
        log = partition.log
        raise OffsetOutOfRangeError(fetched.fetch_offset, log.start_offset, log.end_offset)
    if epoch < fetched.last_fetched_epoch or end_offset < fetched.fetch_offset:
        return EpochEndOffset(epoch=epoch, end_offset=end_offset)
    return None


def _empty_data(partition: Partition, **fields: Any) -> PartitionData:
    """Return the response for a partition that is not read here, with `fields` that say why."""
    return PartitionData(
        partition_index=partition.index,
        high_watermark=partition.high_watermark,
        last_stable_offset=partition.last_stable_offset,
        log_start_offset=partition.log.start_offset,
        aborted_transactions=None,
        records=b"",
        **fields,
    )
