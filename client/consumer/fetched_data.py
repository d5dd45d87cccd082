"""The data that one fetch returned for one partition, and its decoding into records.

Fetched data stays encoded until its records are asked for: bytes take a fraction of the memory of
record objects, and Arrow tables are built without any objects. What the application must not see is
filtered here: records before the fetch offset, control batches, and with read_committed the records
of aborted transactions.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any, NamedTuple

from ottla.protocol.batch import (
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    RecordBatch,
    batch_size,
    unpack_header,
)
from ottla.protocol.errors import BatchError, KafkaError, error_of

from ..errors import ClientError, SerializationError
from ..types import ConsumerRecord, Deserializer, TopicPartition

Buffer = bytes | bytearray | memoryview

_CONTROL_TYPE = struct.Struct(">hh")
_ABORT = 0
_offset_of = attrgetter("offset")


class FetchedSlice(NamedTuple):
    """Consecutive records, and the offset that follows them; there may be no records."""

    records: list[ConsumerRecord]
    next_offset: int
    #: Of the batch before `next_offset`, which may have no records for the application.
    leader_epoch: int = -1
    #: Whether the deserializers were applied.
    is_deserialized: bool = False


class BadRecordError(SerializationError):
    """A deserializer raised; `record` is the record with its key and value as bytes."""

    def __init__(self, record: ConsumerRecord, error: Exception) -> None:
        self.record = record
        super().__init__(
            f"Cannot deserialize the record of {record.topic}-{record.partition}"
            f" at offset {record.offset}: {error!r}"
        )


class FetchedData:
    """Record batches of one partition, from `fetch_offset` on."""

    __slots__ = (
        "_aborted",
        "_aborting",
        "_at",
        "_checks_crc",
        "_slices",
        "_view",
        "fetch_offset",
        "leader_epoch",
        "next_offset",
        "size_bytes",
        "tp",
    )

    def __init__(
        self,
        tp: TopicPartition,
        fetch_offset: int,
        data: Buffer,
        aborted: Iterable[tuple[int, int]] = (),
        *,
        checks_crc: bool = True,
    ) -> None:
        """Wrap fetched bytes.

        `aborted` are the (producer id, first offset) pairs of aborted transactions.
        """
        self.tp = tp
        self.fetch_offset = fetch_offset
        self._view = memoryview(data)
        self._checks_crc = checks_crc
        self._aborted = deque(sorted(aborted, key=lambda transaction: transaction[1]))
        self._aborting: set[int] = set()
        # Where the next batch starts, and the slices of a large batch that was decoded.
        self._at = 0
        self._slices: Iterator[FetchedSlice] = iter(())
        #: `leader_epoch` is that of the last batch.
        self.size_bytes, self.next_offset, self.leader_epoch = _extent(self._view, fetch_offset)

    def take(self, max_records: int) -> FetchedSlice | None:
        """Return the next records, up to about `max_records`; None at the end.

        Raises KafkaError for a corrupt batch, and again when called again: no record after it is
        returned.
        """
        next_slice = next(self._slices, None)
        if next_slice is not None:
            return next_slice
        records: list[ConsumerRecord] = []
        next_offset = leader_epoch = -1
        while self._at < self.size_bytes and len(records) < max_records:
            if records and self._next_record_count() > max_records:
                break
            try:
                batch = self._next_batch()
                decoded = self._decoded(batch)
            except KafkaError:
                if next_offset < 0:
                    raise
                break  # the records before it are returned first
            if len(decoded) > 2 * max_records:
                self._slices = _split(decoded, max_records, batch.next_offset)
                return next(self._slices)
            records += decoded
            next_offset, leader_epoch = batch.next_offset, batch.partition_leader_epoch
        return FetchedSlice(records, next_offset, leader_epoch) if next_offset >= 0 else None

    @property
    def is_started(self) -> bool:
        """Whether anything was taken."""
        return self._at > 0

    def batches(self) -> Iterator[RecordBatch]:
        """Yield the batches that have records for the application, without checking CRCs.

        Raises KafkaError for a corrupt batch header.
        """
        self._checks_crc = False
        while self._at < self.size_bytes:
            batch = self._next_batch()
            if self._is_visible(batch):
                yield batch

    def _next_record_count(self) -> int:
        *_, record_count = unpack_header(self._view, self._at)
        return record_count

    def _next_batch(self) -> RecordBatch:
        try:
            batch = RecordBatch(self._view[self._at : self.size_bytes])
            if self._checks_crc:
                batch.validate()
        except BatchError as error:
            raise self._corrupt(error) from error
        self._at += batch.size
        return batch

    def _decoded(self, batch: RecordBatch) -> list[ConsumerRecord]:
        if not self._is_visible(batch):
            return []
        try:
            records = batch.records_as(
                ConsumerRecord, tuple(self.tp), (batch.partition_leader_epoch,)
            )
        except BatchError as error:
            self._at -= batch.size
            raise self._corrupt(error) from error
        if batch.base_offset < self.fetch_offset:
            del records[: bisect_left(records, self.fetch_offset, key=_offset_of)]
        return records

    def _is_visible(self, batch: RecordBatch) -> bool:
        """Whether the application may see a batch. Tracks transaction markers on the way."""
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

    def _corrupt(self, error: BatchError) -> Exception:
        (base_offset,) = struct.unpack_from(">q", self._view, self._at)
        reason = f"{self.tp}, batch at offset {base_offset}: {error}"
        return error_of(error.code, reason) or KafkaError(error.code, reason)


def deserialize(
    records: list[ConsumerRecord], key: Deserializer | None, value: Deserializer | None
) -> tuple[list[ConsumerRecord], Exception | None]:
    """Return deserialized records up to the first that fails, and the error of that one, if any."""
    deserialized: list[ConsumerRecord] = []
    append, new = deserialized.append, tuple.__new__
    try:
        for topic, partition, offset, time, raw_key, raw_value, headers, epoch in records:
            new_key: Any = raw_key if key is None or raw_key is None else key(raw_key)
            new_value: Any = raw_value if value is None or raw_value is None else value(raw_value)
            append(
                new(
                    ConsumerRecord,
                    (topic, partition, offset, time, new_key, new_value, headers, epoch),
                )
            )
    except Exception as error:  # noqa: BLE001  # application code: the caller handles it
        return deserialized, error
    return deserialized, None


def _split(
    records: list[ConsumerRecord], max_records: int, next_offset: int
) -> Iterator[FetchedSlice]:
    for start in range(0, len(records), max_records):
        part = records[start : start + max_records]
        is_last = start + max_records >= len(records)
        last = part[-1]
        yield FetchedSlice(part, next_offset if is_last else last.offset + 1, last.leader_epoch)


def _extent(view: memoryview, fetch_offset: int) -> tuple[int, int, int]:
    """Return the size of all complete batches, the offset after the last, and its leader epoch.

    The last batch may be incomplete: brokers may truncate it at the requested size.
    """
    at, last, end = 0, -1, len(view)
    while end - at >= HEADER_BYTES:
        size = batch_size(view, at)
        if size < LOG_OVERHEAD_BYTES or at + size > end:
            break
        last, at = at, at + size
    if last < 0:
        if end:
            raise TruncatedError(f"The {end} bytes that were fetched contain no complete batch")
        return 0, fetch_offset, -1
    base_offset, _, leader_epoch, _, _, last_offset_delta, *_ = unpack_header(view, last)
    return at, max(fetch_offset, base_offset + last_offset_delta + 1), leader_epoch


class TruncatedError(ClientError):
    """A fetch returned less than one complete batch."""


def _is_abort(batch: RecordBatch) -> bool:
    try:
        key = batch.records()[0].key
        return key is not None and _CONTROL_TYPE.unpack_from(key)[1] == _ABORT
    except (BatchError, IndexError, struct.error):
        return False
