"""Producer states, for idempotence: which batch of a producer comes next, and which is a duplicate.

A producer numbers its records per partition. For each producer a log remembers the epoch and the
last five batches. Clients have at most five requests in flight, so a batch that is sent again
because its response was lost is among them. Nothing here reads records or a clock.

States expire by the time of the last append, never by record timestamps: a producer that backfills
old records is active. After a crash, the append time of a batch is not known exactly, but that of
its segment is, and no batch in it is newer.

The snapshot, which saves reading the whole log at the next start, has big-endian numbers:

    version uint8 │ CRC-32C uint32, of all that follows │ producers uint32

then for each producer, least recently used first,

    producer id int64 │ epoch int16 │ next sequence int32, -1 any │ last append time int64
    │ last offset int64 │ batches uint8

and for each of its batches, oldest first,

    first sequence int32 │ last sequence int32 │ base offset int64 │ append time int64

Version 1 has record timestamps in place of append times: they are replaced by the time at which the
snapshot was written.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from ottla.protocol.batch import RecordBatch

from .errors import OutOfOrderSequenceError, StaleProducerEpochError

#: Batches remembered per producer. Idempotent clients have no more requests in flight.
REMEMBERED_BATCHES = 5
#: Producers remembered per log by default.
MAX_PRODUCERS = 100_000

_SEQUENCE_MASK = 0x7FFFFFFF  # 0 follows 2³¹ - 1.
_ANY_SEQUENCE = -1

_VERSION = 2
_VERSION_WITH_RECORD_TIMESTAMPS = 1
_FRAME = struct.Struct(">BI")
_COUNT = struct.Struct(">I")
_PRODUCER = struct.Struct(">qhiqqB")
_BATCH = struct.Struct(">iiqq")


class ProducerState(NamedTuple):
    """The state of one producer, as DescribeProducers returns it; -1 for no sequence yet."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_append_ms: int
    last_offset: int


class _Producer:
    """Batches are (first sequence, last sequence, base offset, append time), all of one epoch."""

    __slots__ = ("batches", "epoch", "last_append_ms", "last_offset", "next_sequence")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: list[tuple[int, int, int, int]] = []
        self.next_sequence = _ANY_SEQUENCE
        self.last_append_ms = -1
        self.last_offset = -1


