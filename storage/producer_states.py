"""Idempotence: which batch of a producer comes next, and which was here already.

A producer numbers its records for each partition. Of every producer a log remembers the epoch and
the last five batches: as many as a client has under way at a time, so a batch that is sent again
because its answer was lost is found among them. Nothing here reads the records or a clock.

The snapshot, which spares reading the whole log at the next start, has big-endian numbers:

    version uint8 │ CRC-32C uint32, of all that follows │ producers uint32

then for each producer, the one used last at the end,

    producer id int64 │ epoch int16 │ next sequence int32, -1 any │ last timestamp int64
    │ last offset int64 │ batches uint8

and for each of its batches, the latest at the end,

    first sequence int32 │ last sequence int32 │ base offset int64 │ largest timestamp int64
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from ottla.protocol.batch import RecordBatch

from .errors import OutOfOrderSequenceError, StaleProducerEpochError

#: Batches remembered of each producer. Clients with idempotence have no more requests under way.
REMEMBERED_BATCHES = 5
#: Producers remembered of each log, unless a caller says otherwise.
PRODUCER_LIMIT = 100_000

_SEQUENCE_MASK = 0x7FFFFFFF  # after 2³¹ - 1 comes 0
_ANY = -1

_VERSION = 1
_FRAME = struct.Struct(">BI")
_COUNT = struct.Struct(">I")
_PRODUCER = struct.Struct(">qhiqqB")
_BATCH = struct.Struct(">iiqq")


class ProducerState(NamedTuple):
    """What is known of one producer, for those who ask; -1 where there is no sequence yet."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp: int
    last_offset: int


class _Producer:
    """The batches are (first sequence, last sequence, base offset, timestamp), all of one epoch."""

    __slots__ = ("batches", "epoch", "last_offset", "last_timestamp", "next_sequence")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: list[tuple[int, int, int, int]] = []
        self.next_sequence = _ANY
        self.last_timestamp = -1
        self.last_offset = -1


class ProducerStates:
    """The producers of one log, at most `limit`: the one used least recently is forgotten.

    `check` comes before an append and `update` after it, for one batch at a time.
    """

    def __init__(self, limit: int = PRODUCER_LIMIT) -> None:
        if limit < 1:
            raise ValueError(f"a limit of {limit} producers")
        self._limit = limit
        # Not a dict: finding the oldest key of one takes long after many have been moved.
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
                producer.last_timestamp,
                producer.last_offset,
            )

    def check(self, batch: RecordBatch) -> int | None:
        """Say whether to append a batch: None, or the base offset that it was appended at before.

        A producer that is not known may start anywhere: what was known of it may have expired.
        Raises OutOfOrderSequenceError and StaleProducerEpochError.
        """
        # A batch without a producer id is never put in, and so never found.
        producer = self._producers.get(batch.producer_id)
        if producer is None:
            return None
        epoch, first = batch.producer_epoch, batch.base_sequence
        if epoch < producer.epoch:
            raise StaleProducerEpochError(
                f"producer {batch.producer_id}: expected epoch {producer.epoch} or a later one,"
                f" got {epoch}"
            )
        expected = producer.next_sequence if epoch == producer.epoch else 0
        # What comes next is no duplicate: five batches never span all the numbers there are. A
        # batch without a sequence is a transaction marker, and stands outside of the count.
        if first == expected or first < 0 or expected == _ANY:
            return None
        if epoch == producer.epoch:
            last = batch.last_sequence
            for known_first, known_last, base_offset, _ in producer.batches:
                if known_first == first and known_last == last:
                    return base_offset
        raise OutOfOrderSequenceError(
            f"producer {batch.producer_id}, epoch {epoch}:"
            f" expected sequence {expected}, got {first}"
        )

    def update(self, batch: RecordBatch, base_offset: int, now_ms: int | None = None) -> None:
        """Note that a batch was appended at this offset, or was found there when a log is opened.

        `now_ms` is what `expire` will go by; the batch's largest timestamp, if it is not given.
        Nothing is checked: what the log has, it has. Compaction leaves gaps, for one.
        """
        producer_id = batch.producer_id
        if producer_id < 0:
            return
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = _Producer(batch.producer_epoch)
            self._keep_limit()
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
            batches.append((first, last, base_offset, batch.max_timestamp))
            if len(batches) > REMEMBERED_BATCHES:
                del batches[0]
            producer.next_sequence = (last + 1) & _SEQUENCE_MASK
        producer.last_timestamp = batch.max_timestamp if now_ms is None else now_ms
        producer.last_offset = base_offset + batch.last_offset_delta

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forget producers whose last batch is as old as that, or older."""
        horizon = now_ms - expiration_ms
        old = [key for key, value in self._producers.items() if value.last_timestamp <= horizon]
        for producer_id in old:
            del self._producers[producer_id]

    def truncate(self, offset: int) -> None:
        """Forget all that is at or after an offset, at which the log was cut.

        A producer of which no batch is left is forgotten, though the log may have older ones.
        """
        touched = [key for key, value in self._producers.items() if value.last_offset >= offset]
        for producer_id in touched:
            producer = self._producers[producer_id]
            batches = producer.batches
            while batches and _last_offset(batches[-1]) >= offset:
                batches.pop()
            if not batches:
                del self._producers[producer_id]
                continue
            _, last, _, producer.last_timestamp = batches[-1]
            producer.last_offset = _last_offset(batches[-1])
            producer.next_sequence = (last + 1) & _SEQUENCE_MASK

    def snapshot(self) -> bytes:
        """Give all of it as bytes for a file, for `restore`."""
        parts = [_COUNT.pack(len(self._producers))]
        for producer_id, producer in self._producers.items():
            parts.append(
                _PRODUCER.pack(
                    producer_id,
                    producer.epoch,
                    producer.next_sequence,
                    producer.last_timestamp,
                    producer.last_offset,
                    len(producer.batches),
                )
            )
            parts += [_BATCH.pack(*batch) for batch in producer.batches]
        body = b"".join(parts)
        return _FRAME.pack(_VERSION, crc32c(body)) + body

    @classmethod
    def restore(cls, data: bytes, limit: int = PRODUCER_LIMIT) -> ProducerStates:
        """Read a snapshot. Raises ValueError when it is damaged: the log has all that is in it."""
        if len(data) < _FRAME.size + _COUNT.size:
            raise ValueError(f"a producer snapshot of {len(data)} bytes")
        version, crc = _FRAME.unpack_from(data)
        if version != _VERSION:
            raise ValueError(f"a producer snapshot of version {version}, known is {_VERSION}")
        if crc32c(memoryview(data)[_FRAME.size :]) != crc:
            raise ValueError("the CRC of the producer snapshot does not match")
        states = cls(limit)
        try:
            end = states._read(data, _FRAME.size)
        except struct.error as error:
            raise ValueError(f"a producer snapshot that ends early: {error}") from None
        if end != len(data):
            raise ValueError(f"{len(data) - end} bytes behind the producer snapshot")
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
            producer.last_timestamp = timestamp
            producer.last_offset = offset
            for _ in range(batches):
                producer.batches.append(_BATCH.unpack_from(data, position))
                position += _BATCH.size
            self._keep_limit()
        return position

    def _keep_limit(self) -> None:
        if len(self._producers) > self._limit:
            self._producers.popitem(last=False)


def _last_offset(batch: tuple[int, int, int, int]) -> int:
    """Offsets and sequences go up together, so the one span gives the other."""
    first, last, base_offset, _ = batch
    return base_offset + ((last - first) & _SEQUENCE_MASK)
