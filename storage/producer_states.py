"""Producer states: which batch of a producer comes next, and which transactions are open.

A producer numbers its records per partition. For each producer a log remembers the epoch and the
last five batches. Clients have at most five requests in flight, so a batch that is sent again
because its response was lost is among them. Nothing here reads records, except those of markers, or
a clock.

The first transactional batch of a producer opens a transaction, and its marker ends it. A marker
has an epoch of its producer, which is that of the data, or with transaction version 2 a larger one,
and the epoch of the transaction coordinator. A producer with an open transaction is never
forgotten: consumers would then read records that may be aborted. The others share the memory of all
logs: see producer_memory.py.

States expire by the time of the last append, never by record timestamps: a producer that backfills
old records is active. After a crash, the append time of a batch is not known exactly, but that of
its segment is, and no batch in it is newer.

The snapshot, which saves reading the whole log at the next start, has big-endian numbers:

    version uint8 │ CRC-32C uint32, of all that follows │ producers uint32

then for each producer, least recently used first,

    producer id int64 │ epoch int16 │ next sequence int32, -1 any │ last append time int64
    │ last offset int64 │ coordinator epoch int32, -1 none
    │ first offset of the open transaction int64, -1 none │ batches uint8

and for each of its batches, oldest first,

    first sequence int32 │ last sequence int32 │ base offset int64 │ append time int64

Version 2 has neither coordinator epoch nor open transaction. Version 1 has, in addition, record
timestamps in place of append times: they are replaced by the time at which the snapshot was
written.
"""

from __future__ import annotations

import struct
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import NamedTuple

from crc32c import crc32c

from ottla.protocol.batch import (
    TRANSACTIONAL,
    BatchError,
    EndTxnMarker,
    RecordBatch,
    parse_marker,
)

from .errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from .producer_memory import BATCH_BYTES, PRODUCER_BYTES, ProducerMemory
from .transaction_index import AbortedTransaction

#: Batches remembered per producer. Idempotent clients have no more requests in flight.
REMEMBERED_BATCHES = 5
#: Producers remembered per log by default.
MAX_PRODUCERS = 100_000

_SEQUENCE_MASK = 0x7FFFFFFF  # 0 follows 2³¹ - 1.
_ANY_SEQUENCE = -1
#: With this transaction version, the epoch of a marker is larger than that of the data.
_VERSION_WITH_LARGER_MARKER_EPOCH = 2

_VERSION = 3
_VERSION_WITHOUT_TRANSACTIONS = 2
_VERSION_WITH_RECORD_TIMESTAMPS = 1
_FRAME = struct.Struct(">BI")
_COUNT = struct.Struct(">I")
_PRODUCER = struct.Struct(">qhiqqiqB")
# A snapshot is encoded in a thread, which lets the event loop have the GIL after so many producers.
_ENCODED_AT_ONCE = 256
SNAPSHOT_PAUSE_SECONDS = 0.0005
_PRODUCER_WITHOUT_TRANSACTION = struct.Struct(">qhiqqB")
_BATCH = struct.Struct(">iiqq")


