"""Runs one coordinator shard on the log of its partition.

The shard decides, the runtime does the I/O: it appends records, replays each one once it is as
durable as the topic asks for, completes requests, and keeps one timer for the next deadline of the
shard. Appends complete in the order of the log, so that the shard's state is always that of a
prefix of it.

A shard is a GroupShard or a TransactionShard; the runtime is the same for both.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from ottla.coord.deadlines import Deadlines, Now
from ottla.coord.effects import (
    Append,
    Compute,
    Effect,
    Gather,
    LogMessage,
    Producer,
    Reply,
    SendMarkers,
)
from ottla.coord.metadata_image import KeyValue
from ottla.protocol.batch import RecordBatch, build_batch, parse_marker
from ottla.protocol.compression import Compression
from ottla.protocol.errors import BatchError, DecodeError, ErrorCode
from ottla.storage.errors import BatchTooLargeError, InvalidProducerEpochError
from ottla.storage.log import LogAppendInfo

from ..cluster.metadata_log import build_key_value_batch, read_key_values
from ..partitions.partition import Partition
from ..requests.errors import EXPECTED_ERRORS, NotLeaderError

logger = logging.getLogger(__name__)

#: A load yields to other tasks after this many records.
_RECORDS_PER_SLICE = 1000
_NO_PRODUCER_ID = -1

R = TypeVar("R")


class Shard(Protocol):
    """What the runtime needs of a shard."""

    #: What the shard has, as a field of the broker's log.
    kind: str
    size_bytes: int
    deadlines: Deadlines[Any]

    def __len__(self) -> int: ...

    def encode(self, record: Any, /) -> KeyValue:
        """Encode a record for the log."""

    def decode(self, key: bytes, value: bytes | None, /) -> Any:
        """Decode a record of the log; None for a key of an unknown version."""

    def replay(self, record: Any, *, offset: int = -1, producer_id: int = -1) -> None:
        """Apply a record; with a producer id, one of an open transaction."""

    def replay_marker(self, producer_id: int, *, is_commit: bool) -> None:
        """Apply the end of a transaction."""

    def activate(self, now: Now) -> list[Effect]:
        """Start to handle requests, after a load."""

    def expire(self, now: Now) -> list[Effect]:
        """Handle all timers that are due."""

    def refuse_waiting(self, code: ErrorCode) -> list[Effect]:
        """Answer all waiting requests."""


S = TypeVar("S", bound=Shard)
#: Handles a request; the future is the token of its response.
Event = Callable[[S, "asyncio.Future[R]", Now], list[Effect]]


class TransactionMarker(NamedTuple):
    """The end of a transaction, as a partition stores it."""

    producer: Producer
    is_commit: bool
    coordinator_epoch: int
    transaction_version: int


class _AppendedMarker(NamedTuple):
    """A marker in the log of the shard's partition, and what is called when it is replayed."""

    marker: TransactionMarker
    complete: Callable[[Exception | None], None]


class LoggedRecord(NamedTuple):
    """The value of a record while the log is read."""

    offset: int
    value: bytes | None
    producer_id: int


def _ignore_markers(_effect: SendMarkers) -> None: ...


