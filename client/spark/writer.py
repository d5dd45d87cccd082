"""The sink: rows in Arrow batches, and a producer of the SDK in each task.

A producer is idempotent: what it has to send again is written once. A task that fails while it
writes has written part of its rows, and Spark runs it again: then these rows are written twice, as
they are with Spark's own sink. Only a transaction could take them back. To hold rows back until all
are there would not help: where they are computed and that fails, the rest is missing, and Spark
does not tell a sink in Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from ..blocking import Producer
from ..producer import ProducerRecord
from .options import WriteOptions

# Without the function that a named tuple puts in front, which takes longer than to make it.
_new_record = partial(tuple.__new__, ProducerRecord)


@dataclass
class Written(WriterCommitMessage):
    """What a task has written."""

    records: int


class BatchWriter(DataSourceArrowWriter):
    """Writes the rows of a batch."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task; all are acknowledged when this returns."""
        return write_all(iterator, self._options)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the rows of each micro-batch."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task; all are acknowledged when this returns."""
        return write_all(iterator, self._options)


def write_all(batches: Iterable[pa.RecordBatch], options: WriteOptions) -> Written:
    """Send all rows, and wait until they are acknowledged."""
    link, records = options.link, 0
    with Producer(
        link.bootstrap, client=link.client, batching=options.batching, **options.producer
    ) as producer:
        for batch in batches:
            for topic, rows in by_topic(batch, options.topic):
                sent = records_of(rows, has_timestamps=options.has_timestamps)
                written = producer.send_many(topic, sent)
                assert sum(part.records for part in written) == rows.num_rows
                records += rows.num_rows
    return Written(records)


def by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Give the rows of each topic; the option counts more than the column."""
    if topic is not None:
        yield topic, batch
        return
    topics = batch.column("topic")
    if topics.null_count:
        raise ValueError("a row has no topic: the column is null, and there is no option 'topic'")
    names = pc.unique(topics).to_pylist()
    for name in names:
        yield name, batch if len(names) == 1 else batch.filter(pc.equal(topics, name))


def records_of(batch: pa.RecordBatch, *, has_timestamps: bool = False) -> list[Any]:
    """Give rows as what a producer takes."""
    columns = {name: batch.column(name) for name in batch.schema.names}
    values = _binaries(columns["value"])
    more = columns.keys() & {"key", "headers", "partition"}
    if not more and not has_timestamps and not columns["value"].null_count:
        return values
    count = batch.num_rows
    nothing: list[Any] = [None] * count
    keys = _binaries(columns["key"]) if "key" in more else nothing
    pairs = [_pairs(one) for one in columns["headers"].to_pylist()] if "headers" in more else None
    partitions = columns["partition"].to_pylist() if "partition" in more else nothing
    times = _milliseconds(columns["timestamp"]) if has_timestamps else nothing
    rows = zip(values, keys, pairs or [()] * count, partitions, times, strict=True)
    return list(map(_new_record, rows))


def _binaries(column: pa.Array) -> list[bytes | None]:
    found: list[bytes | None] = column.cast(pa.binary()).to_pylist()
    return found


def _pairs(headers: list[dict[str, Any]] | None) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((one["key"], one["value"]) for one in headers or ())


def _milliseconds(column: pa.Array) -> list[int | None]:
    found: list[int | None] = (
        column.cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64()).to_pylist()
    )
    return found
