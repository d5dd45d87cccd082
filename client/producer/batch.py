"""Records that wait together: a batch of one partition, from its first record to its receipts.

A batch is *open* while records may be added, *due* when it may be sent though it is not full, and
*settled* when everybody who waits for one of its records has been told how it ended. It is settled
exactly once, whatever happens: acknowledged, refused, too late, or closed.

What is encoded is never written to again. A batch that has to change is encoded anew, into a buffer
of its own: the old one may still be on its way to a socket.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count, repeat
from typing import TYPE_CHECKING, NamedTuple

from ottla.protocol.batch import HEADER_BYTES, RecordBatch, build_batch, wrap_records
from ottla.protocol.compression import Compression

from ..errors import BufferFullError, ClosedError
from ..types import RecordMetadata

if TYPE_CHECKING:
    from ..arrow.encoder import Pack
    from .partition_queue import Lane

#: What a record takes at most beside its key, value and headers: seven numbers.
RECORD_OVERHEAD_BYTES = 36
#: Kafka's brokers take requests of up to 100 MiB.
_LARGEST_REQUEST_BYTES = 100 * 1024 * 1024
_SEQUENCE_MASK = 0x7FFFFFFF  # after 2³¹ - 1 comes 0

#: What is told of a receipt: of a task, or of a thread that waits.
AnyFuture = asyncio.Future[RecordMetadata] | concurrent.futures.Future[RecordMetadata]

_new = tuple.__new__


@dataclass(frozen=True, slots=True)
class BatchConfig:
    """How much is sent at a time, and how much may wait."""

    #: A batch is full at this size, before compression. A record that is larger goes alone.
    batch_bytes: int = 256 * 1024
    #: How long a batch that is not full waits for more, in seconds. With 0 it is sent as soon as
    #: there is room among the requests under way, and grows until then.
    linger: float = 0.0
    #: What one request takes at most; so does one record.
    request_bytes: int = 8 * 1024 * 1024
    #: What may wait to be sent or acknowledged. Whoever wants to send more has to wait.
    buffer_bytes: int = 64 * 1024 * 1024
    #: How long that may be, in seconds, before it is an error.
    buffer_timeout: float = 30.0

    def __post_init__(self) -> None:
        if not 0 < self.batch_bytes <= self.request_bytes <= _LARGEST_REQUEST_BYTES:
            raise ValueError(
                f"batches of {self.batch_bytes} bytes in requests of {self.request_bytes}:"
                f" a batch fits a request, and that has at most {_LARGEST_REQUEST_BYTES}"
            )
        if self.buffer_bytes < self.batch_bytes:
            raise ValueError(
                f"a buffer of {self.buffer_bytes} bytes for batches of {self.batch_bytes}"
            )
        if self.linger < 0 or self.buffer_timeout < 0:
            raise ValueError(
                f"a linger of {self.linger} s, a buffer_timeout of {self.buffer_timeout} s"
            )


class ProducerIdAndEpoch(NamedTuple):
    """What makes a broker recognise a batch that it has seen."""

    producer_id: int
    epoch: int


_NOBODY = ProducerIdAndEpoch(-1, -1)


class OffsetRange(NamedTuple):
    """Consecutive records of one `send_many` or `send_arrow` in a partition."""

    topic: str
    partition: int
    #: -1 if the broker did not return it (acks=0).
    base_offset: int
    record_count: int


def join_to(parts: list[OffsetRange], part: OffsetRange) -> None:
    """Add a part, to the last one if it lies behind that."""
    last = parts[-1] if parts else None
    if (
        last is not None
        and last.partition == part.partition
        and part.base_offset in (-1, last.base_offset + last.record_count)
    ):
        parts[-1] = last._replace(record_count=last.record_count + part.record_count)
    else:
        parts.append(part)


class Tally:
    """What becomes of the records of one `send_many` or `send_arrow`."""

    __slots__ = ("_done", "error", "outstanding", "written")

    def __init__(self) -> None:
        self.outstanding = 0
        self.error: Exception | None = None
        self.written: list[OffsetRange] = []
        self._done: asyncio.Future[None] | None = None

    async def wait(self) -> None:
        """Wait until nothing is outstanding."""
        if self.outstanding:
            self._done = asyncio.get_running_loop().create_future()
            await self._done

    def settle(self, count: int, written: OffsetRange | None, error: Exception | None) -> None:
        """Take note of some records."""
        self.outstanding -= count
        if written is not None:
            join_to(self.written, written)
        self.error = self.error or error
        if not self.outstanding and self._done is not None and not self._done.done():
            self._done.set_result(None)


class Run:
    """Records of one tally that lie one after the other in a batch."""

    __slots__ = ("count", "first", "tally")

    def __init__(self, tally: Tally, first: int, count: int = 0) -> None:
        self.tally = tally
        self.first = first
        self.count = count


class Batch:
    """Records of one partition that are sent together."""

    __slots__ = (
        "_done",
        "_futures",
        "_headers",
        "_keys",
        "_on_settled",
        "_pack",
        "_runs",
        "_timestamps",
        "_values",
        "count",
        "deadline",
        "error",
        "identity",
        "is_again",
        "is_due",
        "is_settled",
        "is_uncertain",
        "lane",
        "must_renumber",
        "run",
        "sequence",
        "size",
        "wire",
    )

    def __init__(self, lane: Lane, deadline: float, on_settled: Callable[[Batch], None]) -> None:
        self.lane = lane
        #: When its records have waited for too long, by the clock of the event loop.
        self.deadline = deadline
        #: What it takes at most when it is encoded.
        self.size = HEADER_BYTES
        self.count = 0
        self.is_due = False
        self.is_settled = False
        #: Of the first time that it was sent; they stay, so that a broker knows it again.
        self.identity: ProducerIdAndEpoch | None = None
        self.sequence = -1
        #: Whether it is under way for another time.
        self.is_again = False
        #: Whether it was sent, and nobody has said that it was not written.
        self.is_uncertain = False
        #: Whether the broker refused the number that it had.
        self.must_renumber = False
        #: What went wrong last.
        self.error: Exception | None = None
        #: As it is sent.
        self.wire: bytearray | None = None
        #: The run that the last record is of, if it is of one.
        self.run: Run | None = None
        # The records, until they are encoded. As columns: a tuple for each would keep the garbage
        # collector busy, which takes longer than to make them when they are needed.
        self._timestamps: list[int] = []
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._headers: list[Sequence[tuple[str, bytes | None]]] = []
        # Or all of them as one, if they came so.
        self._pack: Pack | None = None
        # Who waits, by record; shorter than these if nobody waits for the last ones.
        self._futures: list[AnyFuture | None] = []
        self._runs: list[Run] = []
        self._on_settled = on_settled
        self._done: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        state = "settled" if self.is_settled else "due" if self.is_due else "open"
        return f"<Batch of {self.lane}: {self.count} records from {self.sequence}, {state}>"

    @property
    def charge(self) -> int:
        """What it takes of the buffer."""
        return self.size - HEADER_BYTES

    def add(
        self,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        size: int,
    ) -> None:
        """Add a record. Only somebody who has made room for it may do so."""
        self._timestamps.append(timestamp)
        self._keys.append(key)
        self._values.append(value)
        self._headers.append(headers)
        self.count += 1
        self.size += size

    def fill(self, pack: Pack, tally: Tally) -> None:
        """Take a pack, and nothing else. Only somebody who has made room for it may do so."""
        self._pack = pack
        self.begin_run(tally).count = self.count = pack.records
        self.size += len(pack.payload)

    def expect(self, future: AnyFuture) -> None:
        """Let somebody wait for the record that was added last."""
        futures = self._futures
        while len(futures) < self.count - 1:
            futures.append(None)  # those of a run
        futures.append(future)
        self.run = None

    def begin_run(self, tally: Tally) -> Run:
        """Count the records that are added from now on; the caller adds to the run's count."""
        run = self.run = Run(tally, self.count)
        self._runs.append(run)
        return run

    # What it looks like on the wire.

    def encode(self, compression: Compression) -> None:
        """Encode it, with the number that it has. It is not open any more."""
        identity = self.identity or _NOBODY
        if self._pack is not None:
            build: Callable[..., bytearray] = partial(wrap_records, *self._pack[1:])
        else:
            columns = (self._timestamps, self._keys, self._values, self._headers)
            build = partial(build_batch, list(zip(range(self.count), *columns, strict=True)))
        self.wire = build(
            compression=compression,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=self.sequence,
        )
        # The bytes are enough: to keep both would double what is in memory.
        self._keys, self._values, self._headers, self._pack = [], [], [], None

    def forget_number(self) -> None:
        """Let it be numbered again when it is next sent. It is known not to be written."""
        self._decode()
        self.identity = None
        self.sequence = -1
        self.must_renumber = False

    def split(self) -> tuple[Batch, Batch]:
        """Give two batches, with half of the records each, that take the place of this one."""
        self._decode()
        middle = self.count // 2
        first, second = (Batch(self.lane, self.deadline, self._on_settled) for _ in range(2))
        first._take(self, 0, middle)
        second._take(self, middle, self.count)
        self.size = HEADER_BYTES
        self._settle()
        return first, second

    def _decode(self) -> None:
        if self.wire is not None:
            records = RecordBatch(self.wire).records()
            self._timestamps = [record.timestamp for record in records]
            self._keys = [record.key for record in records]
            self._values = [record.value for record in records]
            self._headers = [record.headers for record in records]
            self.wire = None

    def _take(self, whole: Batch, start: int, stop: int) -> None:
        """Take over some of the records of another one, and those who wait for them."""
        self._timestamps = whole._timestamps[start:stop]
        self._keys = whole._keys[start:stop]
        self._values = whole._values[start:stop]
        self._headers = whole._headers[start:stop]
        self._futures = whole._futures[start:stop]
        self.count = stop - start
        charge = whole.charge
        self.size = HEADER_BYTES + charge * stop // whole.count - charge * start // whole.count
        self.is_due = True
        self.identity = whole.identity
        self.error = whole.error
        if whole.identity is not None:
            self.sequence = (whole.sequence + start) & _SEQUENCE_MASK
        for run in whole._runs:
            low, high = max(run.first, start), min(run.first + run.count, stop)
            if low < high:
                self._runs.append(Run(run.tally, low - start, high - low))

    # How it ends.

    def succeed(self, base_offset: int, append_time_ms: int) -> None:
        """Tell everybody where the records are; -1 is an offset or a time that is not known."""
        if self.is_settled:
            return
        topic, partition = self.lane.topic, self.lane.partition
        offsets: Iterable[int] = count(base_offset) if base_offset >= 0 else repeat(-1)
        times: Iterable[int] = self._timestamps if append_time_ms < 0 else repeat(append_time_ms)
        for future, offset, time in zip(self._futures, offsets, times, strict=False):
            if future is not None and not future.done():
                future.set_result(_new(RecordMetadata, (topic, partition, offset, time)))
        for run in self._runs:
            offset = base_offset + run.first if base_offset >= 0 else -1
            run.tally.settle(run.count, OffsetRange(topic, partition, offset, run.count), None)
        self._settle()

    def fail(self, error: Exception) -> None:
        """Tell everybody what went wrong."""
        if self.is_settled:
            return
        for future in self._futures:
            if future is not None and not future.done():
                future.set_exception(error)
        for run in self._runs:
            run.tally.settle(run.count, None, error)
        self._settle()

    def settled(self) -> asyncio.Future[None]:
        """Give a future that is done when it is settled, or was split. It never fails."""
        if self._done is None:
            self._done = asyncio.get_running_loop().create_future()
            if self.is_settled:
                self._done.set_result(None)
        return self._done

    def _settle(self) -> None:
        self.is_settled = True
        # Not the records: a thread may be encoding them.
        self._futures, self._runs, self.run = [], [], None
        if self._done is not None and not self._done.done():
            self._done.set_result(None)
        self._on_settled(self)


