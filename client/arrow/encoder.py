"""Arrow columns to encoded records, grouped by partition, without an object per record.

Requires pyarrow. Columns are matched by name: `value`, and optionally `key`, `headers`, `partition`
and `timestamp`, as in the batches of `Consumer.arrow_batches` and of Spark. Others are ignored.

The compiled module encodes the records. Where it is missing or leaves rows alone, they become
`ProducerRecord`s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from ottla.protocol import compiled

if TYPE_CHECKING:
    from ottla.protocol._fast import InputColumn

_BINARY = pa.binary()
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_TIMES = pa.timestamp("ms", "UTC")
#: Approximate size of the slices that rows are encoded in.
_SLICE_BYTES = 8 * 1024 * 1024


class EncodedRecords(NamedTuple):
    """Encoded records of one partition, with offsets from 0."""

    #: None: any partition.
    partition: int | None
    payload: bytes
    record_count: int
    base_timestamp: int
    max_timestamp: int


class Rows:
    """The columns of an Arrow batch that records are made of."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        names = batch.schema.names
        if "value" not in names:
            raise ValueError(f"Missing column 'value'; the columns are {', '.join(names)}")
        self.count: int = batch.num_rows
        self.values = _column(batch, "value", _BINARY)
        self.keys = _column(batch, "key", _BINARY)
        self.partitions = _column(batch, "partition", pa.int32())
        self.headers = _column(batch, "headers", _HEADERS)
        times = _column(batch, "timestamp", _TIMES)
        self.timestamps = None if times is None else times.cast(pa.int64())

    def encode(
        self, partition_count: int, *, now_ms: int, max_bytes: int, max_record_bytes: int
    ) -> list[EncodedRecords] | None:
        """Encode all rows by partition, in parts of up to `max_bytes`.

        Returns None if the rows have to go through `records`: there is no compiled module, a record
        is larger than `max_record_bytes`, or a row is invalid, which is reported there.
        """
        if compiled.fast is None or partition_count < 1:
            return None
        headers = None
        if self.headers is not None:
            pairs = self.headers.values
            if pairs.null_count:
                return None
            buffers = self.headers.buffers()
            lists: InputColumn = (buffers[0], buffers[1], None, self.headers.offset)
            headers = (lists, _binary(pairs.field(0)), _binary(pairs.field(1)))
        parts = compiled.fast.pack_columns(
            None if self.keys is None else _binary(self.keys),
            _binary(self.values),
            _integers(self.partitions),
            _integers(self.timestamps),
            headers,
            self.count,
            partition_count,
            now_ms,
            max_bytes,
            max_record_bytes,
        )
        return None if parts is None else [EncodedRecords(*part) for part in parts]

    def records(self) -> list[tuple[Any, ...]]:
        """Return the fields of a `ProducerRecord` for each row."""
        nulls = [None] * self.count
        headers = [()] * self.count if self.headers is None else map(_pairs, _list(self.headers))
        keys, partitions, timestamps = (
            nulls if column is None else _list(column)
            for column in (self.keys, self.partitions, self.timestamps)
        )
        values = _list(self.values)
        return list(zip(values, keys, headers, partitions, timestamps, strict=True))


def batches_of(
    rows: pa.RecordBatch | pa.Table | Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Yield rows in small slices, as each is copied when it is encoded."""
    if isinstance(rows, pa.Table):
        rows = rows.to_batches()
    elif isinstance(rows, pa.RecordBatch):
        rows = [rows]
    for batch in rows:
        step = max(1, batch.num_rows * _SLICE_BYTES // max(1, batch.nbytes))
        for start in range(0, batch.num_rows, step):
            yield batch.slice(start, step)


def _column(batch: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array | None:
    if name not in batch.schema.names:
        return None
    column = batch.column(name)
    if column.type != kind:
        # Truncates to milliseconds.
        column = column.cast(kind, safe=kind != _TIMES)
    column.validate(full=True)
    return column


def _binary(column: pa.Array) -> InputColumn:
    validity, ends, content = column.buffers()
    return validity, ends, content, column.offset


def _integers(column: pa.Array | None) -> InputColumn | None:
    if column is None:
        return None
    validity, numbers = column.buffers()
    return validity, numbers, None, column.offset


def _list(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_pylist()
    return values


def _pairs(headers: list[dict[str, Any]] | None) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((header["key"], header["value"]) for header in headers or ())
