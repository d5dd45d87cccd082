"""Fetch: read record batches, waiting until `min_bytes` are available.

The response is sent at once if there are min_bytes of records, if any partition has an error, or if
max_wait_ms is 0; otherwise when enough bytes have been appended or max_wait_ms has passed. With
isolation level read_committed, only records below the last stable offset are returned and counted,
with a list of the transactions among them that were aborted.

Records are views of mapped segments, passed to the socket without a copy. Pages that are not in the
page cache are read by a thread first, so that the event loop never waits for the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ottla.coord.metadata_image import METADATA_TOPIC
from ottla.protocol.api.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
)
from ottla.protocol.errors import ErrorCode
from ottla.storage.errors import OffsetOutOfRangeError
from ottla.storage.log import LogSlice

from ..errors import EXPECTED_ERRORS, ApiError, NotLeaderError, error_code_of
from ..fetch_sessions import CLOSE, OPEN, FetchSession
from ..memory_account import fetch_request_bytes
from ..waiters import Waiter

if TYPE_CHECKING:
    from ...broker import Broker
    from ...partitions.partition import Partition
    from ..dispatch import RequestContext

#: Replica ids that mean a consumer: Kafka's ordinary and debugging consumer ids.
_CONSUMER_IDS = (-1, -2)
_READ_COMMITTED = 1
_FIRST_VERSION_WITH_LEADER = 12


def handle(
    broker: Broker, context: RequestContext, request: FetchRequest
) -> FetchResponse | asyncio.Future[FetchResponse]:
    """Handle Fetch."""
    session = None
    if request.replica_id not in _CONSUMER_IDS:
        if not broker.cluster.sessions.is_registered(request.replica_id, context.connection):
            return _refuse_replica(context.version, request)
        _record_follower_offset(broker, request)
    # Most clients send (0, -1): no session.
    if request.session_id or request.session_epoch != CLOSE:
        max_sessions = broker.config.max_incremental_fetch_session_cache_slots
        max_partitions = broker.config.broker_max_partitions
        try:
            session = broker.fetch_sessions.of(
                request, max_sessions, max_partitions, context.received_at
            )
        except ApiError as error:
            return FetchResponse(error_code=error.code)
    result = _read(broker, context.version, request, session)
    missing_bytes = request.min_bytes - result.size_bytes
    must_wait = missing_bytes > 0 and request.max_wait_ms > 0
    parked_bytes = fetch_request_bytes(request) if must_wait else 0
    if (
        must_wait
        and result.partitions
        and not result.has_error
        and broker.memory.fits(parked_bytes)
    ):
        delayed = _DelayedFetch(broker, context.version, request, session)
        return delayed.wait(result.partitions, missing_bytes, parked_bytes)
    if result.is_in_page_cache():
        return _response(request, session, result)
    return _DelayedFetch(broker, context.version, request, session).load_into_page_cache(result)


class _ReadResult:
    """What one read of all partitions of a request returned."""

    __slots__ = ("data", "has_error", "partitions", "size_bytes", "slices")

    def __init__(self) -> None:
        #: The response of each partition, with its topic.
        self.data: list[tuple[str, PartitionData]] = []
        #: The partitions that were read without an error.
        self.partitions: list[Partition] = []
        #: The records, with their index in `data`.
        self.slices: list[tuple[int, LogSlice]] = []
        self.size_bytes = 0
        self.has_error = False

    def is_in_page_cache(self) -> bool:
        """Whether all records are in the page cache."""
        try:
            return all(log_slice.is_in_page_cache() for _index, log_slice in self.slices)
        except OSError:
            return False  # Reading it in a thread finds and reports the error.


def _read(
    broker: Broker, version: int, request: FetchRequest, session: FetchSession | None
) -> _ReadResult:
    """Read each partition, up to its own limit and the limit of the response."""
    result = _ReadResult()
    data, topics = result.data, broker.topics
    is_consumer = request.replica_id in _CONSUMER_IDS
    is_committed = is_consumer and request.isolation_level == _READ_COMMITTED
    aborted: list[AbortedTransaction] | None = None
    remaining_bytes = min(request.max_bytes, broker.config.fetch_max_bytes)
    for topic, fetched in _partitions_of(request) if session is None else session.partitions():
        index = fetched.partition
        try:
            if is_consumer:
                partition = topics.find(topic, index)
            else:
                partition = _find_for_follower(broker, topic)
            partition.check_epoch(fetched.current_leader_epoch)
            if fetched.last_fetched_epoch >= 0 and (diverging := _divergence(partition, fetched)):
                result.has_error = True  # Not one for the client, but an answer at once.
                data.append((topic, _diverging_data(partition, diverging)))
                continue
            max_bytes = min(fetched.partition_max_bytes, remaining_bytes)
            if is_committed:
                log_slice, transactions = partition.read_committed(fetched.fetch_offset, max_bytes)
                aborted = [
                    AbortedTransaction(
                        producer_id=transaction.producer_id, first_offset=transaction.first_offset
                    )
                    for transaction in transactions
                ]
            else:
                log_slice = partition.read(fetched.fetch_offset, max_bytes)
        except EXPECTED_ERRORS as error:
            result.has_error = True
            data.append((topic, _error_data(index, error, version)))
            continue
        result.partitions.append(partition)
        records = log_slice.view
        size_bytes = len(records)
        # The first batch of a response is returned however large it is, or a consumer would never
        # get past it (KIP-74).
        if size_bytes > max_bytes and result.size_bytes:
            records, size_bytes = records[:0], 0
            aborted = [] if is_committed else None
        if size_bytes:
            result.slices.append((len(data), log_slice))
            result.size_bytes += size_bytes
            remaining_bytes -= size_bytes
        partition_data = PartitionData(
            partition_index=index,
            high_watermark=partition.high_watermark,
            last_stable_offset=partition.last_stable_offset,
            log_start_offset=partition.log.start_offset,
            aborted_transactions=aborted,
            records=records,
        )
        data.append((topic, partition_data))
    return result


def _partitions_of(request: FetchRequest) -> Iterable[tuple[str, FetchPartition]]:
    return ((topic.topic, partition) for topic in request.topics for partition in topic.partitions)


def _response(
    request: FetchRequest, session: FetchSession | None, result: _ReadResult
) -> FetchResponse:
    data, session_id = result.data, 0
    if session is not None:
        session_id = session.id
        changed = [entry for entry in data if session.update_sent(*entry)]
        session.move_to_end(
            (topic, partition.partition_index) for topic, partition in changed if partition.records
        )
        if request.session_epoch != OPEN:
            data = changed
    topics: dict[str, list[PartitionData]] = {}
    for topic, partition in data:
        topics.setdefault(topic, []).append(partition)
    return FetchResponse(
        session_id=session_id,
        responses=[
            FetchableTopicResponse(topic=topic, partitions=partitions)
            for topic, partitions in topics.items()
        ],
    )


def _error_data(index: int, error: Exception, version: int) -> PartitionData:
    leader = LeaderIdAndEpoch()
    if version >= _FIRST_VERSION_WITH_LEADER and isinstance(error, NotLeaderError):
        leader = LeaderIdAndEpoch(leader_id=error.leader_id, leader_epoch=error.leader_epoch)
    code = error_code_of(error)
    return PartitionData(
        partition_index=index,
        error_code=code,
        high_watermark=-1,
        current_leader=leader,
        # As Kafka: null only if the partition was found.
        aborted_transactions=() if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else None,
        records=b"",
    )


class _DelayedFetch:
    """A fetch that waits for appends or for the disk, and then completes its future."""

    def __init__(
        self, broker: Broker, version: int, request: FetchRequest, session: FetchSession | None
    ) -> None:
        self._broker = broker
        self._version = version
        self._request = request
        self._session = session
        self._is_committed = request.isolation_level == _READ_COMMITTED
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[FetchResponse] = self._loop.create_future()

    def wait(
        self, partitions: Sequence[Partition], missing_bytes: int, parked_bytes: int
    ) -> asyncio.Future[FetchResponse]:
        """Wait for `missing_bytes` or max_wait_ms, then read again.

        It does not keep what the first read returned, so it holds no segment open meanwhile.
        """
        # Reading from the connection may be paused until then. Do not wait longer than its idle
        # timeout, so that a dead peer is noticed.
        wait_ms = min(self._request.max_wait_ms, self._broker.config.connections_max_idle_ms)
        self._deadline = self._loop.time() + wait_ms / 1000
        self._wait_for(partitions, missing_bytes)
        memory = self._broker.memory
        memory.parked_bytes += parked_bytes

        def end(_future: asyncio.Future[FetchResponse]) -> None:
            self._waiter.cancel()
            memory.parked_bytes -= parked_bytes

        self._future.add_done_callback(end)
        return self._future

    def _wait_for(self, partitions: Sequence[Partition], missing_bytes: int) -> None:
        self._waiter = Waiter(
            partitions,
            missing_bytes,
            self._deadline - self._loop.time(),
            self._complete,
            is_committed=self._is_committed,
        )

    def load_into_page_cache(self, result: _ReadResult) -> asyncio.Future[FetchResponse]:
        """Read the result into the page cache in a thread, then complete with it."""
        self._broker.start_task(self._load_into_page_cache(result))
        return self._future

    def _complete(self) -> None:
        if self._future.done():
            return
        try:
            result = _read(self._broker, self._version, self._request, self._session)
            missing_bytes = self._request.min_bytes - result.size_bytes
            if self._is_committed and missing_bytes > 0 and self._may_wait_longer(result):
                self._wait_for(result.partitions, missing_bytes)
            elif result.is_in_page_cache():
                self._future.set_result(_response(self._request, self._session, result))
            else:
                self.load_into_page_cache(result)
        except Exception as error:  # noqa: BLE001  # Reported where the future is awaited.
            self._future.set_exception(error)

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
            for at, log_slice in result.slices:
                topic, data = result.data[at]
                try:
                    if not log_slice.is_in_page_cache():
                        await asyncio.to_thread(log_slice.load_into_page_cache)
                except OSError as error:
                    failed = _error_data(data.partition_index, error, self._version)
                    result.data[at] = topic, failed
            if not future.done():
                future.set_result(_response(self._request, self._session, result))
        except Exception as error:  # noqa: BLE001  # Reported where the future is awaited.
            if not future.done():
                future.set_exception(error)


def _record_follower_offset(broker: Broker, request: FetchRequest) -> None:
    """Record how far a follower has replicated the metadata log: up to its fetch offset."""
    for topic in request.topics:
        if topic.topic == METADATA_TOPIC and topic.partitions:
            broker.cluster.liveness.record_heartbeat(
                request.replica_id, topic.partitions[0].fetch_offset
            )


def _find_for_follower(broker: Broker, topic: str) -> Partition:
    """Return the partition of the metadata log, the only one that other brokers replicate."""
    if topic != METADATA_TOPIC:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return broker.topics.metadata_log.partition


def _refuse_replica(version: int, request: FetchRequest) -> FetchResponse:
    """Refuse a fetch with a replica id that does not come from that broker."""
    error = ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic=topic.topic,
                partitions=[
                    _error_data(partition.partition, error, version)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _divergence(partition: Partition, fetched: FetchPartition) -> EpochEndOffset | None:
    """Return where the log of the client's last leader ends, if that is before its offset."""
    epoch, end_offset = partition.end_of_epoch(fetched.last_fetched_epoch)
    if epoch < 0:
        log = partition.log
        raise OffsetOutOfRangeError(fetched.fetch_offset, log.start_offset, log.end_offset)
    if epoch < fetched.last_fetched_epoch or end_offset < fetched.fetch_offset:
        return EpochEndOffset(epoch=epoch, end_offset=end_offset)
    return None


def _diverging_data(partition: Partition, diverging: EpochEndOffset) -> PartitionData:
    return PartitionData(
        partition_index=partition.index,
        high_watermark=partition.high_watermark,
        last_stable_offset=partition.last_stable_offset,
        log_start_offset=partition.log.start_offset,
        diverging_epoch=diverging,
        aborted_transactions=None,
        records=b"",
    )