class Room:
    """Bytes that may still wait to be sent. Who comes first is served first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.free = limit
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def take(self, size: int) -> bool:
        """Take some, if it is there and nobody waits for it."""
        if size > self.free or self._waiting:
            return False
        self.free -= size
        return True

    async def wait(self, size: int, seconds: float) -> None:
        """Take some when it is there. Raises BufferFullError. Takes nothing if it is cancelled."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size, future)
        self._waiting.append(entry)
        try:
            async with asyncio.timeout(seconds):
                await future
        except BaseException as error:
            if future.done() and not future.cancelled() and future.exception() is None:
                self.give(size)  # it was given at the same moment
            else:
                with suppress(ValueError):
                    self._waiting.remove(entry)
                self.give(0)  # those behind may want less
            if isinstance(error, TimeoutError):
                reason = (
                    f"no room for {size} bytes in {seconds:g} s:"
                    f" {self.limit - self.free} of {self.limit} wait to be acknowledged"
                )
                raise BufferFullError(reason) from None
            raise

    def give(self, size: int) -> None:
        """Give some back."""
        self.free += size
        while self._waiting and self._waiting[0][0] <= self.free:
            wanted, future = self._waiting.popleft()
            if not future.done():
                self.free -= wanted
                future.set_result(None)

    def close(self) -> None:
        """Send away whoever waits."""
        while self._waiting:
            _size, future = self._waiting.popleft()
            if not future.done():
                future.set_exception(ClosedError("the producer has been closed"))