class ProducerState(NamedTuple):
    """The state of one producer, as DescribeProducers returns it; -1 for no sequence yet."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_append_ms: int
    last_offset: int
    #: The epoch of the transaction coordinator that wrote the last marker; -1 if there is none.
    coordinator_epoch: int
    #: The first offset of the open transaction; -1 if there is none.
    txn_start_offset: int


class _Producer:
    """Batches are (first sequence, last sequence, base offset, append time), all of one epoch.

    It belongs to the snapshots up to its `snapshot_count`, and is replaced by a copy when it is
    updated after a later one.
    """

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "last_append_ms",
        "last_offset",
        "next_sequence",
        "snapshot_count",
    )

    def __init__(self, epoch: int, snapshot_count: int) -> None:
        self.epoch = epoch
        self.snapshot_count = snapshot_count
        self.batches: list[tuple[int, int, int, int]] = []
        self.next_sequence = _ANY_SEQUENCE
        self.last_append_ms = -1
        self.last_offset = -1
        self.coordinator_epoch = -1

    def copy(self, snapshot_count: int) -> _Producer:
        """Return a copy that belongs to no snapshot so far."""
        copy = _Producer(self.epoch, snapshot_count)
        copy.batches = self.batches[:]
        copy.next_sequence = self.next_sequence
        copy.last_append_ms = self.last_append_ms
        copy.last_offset = self.last_offset
        copy.coordinator_epoch = self.coordinator_epoch
        return copy


class ProducerSnapshot:
    """All states at one moment, which later appends do not change."""

    def __init__(
        self,
        producer_ids: Sequence[int],
        producers: Sequence[_Producer],
        open_transactions: Mapping[int, int],
    ) -> None:
        self._producer_ids = producer_ids
        self._producers = producers
        self._open_transactions = open_transactions

    def encode(self, pause_seconds: float = 0) -> bytes:
        """Return the content of the file; see `ProducerStates.restore`.

        May be called in a thread, with a pause after every few producers: of a hundred thousand of
        them, the whole takes a quarter of a second.
        """
        count = len(self._producers)
        parts = [_COUNT.pack(count)]
        for start in range(0, count, _ENCODED_AT_ONCE):
            if start and pause_seconds:
                time.sleep(pause_seconds)
            parts.append(b"".join(self._encoded(slice(start, start + _ENCODED_AT_ONCE))))
        crc = 0
        for part in parts:
            crc = crc32c(part, crc)
        return b"".join((_FRAME.pack(_VERSION, crc), *parts))

    def _encoded(self, part: slice) -> Iterator[bytes]:
        first_open_offset = self._open_transactions.get
        for producer_id, producer in zip(
            self._producer_ids[part], self._producers[part], strict=True
        ):
            batches = producer.batches
            yield _producer_with(len(batches)).pack(
                producer_id,
                producer.epoch,
                producer.next_sequence,
                producer.last_append_ms,
                producer.last_offset,
                producer.coordinator_epoch,
                first_open_offset(producer_id, -1),
                len(batches),
                *chain.from_iterable(batches),
            )


@cache
def _producer_with(batch_count: int) -> struct.Struct:
    """Return the format of a producer and its batches."""
    return struct.Struct(_PRODUCER.format + _BATCH.format[1:] * batch_count)


class ProducerStates:
    """The producers of one log, at most `max_producers`; the least recently used is forgotten.

    `check` or `check_marker` is called before an append and `update` after it, for one batch at a
    time.
    """

    __slots__ = (
        "_max_producers",
        "_memory",
        "_open_transactions",
        "_producers",
        "_snapshot_count",
        "accepts_unknown_sequences",
        "size_bytes",
    )

    def __init__(self, max_producers: int = MAX_PRODUCERS) -> None:
        if max_producers < 1:
            raise ValueError(f"Invalid max_producers {max_producers}: must be at least 1")
        self._max_producers = max_producers
        #: Whether an unknown producer may start with any sequence. Not if the log was lost.
        self.accepts_unknown_sequences = True
        # Not a dict, in which finding the oldest key is slow after many have been moved.
        self._producers: OrderedDict[int, _Producer] = OrderedDict()
        # By producer id: the first offsets of open transactions, in ascending order.
        self._open_transactions: OrderedDict[int, int] = OrderedDict()
        self._snapshot_count = 0
        #: Estimated memory of all states.
        self.size_bytes = 0
        # What counts the memory of all logs; None while this log is being opened, and once it is
        # deleted.
        self._memory: ProducerMemory | None = None

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[ProducerState]:
        for producer_id, producer in self._producers.items():
            batches = producer.batches
            last_sequence = batches[-1][1] if batches else -1
            yield ProducerState(
                producer_id,
                producer.epoch,
                last_sequence,
                producer.last_append_ms,
                producer.last_offset,
                producer.coordinator_epoch,
                self._open_transactions.get(producer_id, -1),
            )

    def count_in(self, memory: ProducerMemory | None) -> None:
        """Count these states in the memory of all logs from now on; in none with None."""
        if self._memory is not None:
            self._memory.size_bytes -= self.size_bytes
            self._memory.logs.pop(self, None)
        self._memory = memory
        if memory is not None and self._producers:
            memory.size_bytes += self.size_bytes
            memory.logs[self] = None

    def continue_from(self, other: ProducerStates) -> None:
        """Take the place of the states that the log had before it was opened or truncated."""
        self.accepts_unknown_sequences = other.accepts_unknown_sequences
        memory = other._memory
        other.count_in(None)
        self.count_in(memory)

    def oldest_idle_ms(self) -> int | None:
        """Return when the least recently active producer without an open transaction appended.

        None if there is none.
        """
        producers, is_open = self._producers, self._open_transactions
        if len(is_open) >= len(producers):
            return None
        while (producer_id := next(iter(producers))) in is_open:
            producers.move_to_end(producer_id)
        return producers[producer_id].last_append_ms

    def evict_oldest_idle(self) -> bool:
        """Forget the producer of `oldest_idle_ms`; return whether there is one."""
        if self.oldest_idle_ms() is None:
            return False
        self._forget(next(iter(self._producers)))
        return True

    @property
    def first_open_offset(self) -> int | None:
        """The first offset of the oldest open transaction; None if none is open."""
        return next(iter(self._open_transactions.values()), None)

    def txn_start_offset(self, producer_id: int) -> int | None:
        """Return the first offset of a producer's open transaction; None if it has none."""
        return self._open_transactions.get(producer_id)

    def epoch_of(self, producer_id: int) -> int | None:
        """Return the epoch of a producer; None if it is unknown."""
        producer = self._producers.get(producer_id)
        return None if producer is None else producer.epoch

    def check(self, batch: RecordBatch, *, must_start_at_zero: bool = False) -> int | None:
        """Return None if a batch is to be appended, or its base offset if it is a duplicate.

        An unknown producer may start with any sequence, since its state may have expired; but not
        in a log that replaces a lost one, with which its earlier batches are gone, nor if it
        `must_start_at_zero`, as with transaction version 2. Raises OutOfOrderSequenceError,
        InvalidProducerEpochError and InvalidTxnStateError.
        """
        producer = self._producers.get(batch.producer_id)
        is_new = producer is None or not producer.batches
        if must_start_at_zero and is_new and batch.base_sequence > 0:
            raise OutOfOrderSequenceError(
                f"Producer {batch.producer_id} starts with sequence {batch.base_sequence}, not 0"
            )
        if producer is None:
            if self.accepts_unknown_sequences or batch.base_sequence <= 0:
                return None
            raise OutOfOrderSequenceError(
                f"Producer {batch.producer_id} sent sequence {batch.base_sequence}, but its earlier"
                " batches were lost with the partition's log"
            )
        epoch, first = batch.producer_epoch, batch.base_sequence
        if epoch < producer.epoch:
            raise _fenced(batch.producer_id, epoch, producer.epoch)
        expected = producer.next_sequence if epoch == producer.epoch else 0
        # The expected batch is no duplicate: five batches never span all sequence numbers. A batch
        # without a sequence is a transaction marker, which is not counted.
        if first == expected or first < 0 or expected == _ANY_SEQUENCE:
            if batch.producer_id in self._open_transactions and not batch.is_transactional:
                raise InvalidTxnStateError(
                    f"Producer {batch.producer_id} has an open transaction: its batches must be"
                    " transactional"
                )
            return None
        if epoch == producer.epoch:
            last = batch.last_sequence
            for known_first, known_last, base_offset, _ in producer.batches:
                if known_first == first and known_last == last:
                    return base_offset
        raise OutOfOrderSequenceError(
            f"Producer {batch.producer_id}, epoch {epoch}:"
            f" expected sequence {expected}, got {first}"
        )

    def check_epoch(self, producer_id: int, epoch: int) -> None:
        """Raise InvalidProducerEpochError if a producer is known with a newer epoch."""
        producer = self._producers.get(producer_id)
        if producer is not None and epoch < producer.epoch:
            raise _fenced(producer_id, epoch, producer.epoch)

    def check_marker(
        self, producer_id: int, epoch: int, coordinator_epoch: int, transaction_version: int
    ) -> None:
        """Check whether a marker may be appended, with or without an open transaction.

        With transaction version 2, its epoch must be larger than that of the data; it may be the
        same if no transaction is open, which is a marker that is sent again. Raises
        InvalidProducerEpochError and TransactionCoordinatorFencedError.
        """
        producer = self._producers.get(producer_id)
        if producer is None:
            return
        is_open = producer_id in self._open_transactions
        needs_larger = transaction_version >= _VERSION_WITH_LARGER_MARKER_EPOCH and is_open
        if epoch < producer.epoch or (needs_larger and epoch == producer.epoch):
            raise _fenced(producer_id, epoch, producer.epoch)
        if coordinator_epoch < producer.coordinator_epoch:
            raise TransactionCoordinatorFencedError(
                f"The marker for producer {producer_id} has coordinator epoch {coordinator_epoch},"
                f" older than {producer.coordinator_epoch}"
            )

    def update(
        self, batch: RecordBatch, base_offset: int, append_ms: int
    ) -> AbortedTransaction | None:
        """Record that a batch was appended, or found in the log, at this offset.

        Nothing is validated: the log is the truth, and compaction, for one, leaves gaps in
        sequences. Returns the transaction that the batch, a marker, has aborted.
        """
        producer_id = batch.producer_id
        if producer_id < 0:
            return None
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._add(producer_id, batch.producer_epoch)
            is_new = True
        else:
            is_new = False
            if producer.snapshot_count != self._snapshot_count:
                producer = producer.copy(self._snapshot_count)
                self._producers[producer_id] = producer
            self._producers.move_to_end(producer_id)
            if producer.epoch != batch.producer_epoch:
                producer.epoch = batch.producer_epoch
                self._count(-BATCH_BYTES * len(producer.batches))
                producer.batches.clear()
                producer.next_sequence = 0
        first = batch.base_sequence
        if first >= 0:
            last = batch.last_sequence
            batches = producer.batches
            batches.append((first, last, base_offset, append_ms))
            if len(batches) > REMEMBERED_BATCHES:
                del batches[0]
            else:
                self._count(BATCH_BYTES)
            producer.next_sequence = (last + 1) & _SEQUENCE_MASK
        producer.last_append_ms = append_ms
        producer.last_offset = base_offset + batch.last_offset_delta
        aborted = None
        if batch.attributes & TRANSACTIONAL:
            if not batch.is_control:
                self._open_transactions.setdefault(producer_id, base_offset)
            elif (marker := _marker_of(batch)) is not None:
                producer.coordinator_epoch = marker.coordinator_epoch
                aborted = self._end_transaction(producer_id, base_offset, marker)
        if is_new:
            # Not before it has a time and perhaps a transaction: it is not the oldest.
            if len(self._producers) > self._max_producers:
                self.evict_oldest_idle()
            if self._memory is not None:
                self._memory.on_growth()
        return aborted

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forget producers whose last append is at least `expiration_ms` ago.

        Not those with an open transaction.
        """
        horizon, is_open = now_ms - expiration_ms, self._open_transactions
        expired = [key for key, value in self._producers.items() if value.last_append_ms <= horizon]
        for producer_id in expired:
            if producer_id not in is_open:
                self._forget(producer_id)

    def snapshot(self) -> ProducerSnapshot:
        """Return all states as they are now, to encode them for a snapshot file."""
        self._snapshot_count += 1
        producers = self._producers
        return ProducerSnapshot(
            list(producers), list(producers.values()), dict(self._open_transactions)
        )

    @classmethod
    def restore(
        cls, data: bytes, written_ms: int, max_producers: int = MAX_PRODUCERS
    ) -> ProducerStates:
        """Decode a snapshot that was written at a time.

        Raises ValueError if it is damaged: the log can be read instead.
        """
        if len(data) < _FRAME.size + _COUNT.size:
            raise ValueError(f"Producer snapshot of {len(data)} bytes is too short")
        version, crc = _FRAME.unpack_from(data)
        if not _VERSION_WITH_RECORD_TIMESTAMPS <= version <= _VERSION:
            raise ValueError(f"Producer snapshot has version {version}, not {_VERSION}")
        if crc32c(memoryview(data)[_FRAME.size :]) != crc:
            raise ValueError("Producer snapshot has a wrong CRC")
        states = cls(max_producers)
        try:
            end = states._read(data, _FRAME.size, version)
        except struct.error as error:
            raise ValueError(f"Producer snapshot ends early: {error}") from None
        if end != len(data):
            raise ValueError(f"Producer snapshot is followed by {len(data) - end} bytes")
        if version == _VERSION_WITH_RECORD_TIMESTAMPS:
            for producer in states._producers.values():
                producer.last_append_ms = written_ms
                producer.batches = [(*batch[:3], written_ms) for batch in producer.batches]
        return states

    def _read(self, data: bytes, position: int, version: int) -> int:
        (count,) = _COUNT.unpack_from(data, position)
        position += _COUNT.size
        has_transactions = version > _VERSION_WITHOUT_TRANSACTIONS
        producer_format = _PRODUCER if has_transactions else _PRODUCER_WITHOUT_TRANSACTION
        open_transactions: list[tuple[int, int]] = []
        for _ in range(count):
            fields = producer_format.unpack_from(data, position)
            position += producer_format.size
            producer = self._add(fields[0], fields[1])
            producer.next_sequence, producer.last_append_ms, producer.last_offset = fields[2:5]
            if has_transactions:
                producer.coordinator_epoch = fields[5]
                if fields[6] >= 0:
                    open_transactions.append((fields[6], fields[0]))
            for _ in range(fields[-1]):
                producer.batches.append(_BATCH.unpack_from(data, position))
                position += _BATCH.size
            self._count(BATCH_BYTES * fields[-1])
        for first_offset, producer_id in sorted(open_transactions):
            self._open_transactions[producer_id] = first_offset
        while len(self._producers) > self._max_producers and self.evict_oldest_idle():
            pass
        return position

    def _end_transaction(
        self, producer_id: int, offset: int, marker: EndTxnMarker
    ) -> AbortedTransaction | None:
        first_offset = self._open_transactions.pop(producer_id, None)
        if first_offset is None or marker.is_commit:
            return None
        first_open = self.first_open_offset
        stable = offset + 1 if first_open is None else first_open
        return AbortedTransaction(producer_id, first_offset, offset, stable)

    def _add(self, producer_id: int, epoch: int) -> _Producer:
        producer = self._producers[producer_id] = _Producer(epoch, self._snapshot_count)
        self._count(PRODUCER_BYTES)
        if self._memory is not None:
            self._memory.logs[self] = None
        return producer

    def _forget(self, producer_id: int) -> None:
        producer = self._producers.pop(producer_id)
        self._count(-PRODUCER_BYTES - BATCH_BYTES * len(producer.batches))
        if not self._producers and self._memory is not None:
            self._memory.logs.pop(self, None)

    def _count(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes
        if self._memory is not None:
            self._memory.size_bytes += size_bytes


def _marker_of(batch: RecordBatch) -> EndTxnMarker | None:
    """Return the marker in a control batch; None if it has none."""
    try:
        return parse_marker(batch)
    except BatchError:
        return None


def _fenced(producer_id: int, epoch: int, known_epoch: int) -> InvalidProducerEpochError:
    return InvalidProducerEpochError(
        f"Producer {producer_id} has epoch {epoch}, older than {known_epoch}"
    )