class ShardRuntime(Generic[S]):
    """A shard and its partition, from load to unload.

    `send_markers` carries out that effect, and `thread` computes what takes long.
    """

    def __init__(
        self,
        shard: S,
        partition: Partition,
        send_markers: Callable[[SendMarkers], None] = _ignore_markers,
        thread: Executor | None = None,
    ) -> None:
        self.shard = shard
        self.partition = partition
        self.send_markers = send_markers
        self._thread = thread
        #: Whether it was unloaded, or the broker stops.
        self.is_closed = False
        # What is in the log but not flushed, with base and last offsets.
        self._in_flight: deque[tuple[int, int, Append | _AppendedMarker]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    def __repr__(self) -> str:
        return f"<ShardRuntime {self.partition!r}, {len(self.shard)} {self.shard.kind}>"

    # Loading and unloading.

    async def load(self) -> None:
        """Replay the log of the partition, and activate the shard, unless closed meanwhile.

        Raises what reading a log raises.
        """
        started = time.perf_counter()
        reader = LogReader(self.partition)
        async for batch in self.partition.batches():
            if self.is_closed:
                return
            reader.read(batch)
        for number, (key, record) in enumerate(reader.records(), start=1):
            self._replay_logged(key, record)
            if number % _RECORDS_PER_SLICE == 0:
                await asyncio.sleep(0)
                if self.is_closed:
                    return
        self.activate()
        if reader.record_count:
            logger.info(
                "Loaded %s",
                self.shard.kind.replace("_", " "),
                extra={
                    "partition": self.partition.index,
                    self.shard.kind: len(self.shard),
                    "records": reader.record_count,
                    "milliseconds": round((time.perf_counter() - started) * 1000),
                },
            )

    def _replay_logged(self, key: bytes, logged: LoggedRecord) -> None:
        try:
            record = self.shard.decode(key, logged.value)
        except DecodeError as error:
            logger.error(
                "%r: skipped the unreadable record of key %r: %s", self.partition, key, error
            )
            return
        if record is not None:
            self.shard.replay(record, offset=logged.offset, producer_id=logged.producer_id)

    def activate(self) -> None:
        """Start to handle requests; the log has been replayed, or is new and empty."""
        self.run(self.shard.activate(current_time()))

    def unload(self) -> None:
        """Stop handling requests. Waiting ones, and appends in flight, get NOT_COORDINATOR."""
        self.close()
        effects = self.shard.refuse_waiting(ErrorCode.NOT_COORDINATOR)
        while self._in_flight:
            _base_offset, _last_offset, appended = self._in_flight.popleft()
            if isinstance(appended, Append):
                effects += appended.complete(ErrorCode.NOT_COORDINATOR)
            else:
                appended.complete(None)  # It is in the log, and the next load finds it there.
        self.run(effects)

    def close(self) -> None:
        """Stop a load in progress, and the timer."""
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    # Events.

    def submit(self, event: Event[S, R]) -> R | asyncio.Future[R]:
        """Handle a request; return its response, or a future of it."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self.run(event(self.shard, future, current_time()))
        return future.result() if future.done() else future

    def run(self, effects: Iterable[Effect]) -> None:
        """Carry out the effects of an event."""
        todo = deque(effects)
        while todo:
            effect = todo.popleft()
            if isinstance(effect, Reply):
                if not effect.token.done():
                    effect.token.set_result(effect.response)
            elif isinstance(effect, Append):
                todo.extend(self._append(effect))
            elif isinstance(effect, Compute):
                self._compute(effect)
            elif isinstance(effect, Gather):
                # When all sockets that are readable now were read.
                asyncio.get_running_loop().call_soon(self._gathered, effect)
            elif isinstance(effect, SendMarkers):
                if not self.is_closed:
                    self.send_markers(effect)
            else:
                _log(effect)
        self._schedule_timer()

    def append_marker(
        self, marker: TransactionMarker, complete: Callable[[Exception | None], None]
    ) -> None:
        """Append the marker of a transaction, and call `complete` when it is replayed.

        Raises what `Partition.append_marker` does.
        """
        time_ms = current_time().time_ms
        appended = append_marker(self.partition, marker, time_ms)
        self._replay_when_durable(
            appended.base_offset, appended.last_offset, _AppendedMarker(marker, complete)
        )

    def _gathered(self, effect: Gather) -> None:
        self.run(effect.complete())

    def _compute(self, effect: Compute) -> None:
        """Compute something in a thread, and go on with the result.

        Also when the shard was unloaded meanwhile: appends fail then, and requests are answered.
        """
        computed = asyncio.get_running_loop().run_in_executor(self._thread, effect.work)
        computed.add_done_callback(lambda done: self._computed(effect, done))

    def _computed(self, effect: Compute, done: asyncio.Future[Any]) -> None:
        if done.cancelled():
            return  # The broker has stopped.
        self.run(effect.complete(done.result()))

    def _append(self, append: Append) -> list[Effect]:
        """Append records; return what follows, unless the records have to be flushed first."""
        if self.is_closed:
            return append.complete(ErrorCode.NOT_COORDINATOR)
        try:
            base_offset, last_offset = self._append_records(append.records, append.producer)
        except EXPECTED_ERRORS as error:
            if isinstance(error, NotLeaderError):
                return append.complete(ErrorCode.NOT_COORDINATOR)
            if isinstance(error, InvalidProducerEpochError):
                return append.complete(ErrorCode.INVALID_PRODUCER_EPOCH)
            logger.warning(
                "%r: append of %r failed: %s", self.partition, append.records[0][0], error
            )
            is_too_large = isinstance(error, BatchTooLargeError)
            return append.complete(
                ErrorCode.MESSAGE_TOO_LARGE if is_too_large else ErrorCode.COORDINATOR_NOT_AVAILABLE
            )
        return self._replay_when_durable(base_offset, last_offset, append)

    def _append_records(self, records: Sequence[Any], producer: Producer | None) -> tuple[int, int]:
        """Append records as one batch; return its first and last offset."""
        time_ms = current_time().time_ms
        encoded = [self.shard.encode(record) for record in records]
        try:
            batch = _build_batch(encoded, time_ms, producer, Compression.NONE)
            appended = self.partition.append(batch, time_ms)
        except BatchTooLargeError:
            # The members of a large group have similar metadata, which compresses well.
            batch = _build_batch(encoded, time_ms, producer, Compression.ZSTD)
            appended = self.partition.append(batch, time_ms)
        return appended.base_offset, appended.last_offset

    def _replay_when_durable(
        self, base_offset: int, last_offset: int, appended: Append | _AppendedMarker
    ) -> list[Effect]:
        partition = self.partition
        if not partition.acks_all_waits and not self._in_flight:
            return self._replay(base_offset, appended)
        self._in_flight.append((base_offset, last_offset, appended))
        # What is in flight is waited for, also if durability was lowered meanwhile.
        wait = partition.when_committed if partition.acks_all_waits else partition.when_flushed
        wait(last_offset, lambda error: self._flushed(last_offset, error))
        return []

    def _flushed(self, offset: int, error: Exception | None) -> None:
        """Complete the appends up to `offset`, in the order of the log."""
        while self._in_flight and self._in_flight[0][1] <= offset:
            base_offset, _last_offset, appended = self._in_flight.popleft()
            if error is None:
                self.run(self._replay(base_offset, appended))
            elif isinstance(appended, Append):
                self.run(appended.complete(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            else:
                appended.complete(error)

    def _replay(self, base_offset: int, appended: Append | _AppendedMarker) -> list[Effect]:
        if isinstance(appended, _AppendedMarker):
            marker = appended.marker
            self.shard.replay_marker(marker.producer.id, is_commit=marker.is_commit)
            appended.complete(None)
            return []
        producer_id = _NO_PRODUCER_ID if appended.producer is None else appended.producer.id
        for offset, record in enumerate(appended.records, start=base_offset):
            self.shard.replay(record, offset=offset, producer_id=producer_id)
        return appended.complete(ErrorCode.NONE)

    # The timer.

    def _schedule_timer(self) -> None:
        due_ms = self.shard.deadlines.next()
        if due_ms is None or self.is_closed:
            return
        if self._timer is not None:
            if self._timer_ms <= due_ms:
                return
            self._timer.cancel()
        self._timer_ms = due_ms
        seconds = max(due_ms - current_time().tick_ms, 0) / 1000
        self._timer = asyncio.get_running_loop().call_later(seconds, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self.run(self.shard.expire(current_time()))


class LogReader:
    """Reads the log of a shard: the last record of each key, and those of open transactions.

    Most records of a log that is not compacted yet are outdated, and are not replayed. A record of
    a transaction counts from its marker on, but keeps its place in the log: one that was written
    later, and was committed before, stays.
    """

    def __init__(self, name: object) -> None:
        self._name = name
        self.record_count = 0
        self._latest: dict[bytes, LoggedRecord] = {}
        # The records of open transactions, by producer id.
        self._pending: dict[int, dict[bytes, LoggedRecord]] = {}

    def read(self, batch: RecordBatch) -> None:
        """Read the next batch."""
        try:
            if batch.is_control:
                self._read_marker(batch)
                return
            records = read_key_values(batch)
        except BatchError as error:
            logger.error("%s: skipped unreadable %r: %s", self._name, batch, error)
            return
        self.record_count += len(records)
        producer_id, latest = _NO_PRODUCER_ID, self._latest
        if batch.is_transactional:
            producer_id = batch.producer_id
            latest = self._pending.setdefault(producer_id, {})
        # A compacted batch has gaps in its offsets, which the order of batches does not mind: what
        # counts is which of two batches is later.
        for offset, (key, value) in enumerate(records, start=batch.base_offset):
            latest[key] = LoggedRecord(offset, value, producer_id)

    def records(self) -> list[tuple[bytes, LoggedRecord]]:
        """Return what is to be replayed, in the order of the log."""
        records = list(self._latest.items())
        for pending in self._pending.values():
            records += pending.items()
        return sorted(records, key=lambda record: record[1].offset)

    def _read_marker(self, batch: RecordBatch) -> None:
        batch.validate()
        pending = self._pending.pop(batch.producer_id, {})
        if not parse_marker(batch).is_commit:
            return
        for key, record in pending.items():
            latest = self._latest.get(key)
            if latest is None or latest.offset < record.offset:
                self._latest[key] = record._replace(producer_id=_NO_PRODUCER_ID)


def append_marker(partition: Partition, marker: TransactionMarker, now_ms: int) -> LogAppendInfo:
    """Append the marker of a transaction. Raises what `Partition.append_marker` does."""
    return partition.append_marker(
        producer_id=marker.producer.id,
        producer_epoch=marker.producer.epoch,
        coordinator_epoch=marker.coordinator_epoch,
        is_commit=marker.is_commit,
        transaction_version=marker.transaction_version,
        now_ms=now_ms,
    )


def _build_batch(
    records: Sequence[KeyValue],
    time_ms: int,
    producer: Producer | None,
    compression: Compression,
) -> bytearray:
    if producer is None:
        return build_key_value_batch(records, time_ms, compression)
    return build_batch(
        [(offset, time_ms, key, value, ()) for offset, (key, value) in enumerate(records)],
        compression=compression,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        base_sequence=0,
        transactional=True,
    )


def _log(effect: LogMessage) -> None:
    logger.info(effect.message, extra=dict(effect.fields))


def current_time() -> Now:
    """Return the time, by both clocks."""
    return Now(int(time.monotonic() * 1000), int(time.time() * 1000))
