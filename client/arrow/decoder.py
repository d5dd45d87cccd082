"""Fetched batches to Arrow: the columns of a partition's records, without an object per record.

    decoder = ArrowDecoder()
    for columns in decoder.decode(fetched, topic="rides", partition=0, start_offset=position):
        ...

Requires pyarrow (`pip install "ottla[arrow]"`). The columns are those of Spark's Kafka source, in
the same order and with the same types: with `ArrowDecoder(timestamp=pa.timestamp("us", "UTC"))`,
Spark uses the batches without conversion. For the same reason, the topic is a plain string in every
row.

Offsets into a column have 32 bits (the type is `binary`; Spark has no `large_binary`), so a fetch
may yield more than one `pyarrow.RecordBatch`, each of up to `batch_bytes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import pyarrow as pa

from ottla.protocol import compiled
from ottla.protocol.batch import MAX_DECOMPRESSED_BYTES, RecordBatch, split_batches
from ottla.protocol.errors import BatchError, ErrorCode, error_of
from ottla.protocol.records import Buffer, Record, decode_records

from ..types import TopicPartition

if TYPE_CHECKING:
    from ottla.protocol._fast import BatchPayload, Binary, Columns

_MAX_INT32 = 2**31 - 1
_MIN_INT64, _MAX_INT64 = -(2**63), 2**63 - 1
# Units per millisecond.
_TIME_SCALES = {"ms": 1, "us": 1000}
_allocate = partial(pa.allocate_buffer, resizable=True)
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@dataclass(frozen=True)
class ArrowDecoder:
    """Decodes record batches into Arrow batches. Stateless, so threads may share one."""

    #: Type of the timestamps: milliseconds or microseconds, with or without a time zone.
    timestamp: pa.TimestampType = pa.timestamp("ms")  # noqa: RUF009, a type does not change
    #: Whether to add a column of headers. A record without headers has an empty list.
    headers: bool = False
    #: Maximum size of an Arrow batch, unless a single record batch is larger.
    batch_bytes: int = 64 * 1024 * 1024
    #: Maximum decompressed size of a record batch.
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES
    #: Whether to verify the CRC of each record batch.
    check_crcs: bool = True

    def __post_init__(self) -> None:
        if self.timestamp.unit not in _TIME_SCALES:
            raise ValueError(f"Invalid timestamp unit {self.timestamp.unit!r}: expected ms or us")
        for name in ("batch_bytes", "max_decompressed_bytes"):
            if not 1 <= getattr(self, name) <= _MAX_INT32:
                raise ValueError(
                    f"Invalid {name}={getattr(self, name)}: expected 1 to {_MAX_INT32}"
                )

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of every Arrow batch."""
        fields = [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", self.timestamp),
            ("timestampType", pa.int32()),
        ]
        return pa.schema([*fields, ("headers", _HEADERS)] if self.headers else fields)

    def decode(
        self,
        records: Buffer | Iterable[RecordBatch],
        *,
        topic: str,
        partition: int,
        start_offset: int = 0,
        end_offset: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records from `start_offset` up to, but not including, `end_offset`.

        `records` is fetched data, whose last batch may be incomplete and is then ignored; or the
        batches in it, from which the caller may have removed those of aborted transactions. Control
        batches are skipped, and no Arrow batch is empty.

        Raises BatchError, with a note that names the batch. Records before a batch with a wrong CRC
        or damaged compression are yielded first.
        """
        first = max(start_offset, _MIN_INT64)
        last = _MAX_INT64 if end_offset is None else min(end_offset - 1, _MAX_INT64)
        if isinstance(records, (bytes, bytearray, memoryview)):
            records = split_batches(records)
        for group in self._groups(records, first, last):
            keys, values, *others = self._columns(group, first, last)
            if count := len(keys):
                topics = pa.repeat(pa.scalar(topic, pa.string()), count)
                partitions = pa.repeat(pa.scalar(partition, pa.int32()), count)
                arrays = [keys, values, topics, partitions, *others]
                yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _groups(
        self, batches: Iterable[RecordBatch], first: int, last: int
    ) -> Iterator[list[BatchPayload]]:
        """Decompress batches, and group those of one Arrow batch."""
        group: list[BatchPayload] = []
        size = 0
        for batch in batches:
            if batch.is_control or batch.last_offset < first or batch.base_offset > last:
                continue
            try:
                if self.check_crcs:
                    batch.validate()
                payload = batch.payload(self.max_decompressed_bytes)
            except BatchError as error:
                if group:
                    yield group
                error.add_note(_location(batch.base_offset))
                raise
            if group and size + len(payload) > self.batch_bytes:
                yield group
                group, size = [], 0
            time = batch.max_timestamp if batch.has_append_time else None
            group.append(
                (payload, batch.record_count, batch.base_offset, batch.base_timestamp, time)
            )
            size += len(payload)
        if group:
            yield group

    def _columns(self, group: list[BatchPayload], first: int, last: int) -> list[pa.Array]:
        """Decode all columns except topic and partition."""
        scale = _TIME_SCALES[self.timestamp.unit]
        if compiled.fast is not None:
            columns = compiled.fast.decode_columns(
                _allocate, group, first, last, scale, self.headers
            )
            if columns is not None:
                return self._wrap(columns)
        # No compiled module, or invalid records: then this raises the error.
        return self._columns_in_python(group, first, last, scale)

    def _wrap(self, columns: Columns) -> list[pa.Array]:
        """Return arrays over the buffers, without copying."""
        count, keys, values, offsets, timestamps, timestamp_types, headers = columns
        arrays = [
            _binary_array(pa.binary(), count, keys),
            _binary_array(pa.binary(), count, values),
            pa.Array.from_buffers(pa.int64(), count, [None, offsets]),
            pa.Array.from_buffers(self.timestamp, count, [None, timestamps]),
            pa.Array.from_buffers(pa.int32(), count, [None, timestamp_types]),
        ]
        if headers is not None:
            header_count, ends, header_keys, header_values = headers
            pairs = pa.StructArray.from_arrays(
                [
                    _binary_array(pa.string(), header_count, header_keys),
                    _binary_array(pa.binary(), header_count, header_values),
                ],
                fields=list(_HEADERS.value_type),
            )
            arrays.append(pa.Array.from_buffers(_HEADERS, count, [None, ends], children=[pairs]))
        return arrays

    def _columns_in_python(
        self, group: list[BatchPayload], first: int, last: int, scale: int
    ) -> list[pa.Array]:
        """Decode the same columns with an object per record."""
        rows: list[Record] = []
        timestamp_types: list[int] = []
        for packed in group:
            try:
                for row in decode_records(*packed):
                    if first <= row.offset <= last:
                        _check_time(row, scale)
                        rows.append(row)
            except BatchError as error:
                error.add_note(_location(packed[2]))
                raise
            timestamp_types += [int(packed[4] is not None)] * (len(rows) - len(timestamp_types))
        arrays = [
            pa.array([row.key for row in rows], pa.binary()),
            pa.array([row.value for row in rows], pa.binary()),
            pa.array([row.offset for row in rows], pa.int64()),
            pa.array([row.timestamp * scale for row in rows], self.timestamp),
            pa.array(timestamp_types, pa.int32()),
        ]
        if self.headers:
            headers = [[{"key": key, "value": value} for key, value in row.headers] for row in rows]
            arrays.append(pa.array(headers, _HEADERS))
        return arrays


def corrupt_batch_error(tp: TopicPartition, error: BatchError) -> Exception:
    """Return the KafkaError for a batch that cannot be decoded, with its location."""
    location = ", ".join([str(tp), *getattr(error, "__notes__", ())])
    return error_of(error.code, f"{location}: {error}") or error


def _binary_array(kind: pa.DataType, count: int, column: Binary) -> pa.Array:
    null_count, *buffers = column
    return pa.Array.from_buffers(kind, count, buffers, null_count)


def _check_time(record: Record, scale: int) -> None:
    if not _MIN_INT64 <= record.timestamp * scale <= _MAX_INT64:
        reason = f"timestamp {record.timestamp} of offset {record.offset}, ×{scale}, is too large"
        raise BatchError(reason, ErrorCode.INVALID_TIMESTAMP)


def _location(base_offset: int) -> str:
    return f"in the batch at offset {base_offset}"
