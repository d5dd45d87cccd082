"""ShareFetch: acknowledge records of share partitions, and acquire others (KIP-932).

The acknowledgements are applied first. Then the request waits until there are records to acquire in
any partition of the session, or for max_wait_ms. The response is sent when everything that it says
is stored: see `LedSharePartition`. Fetching and acknowledging fail independently.

The first response of a session lists every partition, later ones only those with news.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from ottla.coord.consumer.partitions import TopicIdPartition
from ottla.protocol.api.share_acknowledge import LeaderIdAndEpoch
from ottla.protocol.api.share_fetch import (
    AcquiredRecords,
    PartitionData,
    ShareFetchableTopicResponse,
    ShareFetchRequest,
    ShareFetchResponse,
)
from ottla.protocol.errors import ErrorCode

from ...shares.acknowledgements import (
    Outcome,
    acknowledge,
    acknowledge_in_slices,
    check_topic,
    error_of,
)
from ...shares.acquisition import Acquired, AcquisitionLimits, acquire
from ...shares.led_share_partition import LedSharePartition, as_api_error
from ...shares.persister import SharePartitionKey
from ...shares.responses import current_leader, node_endpoints, session_key
from ...shares.share_sessions import CLOSE, OPEN, SessionKey, ShareSession
from ..errors import EXPECTED_ERRORS, ApiError
from ..memory_account import PARTITION_BYTES
from ..slices import SLICE_ELEMENTS, is_large
from ..waiters import Waiter

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext

_RECORD_LIMIT_MODE = 1
#: Errors that a client learns of; others concern the state, which is read again by the next fetch.
_ERRORS_OF_PARTITIONS = frozenset(
    (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LEADER_NOT_AVAILABLE,
    )
)


def handle(
    broker: Broker, context: RequestContext, request: ShareFetchRequest
) -> ShareFetchResponse | Awaitable[ShareFetchResponse]:
    """Handle ShareFetch."""
    try:
        key = session_key(request)
        session = _session(broker, context, key, request)
    except ApiError as error:
        return _error(error)
    if is_large(request.topics):
        return _handle_large(broker, context, request, session, key)
    acknowledged = acknowledge(
        broker, context, key, request.topics, is_renew_ack=request.is_renew_ack
    )
    if session is None:
        broker.shares.release(key)
    return _ShareFetch(broker, context, request, session, key, acknowledged).start()


async def _handle_large(
    broker: Broker,
    context: RequestContext,
    request: ShareFetchRequest,
    session: ShareSession | None,
    key: SessionKey,
) -> ShareFetchResponse:
    """Do the same, giving way to other tasks."""
    acknowledged = await acknowledge_in_slices(
        broker, context, key, request.topics, is_renew_ack=request.is_renew_ack
    )
    if session is None:
        broker.shares.release(key)
    return await _ShareFetch(broker, context, request, session, key, acknowledged).start()


def _session(
    broker: Broker, context: RequestContext, key: SessionKey, request: ShareFetchRequest
) -> ShareSession | None:
    """Return the session of a request, updated by it; None if it is closed. Raises ApiError."""
    sessions, epoch = broker.shares.sessions, request.share_session_epoch
    if request.is_renew_ack and (
        request.max_wait_ms or request.min_bytes or request.max_bytes or request.max_records
    ):
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            "MaxWaitMs, MinBytes, MaxBytes and MaxRecords must be 0 with IsRenewAck",
        )
    if epoch == CLOSE:
        sessions.close(key, context.connection)
        return None
    if epoch == OPEN:
        if any(one.acknowledgement_batches for topic in request.topics for one in topic.partitions):
            raise ApiError(
                ErrorCode.INVALID_REQUEST, "The first request of a session cannot acknowledge"
            )
        max_sessions = broker.config.group_share_max_share_sessions
        session = sessions.open(key, context.connection, max_sessions)
    else:
        session = sessions.next(key, epoch, context.connection)
    sessions.update(
        session,
        (
            TopicIdPartition(topic.topic_id, partition.partition_index)
            for topic in request.topics
            for partition in topic.partitions
        ),
        (
            TopicIdPartition(topic.topic_id, index)
            for topic in request.forgotten_topics_data
            for index in topic.partitions
        )
        if epoch != OPEN
        else (),
    )
    if len(session) > broker.config.broker_max_partitions or not broker.memory.fits(0):
        sessions.lose(key)
        raise ApiError(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
    return session


def _error(error: ApiError) -> ShareFetchResponse:
    return ShareFetchResponse(error_code=error.code, error_message=str(error))


class _ShareFetch:
    """A request that acquires records, or waits for them."""

    def __init__(
        self,
        broker: Broker,
        context: RequestContext,
        request: ShareFetchRequest,
        session: ShareSession | None,
        key: SessionKey,
        acknowledged: dict[TopicIdPartition, Outcome],
    ) -> None:
        self._broker = broker
        self._context = context
        self._request = request
        self._session = session
        self._key = key
        self._acknowledged = acknowledged
        self._config = broker.shares.config_of(key.group_id)
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[ShareFetchResponse] = self._loop.create_future()
        self._opened: dict[TopicIdPartition, LedSharePartition] = {}
        self._errors: dict[TopicIdPartition, Exception] = {}
        self._acquired: dict[TopicIdPartition, Acquired] = {}
        self._remaining_records = request.max_records
        self._remaining_bytes = min(request.max_bytes, broker.config.fetch_max_bytes)
        self._throttle_seconds = 0.0
        # The partitions that have just been added to the session.
        self._new = frozenset(() if session is None else session.unanswered)

    def start(self) -> asyncio.Future[ShareFetchResponse]:
        """Return a future of the response. Canceling it ends the wait for records."""
        self._broker.start_task(self._run())
        return self._future

    async def _run(self) -> None:
        try:
            if self._session is not None and not self._request.is_renew_ack:
                await self._fetch(self._session)
            response = await self._respond()
        except ApiError as error:
            response = _error(error)
        except Exception as error:  # noqa: BLE001  # Reported where the future is awaited.
            if not self._future.done():
                self._future.set_exception(error)
            return
        if not self._future.done():
            self._future.set_result(response)

    # Acquiring.

    @property
    def _is_wanted(self) -> bool:
        is_lost = self._session is not None and self._session.is_closed
        return not self._future.done() and self._context.connection.is_open and not is_lost

    @property
    def _is_complete(self) -> bool:
        return bool(self._acquired or self._errors) or not self._is_wanted

    async def _fetch(self, session: ShareSession) -> None:
        usage = self._context.usage
        if usage is not None:
            if usage.max_fetch_bytes is not None:
                self._remaining_bytes = min(self._remaining_bytes, usage.max_fetch_bytes)
            self._throttle_seconds = usage.fetch_throttle_seconds(0)
            if self._throttle_seconds > 0:
                return
        await self._acquire(session)
        memory, parked_bytes = self._broker.memory, PARTITION_BYTES * (1 + len(session))
        max_wait_ms = min(self._request.max_wait_ms, self._broker.config.connections_max_idle_ms)
        if self._is_complete or max_wait_ms <= 0 or not memory.fits(parked_bytes):
            return
        memory.parked_bytes += parked_bytes
        try:
            await self._acquire_later(session, self._loop.time() + max_wait_ms / 1000)
        finally:
            memory.parked_bytes -= parked_bytes

    async def _acquire_later(self, session: ShareSession, deadline: float) -> None:
        while not self._is_complete:
            is_committed = self._config.isolation_level == "read_committed"
            waiter = Waiter(is_committed=is_committed)
            for led in self._opened.values():
                waiter.register((led.partition.waiters, led.waiters))
            try:
                # What became available since it was looked for the last time.
                await self._acquire(session)
                if not self._is_complete:
                    await self._wait(waiter, deadline - self._loop.time())
            finally:
                waiter.cancel()
            if waiter.was_forced or self._loop.time() >= deadline:
                return
            if not self._is_complete:
                await self._acquire(session)

    async def _wait(self, waiter: Waiter, seconds: float) -> None:
        """Wait until records are appended or become available, or nobody waits for them."""
        woken = self._loop.create_future()

        def wake(_future: object = None) -> None:
            if not woken.done():
                woken.set_result(None)

        self._future.add_done_callback(wake)
        waiter.wait(1, seconds, wake)
        await woken
        self._future.remove_done_callback(wake)

    async def _acquire(self, session: ShareSession) -> None:
        """Acquire records in any partition of the session that has some."""
        if len(session) < SLICE_ELEMENTS:
            await self._acquire_in_turn(session)
            return
        async with self._broker.shares.large_session_lock:
            await self._acquire_in_turn(session)

    async def _acquire_in_turn(self, session: ShareSession) -> None:
        for number, tp in enumerate(session, start=1):
            if number % SLICE_ELEMENTS == 0:
                await asyncio.sleep(0)
            if not self._is_wanted or self._remaining_records <= 0 or self._remaining_bytes <= 0:
                return
            if tp in self._errors or tp in self._acquired:
                continue
            try:
                acquired = await self._acquire_in(tp)
            except _GroupNotFoundError:
                raise
            except EXPECTED_ERRORS as error:
                if as_api_error(error).code in _ERRORS_OF_PARTITIONS:
                    self._errors[tp] = error
                continue
            if acquired is not None:
                self._acquired[tp] = acquired
                self._broker.shares.note_acquired(self._key, tp)
                if session.is_closed and self._key not in self._broker.shares.sessions:
                    self._broker.shares.release(self._key)  # It was lost meanwhile.
                self._remaining_records -= sum(one.size for one in acquired.ranges)
                self._remaining_bytes -= len(acquired.data)

    async def _acquire_in(self, tp: TopicIdPartition) -> Acquired | None:
        check_topic(self._broker, self._context, tp.topic_id)
        before = self._opened.get(tp)
        if before is not None and before.error is not None:
            del self._opened[tp]
            if before.error.code is ErrorCode.GROUP_ID_NOT_FOUND:
                raise _GroupNotFoundError
        shares = self._broker.shares
        led = self._opened[tp] = shares.open(SharePartitionKey(self._key.group_id, tp))
        if led.records is None:
            return None  # It is being loaded, and wakes this request then.
        led.configure(self._config)
        if before is None:
            led.verify(is_forced=tp in self._new)
        return await acquire(
            led,
            AcquisitionLimits(
                self._key.member_id,
                self._remaining_records,
                self._remaining_bytes,
                self._request.share_acquire_mode == _RECORD_LIMIT_MODE,
                self._config.isolation_level == "read_committed",
            ),
        )

    # Responding.

    async def _respond(self) -> ShareFetchResponse:
        data: dict[TopicIdPartition, PartitionData] = {}
        size_bytes = 0
        for tp in self._answered():
            acknowledged = self._acknowledged.get(tp)
            refused = None if acknowledged is None else await error_of(acknowledged)
            acquired, error = self._acquired.get(tp), self._errors.get(tp)
            if acquired is not None:
                lost = await error_of(acquired.stored)
                if lost is not None:
                    acquired = None
                    error = lost if lost.code in _ERRORS_OF_PARTITIONS else None
            data[tp] = self._data(tp, acquired, error, refused)
            if acquired is not None:
                size_bytes += len(acquired.data)
                self._opened[tp].partition.traffic.bytes_out += len(acquired.data)
                self._count(acquired)
        if self._session is not None:
            self._session.unanswered.difference_update(data)
            self._session.move_to_end(self._acquired)
        usage = self._context.usage
        if usage is not None and size_bytes:
            self._throttle_seconds = usage.fetched_throttle_seconds(size_bytes)
        topics: dict[UUID, list[PartitionData]] = {}
        for tp, partition in data.items():
            topics.setdefault(tp.topic_id, []).append(partition)
        return ShareFetchResponse(
            throttle_time_ms=int(self._throttle_seconds * 1000),
            acquisition_lock_timeout_ms=self._config.lock_duration_ms,
            responses=[
                ShareFetchableTopicResponse(topic_id=topic_id, partitions=partitions)
                for topic_id, partitions in topics.items()
            ],
            node_endpoints=node_endpoints(
                self._broker, self._context, (one.current_leader for one in data.values())
            ),
        )

    def _answered(self) -> Sequence[TopicIdPartition]:
        """Return the partitions that the response has."""
        unanswered = () if self._session is None else self._session.unanswered
        in_order = [] if self._session is None else list(self._session)
        return list(
            dict.fromkeys(
                (
                    *self._acknowledged,
                    *self._acquired,
                    *self._errors,
                    *(tp for tp in in_order if tp in unanswered),
                )
            )
        )

    def _data(
        self,
        tp: TopicIdPartition,
        acquired: Acquired | None,
        error: Exception | None,
        refused: ApiError | None,
    ) -> PartitionData:
        failed = None if error is None else as_api_error(error)
        leader = LeaderIdAndEpoch()
        for one in (failed, refused):
            if one is not None and one.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                leader = current_leader(self._broker, tp, one)
        return PartitionData(
            partition_index=tp.partition,
            error_code=ErrorCode.NONE if failed is None else failed.code,
            error_message=None if failed is None else str(failed),
            acknowledge_error_code=ErrorCode.NONE if refused is None else refused.code,
            acknowledge_error_message=None if refused is None else str(refused),
            current_leader=leader,
            records=b"" if acquired is None else acquired.data,
            acquired_records=[
                AcquiredRecords(
                    first_offset=one.first, last_offset=one.last, delivery_count=one.delivery_count
                )
                for one in (() if acquired is None else acquired.ranges)
            ],
        )

    def _count(self, acquired: Acquired) -> None:
        counts = self._broker.shares.counts
        for one in acquired.ranges:
            counts.acquired += one.size
            if one.delivery_count > 1:
                counts.redelivered += one.size


class _GroupNotFoundError(ApiError):
    """The group was deleted: the whole request fails."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.GROUP_ID_NOT_FOUND)
