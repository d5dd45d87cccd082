"""Arrow columns to records: those of each partition in packs, without an object for each.

It needs pyarrow. Columns are taken by name: `value`, and where they are there `key`, `headers`,
`partition` and `timestamp`; they are those that `Consumer.arrow_batches` and Spark give. All others
are passed by.

The compiled module makes the packs. What it leaves alone, and where it is not, rows become
`ProducerRecord`s, which any producer takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from ottla.protocol import compiled

if TYPE_CHECKING:
    from ottla.protocol._fast import Given

_BINARY = pa.binary()
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_TIMES = pa.timestamp("ms", "UTC")
#: What is made into packs at a time, more or less.
_PART_BYTES = 8 * 1024 * 1024


class Pack(NamedTuple):
    """Records of one partition, encoded, with offsets from 0 on."""

    #: None: any will do.
    partition: int | None
    payload: bytes
    #: How many there are.
    records: int
    base_timestamp: int
    max_timestamp: int


class Rows:
    """The columns of an Arrow batch that records are made of. Raises what is wrong with them."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        names = batch.schema.names
        if "value" not in names:
            raise ValueError(f"a column 'value' is needed, and there are {', '.join(names)}")
        self.count: int = batch.num_rows
        self.values = _column(batch, "value", _BINARY)
        self.keys = _column(batch, "key", _BINARY)
        self.partitions = _column(batch, "partition", pa.int32())
        self.headers = _column(batch, "headers", _HEADERS)
        times = _column(batch, "timestamp", _TIMES)
        self.timestamps = None if times is None else times.cast(pa.int64())

    def packs(self, partitions: int, *, now_ms: int, limit: int, largest: int) -> list[Pack] | None:
        """Encode them for so many partitions, in packs of up to `limit` bytes.

        Gives None where that is left to `records`: one takes more than `largest` bytes, perhaps, or
        makes no sense.
        """
        if compiled.fast is None or partitions < 1:
            return None
        headers = None
        if self.headers is not None:
            pairs = self.headers.values
            if pairs.null_count:
                return None
            given = self.headers.buffers()
            lists: Given = (given[0], given[1], None, self.headers.offset)
            headers = (lists, _binaries(pairs.field(0)), _binaries(pairs.field(1)))
        packs = compiled.fast.pack_columns(
            None if self.keys is None else _binaries(self.keys),
            _binaries(self.values),
            _numbers(self.partitions),
            _numbers(self.timestamps),
            headers,
            self.count,
            partitions,
            now_ms,
            limit,
            largest,
        )
        return None if packs is None else [Pack(*one) for one in packs]

    def records(self) -> list[tuple[Any, ...]]:
        """Give the fields of a `ProducerRecord` for each row."""
        nothing = [None] * self.count
        headers = [()] * self.count if self.headers is None else map(_pairs, _list(self.headers))
        rest = [
            nothing if column is None else _list(column)
            for column in (self.keys, self.partitions, self.timestamps)
        ]
        keys, places, times = rest
        return list(zip(_list(self.values), keys, headers, places, times, strict=True))


def batches_of(
    rows: pa.RecordBatch | pa.Table | Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Give rows in batches that are not large, whatever they come in: each is copied as a whole."""
    if isinstance(rows, pa.Table):
        rows = rows.to_batches()
    elif isinstance(rows, pa.RecordBatch):
        rows = [rows]
    for batch in rows:
        step = max(1, batch.num_rows * _PART_BYTES // max(1, batch.nbytes))
        for start in range(0, batch.num_rows, step):
            yield batch.slice(start, step)


def _column(batch: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array | None:
    if name not in batch.schema.names:
        return None
    column = batch.column(name)
    if column.type != kind:
        # What is finer than a millisecond is cut off.
        column = column.cast(kind, safe=kind != _TIMES)
    column.validate(full=True)
    return column


def _binaries(column: pa.Array) -> Given:
    validity, ends, content = column.buffers()
    return validity, ends, content, column.offset


def _numbers(column: pa.Array | None) -> Given | None:
    if column is None:
        return None
    validity, numbers = column.buffers()
    return validity, numbers, None, column.offset


def _list(column: pa.Array) -> list[Any]:
    found: list[Any] = column.to_pylist()
    return found


def _pairs(headers: list[dict[str, Any]] | None) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((one["key"], one["value"]) for one in headers or ())