class ProducerStates:
    """The producers of one log, at most `max_producers`; the least recently used is forgotten.

    `check` is called before an append and `update` after it, for one batch at a time.
    """

    def __init__(self, max_producers: int = MAX_PRODUCERS) -> None:
        if max_producers < 1:
            raise ValueError(f"Invalid max_producers {max_producers}: must be at least 1")
        self._max_producers = max_producers
        #: Whether an unknown producer may start with any sequence. Not if the log was lost.
        self.accepts_unknown_sequences = True
        # Not a dict, in which finding the oldest key is slow after many have been moved.
        self._producers: OrderedDict[int, _Producer] = OrderedDict()

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
            )

    def check(self, batch: RecordBatch) -> int | None:
        """Return None if a batch is to be appended, or its base offset if it is a duplicate.

        An unknown producer may start with any sequence, since its state may have expired; but not
        in a log that replaces a lost one, with which its earlier batches are gone. Raises
        OutOfOrderSequenceError and StaleProducerEpochError.
        """
        producer = self._producers.get(batch.producer_id)
        if producer is None:
            if self.accepts_unknown_sequences or batch.base_sequence <= 0:
                return None
            raise OutOfOrderSequenceError(
                f"Producer {batch.producer_id} sent sequence {batch.base_sequence}, but its earlier"
                " batches were lost with the partition's log"
            )
        epoch, first = batch.producer_epoch, batch.base_sequence
        if epoch < producer.epoch:
            raise StaleProducerEpochError(
                f"Producer {batch.producer_id} has epoch {epoch}, older than {producer.epoch}"
            )
        expected = producer.next_sequence if epoch == producer.epoch else 0
        # The expected batch is no duplicate: five batches never span all sequence numbers. A batch
        # without a sequence is a transaction marker, which is not counted.
        if first == expected or first < 0 or expected == _ANY_SEQUENCE:
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

    def update(self, batch: RecordBatch, base_offset: int, append_ms: int) -> None:
        """Record that a batch was appended, or found in the log, at this offset.

        Nothing is validated: the log is the truth, and compaction, for one, leaves gaps in
        sequences.
        """
        producer_id = batch.producer_id
        if producer_id < 0:
            return
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = _Producer(batch.producer_epoch)
            self._enforce_limit()
        else:
            self._producers.move_to_end(producer_id)
            if producer.epoch != batch.producer_epoch:
                producer.epoch = batch.producer_epoch
                producer.batches.clear()
                producer.next_sequence = 0
        first = batch.base_sequence
        if first >= 0:
            last = batch.last_sequence
            batches = producer.batches
            batches.append((first, last, base_offset, append_ms))
            if len(batches) > REMEMBERED_BATCHES:
                del batches[0]
            producer.next_sequence = (last + 1) & _SEQUENCE_MASK
        producer.last_append_ms = append_ms
        producer.last_offset = base_offset + batch.last_offset_delta

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forget producers whose last append is at least `expiration_ms` ago."""
        horizon = now_ms - expiration_ms
        expired = [key for key, value in self._producers.items() if value.last_append_ms <= horizon]
        for producer_id in expired:
            del self._producers[producer_id]

    def truncate(self, offset: int) -> None:
        """Forget batches at or after the offset at which the log was truncated.

        A producer without remaining batches is forgotten, even if the log has older ones.
        """
        truncated = [key for key, value in self._producers.items() if value.last_offset >= offset]
        for producer_id in truncated:
            producer = self._producers[producer_id]
            batches = producer.batches
            while batches and _last_offset(batches[-1]) >= offset:
                batches.pop()
            if not batches:
                del self._producers[producer_id]
                continue
            _, last, _, producer.last_append_ms = batches[-1]
            producer.last_offset = _last_offset(batches[-1])
            producer.next_sequence = (last + 1) & _SEQUENCE_MASK

    def snapshot(self) -> bytes:
        """Encode all states for a snapshot file; see `restore`."""
        parts = [_COUNT.pack(len(self._producers))]
        for producer_id, producer in self._producers.items():
            parts.append(
                _PRODUCER.pack(
                    producer_id,
                    producer.epoch,
                    producer.next_sequence,
                    producer.last_append_ms,
                    producer.last_offset,
                    len(producer.batches),
                )
            )
            parts += [_BATCH.pack(*batch) for batch in producer.batches]
        body = b"".join(parts)
        return _FRAME.pack(_VERSION, crc32c(body)) + body

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
        if version not in (_VERSION, _VERSION_WITH_RECORD_TIMESTAMPS):
            raise ValueError(f"Producer snapshot has version {version}, not {_VERSION}")
        if crc32c(memoryview(data)[_FRAME.size :]) != crc:
            raise ValueError("Producer snapshot has a wrong CRC")
        states = cls(max_producers)
        try:
            end = states._read(data, _FRAME.size)
        except struct.error as error:
            raise ValueError(f"Producer snapshot ends early: {error}") from None
        if end != len(data):
            raise ValueError(f"Producer snapshot is followed by {len(data) - end} bytes")
        if version == _VERSION_WITH_RECORD_TIMESTAMPS:
            for producer in states._producers.values():
                producer.last_append_ms = written_ms
                producer.batches = [(*batch[:3], written_ms) for batch in producer.batches]
        return states

    def _read(self, data: bytes, position: int) -> int:
        (count,) = _COUNT.unpack_from(data, position)
        position += _COUNT.size
        for _ in range(count):
            producer_id, epoch, next_sequence, timestamp, offset, batches = _PRODUCER.unpack_from(
                data, position
            )
            position += _PRODUCER.size
            producer = self._producers[producer_id] = _Producer(epoch)
            producer.next_sequence = next_sequence
            producer.last_append_ms = timestamp
            producer.last_offset = offset
            for _ in range(batches):
                producer.batches.append(_BATCH.unpack_from(data, position))
                position += _BATCH.size
            self._enforce_limit()
        return position

    def _enforce_limit(self) -> None:
        if len(self._producers) > self._max_producers:
            self._producers.popitem(last=False)


def _last_offset(batch: tuple[int, int, int, int]) -> int:
    """Return the last offset: sequences and offsets increase together."""
    first, last, base_offset, _ = batch
    return base_offset + ((last - first) & _SEQUENCE_MASK)
