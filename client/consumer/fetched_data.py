"""What one fetch brought of one partition, and how it becomes records.

A chunk keeps the bytes as they came: they are a fraction of what the records take as objects, and
whoever wants them as a table needs no objects at all. Batches are decoded when their records are
asked for. What is not for the application is left out here: records before the offset that was
asked for, control batches, and, for whoever reads committed records only, those of transactions
that were aborted.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any, NamedTuple

from ottla.protocol.batch import HEADER_BYTES, RecordBatch
from ottla.protocol.errors import BatchError, KafkaError, error_of

from ..errors import ClientError, SerializationError
from ..types import ConsumerRecord, Deserializer, TopicPartition

Buffer = bytes | bytearray | memoryview

_LENGTH = struct.Struct(">i")
_LENGTH_AT = 8
_BEFORE_LENGTH = 12
_CONTROL_TYPE = struct.Struct(">hh")
_ABORT = 0
_offset_of = attrgetter("offset")


class FetchedSlice(NamedTuple):
    """Records one after the other, and the offset to go on at; there may be no records."""

    records: list[ConsumerRecord]
    next_offset: int
    #: Whether deserializers have seen them.
    is_deserialized: bool = False


class BadRecordError(SerializationError):
    """A deserializer raised; `record` is the record as it was stored."""

    def __init__(self, record: ConsumerRecord, error: Exception) -> None:
        self.record = record
        place = f"{record.topic}-{record.partition}"
        super().__init__(f"{place} at offset {record.offset} is not understood: {error!r}")


class FetchedData:
    """Batches of one partition, from an offset on."""

    __slots__ = (
        "_aborted",
        "_aborting",
        "_at",
        "_checks_crc",
        "_rest",
        "_view",
        "fetch_offset",
        "next_offset",
        "place",
        "size_bytes",
    )

    def __init__(
        self,
        place: TopicPartition,
        fetch_offset: int,
        data: Buffer,
        aborted: Iterable[tuple[int, int]] = (),
        *,
        checks_crc: bool = True,
    ) -> None:
        """Take bytes; `aborted` are producer ids and the first offsets of their transactions."""
        self.place = place
        self.fetch_offset = fetch_offset
        self._view = memoryview(data)
        self._checks_crc = checks_crc
        self._aborted = deque(sorted(aborted, key=lambda one: one[1]))
        self._aborting: set[int] = set()
        # Where the next batch starts, and what is left of the last one that was decoded.
        self._at = 0
        self._rest: Iterator[FetchedSlice] = iter(())
        self.size_bytes, self.next_offset = _extent(self._view, fetch_offset)

    def take(self, most: int) -> FetchedSlice | None:
        """Give the next records, about as many as `most` or fewer. Raises KafkaError.

        Nothing behind a batch that is damaged is given, and asking again raises again.
        """
        found = next(self._rest, None)
        if found is not None:
            return found
        records: list[ConsumerRecord] = []
        next_offset = -1
        while self._at < self.size_bytes and len(records) < most:
            if records and self._count_of_next() > most:
                break
            try:
                batch = self._next_batch()
                decoded = self._decoded(batch)
            except KafkaError:
                if next_offset < 0:
                    raise
                break  # what came before it is given first
            if len(decoded) > 2 * most:
                self._rest = _cut(decoded, most, batch.next_offset)
                return next(self._rest)
            records += decoded
            next_offset = batch.next_offset
        return FetchedSlice(records, next_offset) if next_offset >= 0 else None

    @property
    def is_begun(self) -> bool:
        """Whether anything was taken out of it."""
        return self._at > 0

    def batches(self) -> Iterator[RecordBatch]:
        """Take out the batches that have records for the application, unchecked.

        Raises KafkaError.
        """
        self._checks_crc = False
        while self._at < self.size_bytes:
            batch = self._next_batch()
            if self._is_wanted(batch):
                yield batch

    def _count_of_next(self) -> int:
        (count,) = _LENGTH.unpack_from(self._view, self._at + HEADER_BYTES - 4)
        return int(count)

    def _next_batch(self) -> RecordBatch:
        try:
            batch = RecordBatch(self._view[self._at : self.size_bytes])
            if self._checks_crc:
                batch.validate()
        except BatchError as error:
            raise self._damaged(error) from error
        self._at += batch.size
        return batch

    def _decoded(self, batch: RecordBatch) -> list[ConsumerRecord]:
        if not self._is_wanted(batch):
            return []
        try:
            records = batch.records_as(
                ConsumerRecord, tuple(self.place), (batch.partition_leader_epoch,)
            )
        except BatchError as error:
            self._at -= batch.size
            raise self._damaged(error) from error
        if batch.base_offset < self.fetch_offset:
            del records[: bisect_left(records, self.fetch_offset, key=_offset_of)]
        return records

    def _is_wanted(self, batch: RecordBatch) -> bool:
        """Whether a batch is for the application. Markers are taken note of."""
        aborted, aborting = self._aborted, self._aborting
        while aborted and aborted[0][1] <= batch.last_offset:
            aborting.add(aborted.popleft()[0])
        if batch.is_control:
            if batch.producer_id in aborting and _is_abort(batch):
                aborting.discard(batch.producer_id)
            return False
        if batch.next_offset <= self.fetch_offset:
            return False
        return not (batch.is_transactional and batch.producer_id in aborting)

    def _damaged(self, error: BatchError) -> Exception:
        (base_offset,) = struct.unpack_from(">q", self._view, self._at)
        reason = f"{self.place}, batch at offset {base_offset}: {error}"
        return error_of(error.code, reason) or KafkaError(error.code, reason)


def deserialize(
    records: list[ConsumerRecord], key: Deserializer | None, value: Deserializer | None
) -> tuple[list[ConsumerRecord], Exception | None]:
    """Give what deserializers make of records, up to the first of which they make nothing.

    The error is what they raised; the record is the one behind those that are given.
    """
    made: list[ConsumerRecord] = []
    append, new = made.append, tuple.__new__
    try:
        for topic, partition, offset, time, raw_key, raw_value, headers, epoch in records:
            its_key: Any = raw_key if key is None or raw_key is None else key(raw_key)
            its_value: Any = raw_value if value is None or raw_value is None else value(raw_value)
            append(
                new(
                    ConsumerRecord,
                    (topic, partition, offset, time, its_key, its_value, headers, epoch),
                )
            )
    except Exception as error:  # noqa: BLE001  # it is somebody else's code; it is handed on
        return made, error
    return made, None


def _cut(records: list[ConsumerRecord], most: int, next_offset: int) -> Iterator[FetchedSlice]:
    for start in range(0, len(records), most):
        part = records[start : start + most]
        is_last = start + most >= len(records)
        yield FetchedSlice(part, next_offset if is_last else part[-1].offset + 1)


def _extent(view: memoryview, fetch_offset: int) -> tuple[int, int]:
    """Give how many bytes are whole batches, and the offset that follows the last of them.

    The last batch may be cut off: brokers may cut at the size that was asked for.
    """
    at, last, end = 0, -1, len(view)
    while end - at >= HEADER_BYTES:
        (length,) = _LENGTH.unpack_from(view, at + _LENGTH_AT)
        size = _BEFORE_LENGTH + length
        if length < 0 or at + size > end:
            break
        last, at = at, at + size
    if last < 0:
        if end:
            raise TruncatedError(f"no whole batch in the {end} bytes that were fetched")
        return 0, fetch_offset
    base_offset, last_offset_delta = struct.unpack_from(">q15xi", view, last)
    return at, max(fetch_offset, base_offset + last_offset_delta + 1)


class TruncatedError(ClientError):
    """Not even one whole batch was fetched."""


def _is_abort(batch: RecordBatch) -> bool:
    try:
        key = batch.records()[0].key
        return key is not None and _CONTROL_TYPE.unpack_from(key)[1] == _ABORT
    except (BatchError, IndexError, struct.error):
        return False
