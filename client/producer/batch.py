"""A batch: records of one partition that are sent together, from the first record to the result.

Its state (the transitions are in `_TRANSITIONS`):

    LINGERING   in its queue, waits for more records until it is full or `linger` has passed
    READY       in its queue, may be sent; records may be added until then
    IN_FLIGHT   in a request that has no response yet
    FAILED      not acknowledged; becomes READY when nothing of its partition is in flight
    DONE        acknowledged, failed for good, or split: its futures are done

A batch is done exactly once, whatever happens: acknowledged, rejected, expired, or closed.

Encoded bytes are never modified. A batch that has to change is encoded again, into a new buffer:
the old one may still be on its way to a socket.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from itertools import count, repeat
from typing import TYPE_CHECKING, NamedTuple

from ottla.protocol.batch import HEADER_BYTES, RecordBatch, build_batch, wrap_records
from ottla.protocol.compression import Compression

from ..types import RecordMetadata
from .bulk import BulkRun, BulkSend, OffsetRange

if TYPE_CHECKING:
    from ..arrow.encoder import EncodedRecords
    from .partition_queue import PartitionQueue

#: Maximum size of a record besides its key, value and headers: seven varints.
RECORD_OVERHEAD_BYTES = 36
#: Kafka's socket.request.max.bytes.
_MAX_REQUEST_BYTES = 100 * 1024 * 1024
_SEQUENCE_MASK = 0x7FFFFFFF  # 0 follows 2³¹ - 1

#: The future of a record, for a task or for a thread.
AnyFuture = asyncio.Future[RecordMetadata] | concurrent.futures.Future[RecordMetadata]

_new = tuple.__new__


@dataclass(frozen=True, slots=True)
class BatchConfig:
    """Batching and buffering of a producer. Times are in seconds."""

    #: A batch is full at this size, before compression. A larger record has a batch to itself.
    batch_bytes: int = 256 * 1024
    #: How long a batch that is not full waits for more records. With 0, it is sent as soon as fewer
    #: than five requests are in flight, and grows until then.
    linger: float = 0.0
    #: Maximum size of a request, and of a record.
    request_bytes: int = 8 * 1024 * 1024
    #: Maximum size of records that are not yet acknowledged. Sending waits above it.
    buffer_bytes: int = 64 * 1024 * 1024
    #: How long sending waits for buffer memory before it raises BufferFullError.
    buffer_timeout: float = 30.0

    def __post_init__(self) -> None:
        if not 0 < self.batch_bytes <= self.request_bytes <= _MAX_REQUEST_BYTES:
            raise ValueError(
                f"Invalid batch_bytes={self.batch_bytes}, request_bytes={self.request_bytes}:"
                f" 0 < batch_bytes <= request_bytes <= {_MAX_REQUEST_BYTES}"
            )
        if self.buffer_bytes < self.batch_bytes:
            raise ValueError(
                f"Invalid buffer_bytes={self.buffer_bytes}: at least batch_bytes"
                f" ({self.batch_bytes})"
            )
        if self.linger < 0 or self.buffer_timeout < 0:
            raise ValueError(
                f"Invalid linger={self.linger}, buffer_timeout={self.buffer_timeout}: 0 or more"
            )


class ProducerIdAndEpoch(NamedTuple):
    """With the sequence, what a broker recognises a duplicate batch by."""

    producer_id: int
    epoch: int


_NO_PRODUCER_ID = ProducerIdAndEpoch(-1, -1)


class BatchState(Enum):
    """See the top of the module."""

    LINGERING = auto()
    READY = auto()
    IN_FLIGHT = auto()
    FAILED = auto()
    DONE = auto()


_TRANSITIONS: dict[BatchState, frozenset[BatchState]] = {
    BatchState.LINGERING: frozenset({BatchState.READY, BatchState.DONE}),
    BatchState.READY: frozenset({BatchState.IN_FLIGHT, BatchState.DONE}),
    BatchState.IN_FLIGHT: frozenset({BatchState.FAILED, BatchState.DONE}),
    BatchState.FAILED: frozenset({BatchState.READY, BatchState.DONE}),
    BatchState.DONE: frozenset(),
}


class Batch:
    """Records of one partition that are sent together."""

    __slots__ = (
        "_done",
        "_encoded_records",
        "_futures",
        "_headers",
        "_keys",
        "_on_done",
        "_runs",
        "_timestamps",
        "_values",
        "count",
        "deadline",
        "encoded",
        "error",
        "is_retry",
        "may_be_written",
        "needs_new_sequence",
        "producer",
        "queue",
        "run",
        "sequence",
        "size",
        "state",
    )

    def __init__(
        self,
        queue: PartitionQueue,
        deadline: float,
        on_done: Callable[[Batch], None],
        state: BatchState = BatchState.LINGERING,
    ) -> None:
        self.queue = queue
        self.state = state
        #: When it expires, by the clock of the event loop.
        self.deadline = deadline
        #: Upper bound of its encoded size.
        self.size = HEADER_BYTES
        self.count = 0
        #: Assigned when it is first sent, and kept in retries, so that the broker detects a
        #: duplicate.
        self.producer: ProducerIdAndEpoch | None = None
        self.sequence = -1
        #: Whether the request in flight is not the first one.
        self.is_retry = False
        #: Whether it was sent, and no response has ruled out that it was written.
        self.may_be_written = False
        #: Whether the broker rejected its sequence or producer id.
        self.needs_new_sequence = False
        #: The error of the last attempt; None when it is acknowledged or split.
        self.error: Exception | None = None
        self.encoded: bytearray | None = None
        #: The run of the last record, if that was sent in bulk.
        self.run: BulkRun | None = None
        # The records, until they are encoded. As columns: a tuple per record would cost more in
        # garbage collections than it costs to make them when they are needed.
        self._timestamps: list[int] = []
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._headers: list[Sequence[tuple[str, bytes | None]]] = []
        # Or all records, already encoded.
        self._encoded_records: EncodedRecords | None = None
        # By record; shorter than the columns if the last records have no future.
        self._futures: list[AnyFuture | None] = []
        self._runs: list[BulkRun] = []
        self._on_done = on_done
        self._done: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        state = self.state.name
        return f"<Batch of {self.queue}: {self.count} records from {self.sequence}, {state}>"

    @property
    def is_done(self) -> bool:
        """Whether its result is known, or it was split."""
        return self.state is BatchState.DONE

    @property
    def buffered_bytes(self) -> int:
        """What it takes of the buffer."""
        return self.size - HEADER_BYTES

    def move_to(self, state: BatchState) -> None:
        """Change the state."""
        assert state in _TRANSITIONS[self.state], f"{self!r} cannot become {state.name}"
        self.state = state

    def add(
        self,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        size: int,
    ) -> None:
        """Add a record, for which the caller has allocated `size` bytes."""
        self._timestamps.append(timestamp)
        self._keys.append(key)
        self._values.append(value)
        self._headers.append(headers)
        self.count += 1
        self.size += size

    def add_awaited(
        self,
        future: AnyFuture,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        size: int,
    ) -> None:
        """Add a record whose metadata `future` will have."""
        futures = self._futures
        while len(futures) < self.count:
            futures.append(None)  # records of a run
        futures.append(future)
        self.run = None
        self.add(timestamp, key, value, headers, size)

    def add_values(self, timestamp: int, values: Sequence[bytes], size: int) -> None:
        """Add records that have only a value; all together, `size` bytes are allocated."""
        count = len(values)
        self._timestamps += [timestamp] * count
        self._keys += [None] * count
        self._values += values
        self._headers += [()] * count
        self.count += count
        self.size += size

    def fill(self, records: EncodedRecords, bulk: BulkSend) -> None:
        """Make encoded records the whole content; the caller has allocated their size."""
        self._encoded_records = records
        self.begin_run(bulk).count = self.count = records.record_count
        self.size += len(records.payload)

    def begin_run(self, bulk: BulkSend) -> BulkRun:
        """Return a run of the records added from now on; the caller increments its count."""
        run = self.run = BulkRun(bulk, self.count)
        self._runs.append(run)
        return run

    # Encoding.

    def encode(self, compression: Compression) -> None:
        """Encode it with its producer id and sequence. No records are added any more."""
        producer = self.producer or _NO_PRODUCER_ID
        if self._encoded_records is not None:
            build: Callable[..., bytearray] = partial(wrap_records, *self._encoded_records[1:])
        else:
            columns = (self._timestamps, self._keys, self._values, self._headers)
            build = partial(build_batch, list(zip(range(self.count), *columns, strict=True)))
        self.encoded = build(
            compression=compression,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=self.sequence,
            transactional=self.queue.is_transactional,
        )
        # Keeping the records as well would double the memory. Timestamps stay for the metadata.
        self._keys, self._values, self._headers, self._encoded_records = [], [], [], None

    def reset_sequence(self) -> None:
        """Have it numbered again when it is next sent. It is known not to be written."""
        self._decode()
        self.producer = None
        self.sequence = -1
        self.needs_new_sequence = False

    def split(self) -> tuple[Batch, Batch]:
        """Return two batches with half of the records each, which replace this one."""
        self._decode()
        middle = self.count // 2
        halves = self._slice(0, middle), self._slice(middle, self.count)
        self.size = HEADER_BYTES
        self.error = None
        self._finish()
        return halves

    def _decode(self) -> None:
        if self.encoded is not None:
            records = RecordBatch(self.encoded).records()
            self._timestamps = [record.timestamp for record in records]
            self._keys = [record.key for record in records]
            self._values = [record.value for record in records]
            self._headers = [record.headers for record in records]
            self.encoded = None

    def _slice(self, start: int, stop: int) -> Batch:
        """Return a batch of some of the records, with their futures and sequence."""
        part = Batch(self.queue, self.deadline, self._on_done, BatchState.FAILED)
        part._timestamps = self._timestamps[start:stop]
        part._keys = self._keys[start:stop]
        part._values = self._values[start:stop]
        part._headers = self._headers[start:stop]
        part._futures = self._futures[start:stop]
        part.count = stop - start
        total = self.buffered_bytes
        part.size = HEADER_BYTES + total * stop // self.count - total * start // self.count
        part.producer = self.producer
        part.error = self.error
        if self.producer is not None:
            part.sequence = (self.sequence + start) & _SEQUENCE_MASK
        for run in self._runs:
            first, end = max(run.first, start), min(run.first + run.count, stop)
            if first < end:
                part._runs.append(BulkRun(run.bulk, first - start, end - first))
        return part

    # Results.

    def complete(self, base_offset: int, append_time_ms: int) -> None:
        """Set the metadata of all records; an offset or append time of -1 is unknown."""
        if self.is_done:
            return
        topic, partition = self.queue.topic, self.queue.partition
        offsets: Iterable[int] = count(base_offset) if base_offset >= 0 else repeat(-1)
        times: Iterable[int] = self._timestamps if append_time_ms < 0 else repeat(append_time_ms)
        for future, offset, time in zip(self._futures, offsets, times, strict=False):
            if future is not None and not future.done():
                future.set_result(_new(RecordMetadata, (topic, partition, offset, time)))
        for run in self._runs:
            offset = base_offset + run.first if base_offset >= 0 else -1
            run.bulk.complete(OffsetRange(topic, partition, offset, run.count))
        self.error = None
        self._finish()

    def fail(self, error: Exception) -> None:
        """Fail all records."""
        if self.is_done:
            return
        for future in self._futures:
            if future is not None and not future.done():
                future.set_exception(error)
                if self.queue.is_transactional:
                    future.exception()  # not lost if nobody retrieves it: the commit fails
        for run in self._runs:
            run.bulk.fail(run.count, error)
        self.error = error
        self._finish()

    def done(self) -> asyncio.Future[None]:
        """Return a future for when the batch is done. It never fails."""
        if self._done is None:
            self._done = asyncio.get_running_loop().create_future()
            if self.is_done:
                self._done.set_result(None)
        return self._done

    def _finish(self) -> None:
        self.move_to(BatchState.DONE)
        # The records stay: a thread may be encoding them.
        self._futures, self._runs, self.run = [], [], None
        if self._done is not None and not self._done.done():
            self._done.set_result(None)
        self._on_done(self)
