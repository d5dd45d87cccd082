"""Fetch: give batches, and wait for them if there are not enough.

A response is answered at once if there are min_bytes of records, if any partition has an error, or
if the client does not want to wait; else when enough was appended, or when it has waited for
max_wait_ms. What it has are views of mapped files, which go from here to the socket; what is not in
the page cache is brought there by a thread first, so that the event loop does not wait for a disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ottla.coord.metadata_image import METADATA_TOPIC
from ottla.protocol.api.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
)
from ottla.protocol.errors import ErrorCode
from ottla.storage.log import Slice

from ...partitions.partition import LEADER_EPOCH
from ..errors import EXPECTED_ERRORS, ApiError, NotLeaderError, error_code_of
from ..fetch_sessions import CLOSE, OPEN, FetchSession
from ..waiters import Waiter

if TYPE_CHECKING:
    from ...broker import Broker
    from ...partitions.partition import Partition
    from ..dispatch import RequestContext

_CONSUMERS = (-1, -2)
_READ_COMMITTED = 1
_FIRST_WITH_LEADER = 12


def handle(
    broker: Broker, context: RequestContext, request: FetchRequest
) -> FetchResponse | asyncio.Future[FetchResponse]:
    """Answer Fetch."""
    session = None
    if request.replica_id not in _CONSUMERS:
        _note_replica(broker, request)
    # (0, -1), which is what most clients send, does without a session.
    if request.session_id or request.session_epoch != CLOSE:
        slots = broker.config.max_incremental_fetch_session_cache_slots
        most = broker.config.broker_max_partitions
        try:
            session = broker.fetch_sessions.of(request, slots, most, context.started)
        except ApiError as error:
            return FetchResponse(error_code=error.code)
    return _Fetch(broker, context.version, request, session).start()


def _note_replica(broker: Broker, request: FetchRequest) -> None:
    """Take note how far another broker is with the metadata: all before what it asks for."""
    if request.replica_id in broker.cluster.followers:
        for topic in request.topics:
            if topic.topic == METADATA_TOPIC and topic.partitions:
                broker.cluster.followers.heard(request.replica_id, topic.partitions[0].fetch_offset)


def _find_for_replica(broker: Broker, replica_id: int, topic: str) -> Partition:
    """Give what a broker of this cluster may follow: the metadata, and nothing else."""
    if replica_id not in broker.cluster.followers:
        raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if topic != METADATA_TOPIC:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return broker.topics.metadata_log.partition


class _Fetch:
    """One fetch, from the first look to the answer."""

    def __init__(
        self, broker: Broker, version: int, request: FetchRequest, session: FetchSession | None
    ) -> None:
        self._broker = broker
        self._version = version
        self._request = request
        self._session = session
        self._future: asyncio.Future[FetchResponse] | None = None
        self._is_committed = request.isolation_level == _READ_COMMITTED
        # What the last look found.
        self._size_bytes = 0
        self._has_error = False
        self._partitions: list[Partition] = []
        self._slices: list[tuple[int, Slice]] = []

    def start(self) -> FetchResponse | asyncio.Future[FetchResponse]:
        """Answer at once, or wait."""
        found = self._look()
        request = self._request
        missing = request.min_bytes - self._size_bytes
        if missing <= 0 or self._has_error or request.max_wait_ms <= 0 or not self._partitions:
            if self._is_warm():
                return self._response(found)
            self._future = asyncio.get_running_loop().create_future()
            self._broker.start_task(self._warm_up(found))
        else:
            self._future = asyncio.get_running_loop().create_future()
            # It looks again when it is over, and holds no file until then.
            self._slices = []
            # A connection is not read from for ever: who has gone away must be noticed.
            wait_ms = min(request.max_wait_ms, self._broker.config.connections_max_idle_ms)
            waiter = Waiter(self._partitions, missing, wait_ms / 1000, self._look_again)
            self._future.add_done_callback(lambda _future: waiter.cancel())
        return self._future

    def _look_again(self) -> None:
        future = self._future
        assert future is not None
        if future.done():
            return
        try:
            found = self._look()
            if self._is_warm():
                future.set_result(self._response(found))
            else:
                self._broker.start_task(self._warm_up(found))
        except Exception as error:  # noqa: BLE001  # the one who waits is to hear of it
            future.set_exception(error)

    def _is_warm(self) -> bool:
        try:
            return all(part.is_warm() for _at, part in self._slices)
        except OSError:
            return False  # the thread will find out what it is

    async def _warm_up(self, found: list[tuple[str, PartitionData]]) -> None:
        """Bring what was found into the page cache, and answer with it."""
        future = self._future
        assert future is not None
        try:
            for at, part in self._slices:
                topic, data = found[at]
                try:
                    if not part.is_warm():
                        await asyncio.to_thread(part.warm)
                except OSError as error:
                    found[at] = topic, _failed(data.partition_index, error, self._version)
            if not future.done():
                future.set_result(self._response(found))
        except Exception as error:  # noqa: BLE001  # likewise
            if not future.done():
                future.set_exception(error)

    def _wanted(self) -> Iterable[tuple[str, FetchPartition]]:
        if self._session is not None:
            return self._session.wanted()
        return (
            (topic.topic, partition)
            for topic in self._request.topics
            for partition in topic.partitions
        )

    def _look(self) -> list[tuple[str, PartitionData]]:
        """Read from each partition as much as it, and all of them, may give."""
        request, topics = self._request, self._broker.topics
        left = min(request.max_bytes, self._broker.config.fetch_max_bytes)
        aborted: list[AbortedTransaction] | None = [] if self._is_committed else None
        self._size_bytes, self._has_error = 0, False
        self._partitions, self._slices = [], []
        found: list[tuple[str, PartitionData]] = []
        for topic, wanted in self._wanted():
            index = wanted.partition
            try:
                if request.replica_id in _CONSUMERS:
                    partition = topics.find(topic, index)
                else:
                    partition = _find_for_replica(self._broker, request.replica_id, topic)
                partition.check_epoch(wanted.current_leader_epoch)
                most = min(wanted.partition_max_bytes, left)
                part = partition.read(wanted.fetch_offset, most)
            except EXPECTED_ERRORS as error:
                self._has_error = True
                found.append((topic, _failed(index, error, self._version)))
                continue
            self._partitions.append(partition)
            records = part.view
            size = len(records)
            # The first batch is given however large it is, or a consumer would never get past it.
            if size > most and self._size_bytes:
                records, size = records[:0], 0
            if size:
                self._slices.append((len(found), part))
                self._size_bytes += size
                left -= size
            end = partition.high_watermark
            data = PartitionData(
                partition_index=index,
                high_watermark=end,
                last_stable_offset=end,
                log_start_offset=partition.log.start_offset,
                aborted_transactions=aborted,
                records=records,
            )
            found.append((topic, data))
        return found

    def _response(self, found: list[tuple[str, PartitionData]]) -> FetchResponse:
        session, session_id = self._session, 0
        if session is not None:
            session_id = session.id
            news = [(topic, data) for topic, data in found if session.is_news(topic, data)]
            session.rotate((topic, data.partition_index) for topic, data in news if data.records)
            if self._request.session_epoch != OPEN:
                found = news
        topics: dict[str, list[PartitionData]] = {}
        for topic, data in found:
            topics.setdefault(topic, []).append(data)
        return FetchResponse(
            session_id=session_id,
            responses=[
                FetchableTopicResponse(topic=topic, partitions=partitions)
                for topic, partitions in topics.items()
            ],
        )


def _failed(index: int, error: Exception, version: int) -> PartitionData:
    leader = LeaderIdAndEpoch()
    if version >= _FIRST_WITH_LEADER and isinstance(error, NotLeaderError):
        leader = LeaderIdAndEpoch(leader_id=error.leader_id, leader_epoch=LEADER_EPOCH)
    return PartitionData(
        partition_index=index,
        error_code=error_code_of(error),
        high_watermark=-1,
        current_leader=leader,
        aborted_transactions=None,
        records=b"",
    )
