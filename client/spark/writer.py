"""The sink: Arrow batches of rows, and one producer per task.

The producer is idempotent: what it sends again is written once. A task that fails has written part
of its rows, and Spark runs it again: these rows are written twice, as with Spark's own sink, unless
they are written in transactions: see `exactly_once`. Buffering all rows before writing would not
help: if computing the rows fails midway, the iterator just ends early, and Spark does not report it
to a Python sink.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from ..blocking import Producer
from ..producer.bulk import OffsetRange
from .errors import IncompleteWriteError
from .options import WriteOptions

#: The columns of a record; "timestamp" is added with includeTimestamp.
_COLUMNS = ("key", "value", "headers", "partition")


@dataclass
class Written(WriterCommitMessage):
    """The number of records that a task has written."""

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
    connection = options.connection
    with Producer(
        connection.bootstrap, client=connection.client, batch=options.batch, **options.producer
    ) as producer:
        parts = send_all(producer, batches, options)
    return Written(sum(part.record_count for part in parts))


def send_all(
    producer: Producer, batches: Iterable[pa.RecordBatch], options: WriteOptions
) -> list[OffsetRange]:
    """Send all rows with a producer, and return their offsets when they are acknowledged."""
    topic = options.topic
    columns = (*_COLUMNS, "timestamp") if options.include_timestamps else _COLUMNS
    records = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal records
        for batch in batches:
            records += batch.num_rows
            yield batch

    if topic is not None:
        # Batches are sent without waiting for the previous ones.
        parts = producer.send_arrow(topic, (_select(columns, batch) for batch in counted()))
    else:
        parts = []
        for batch in counted():
            for name, rows in by_topic(batch):
                parts += producer.send_arrow(name, _select(columns, rows))
    written = sum(part.record_count for part in parts)
    if written != records:
        raise IncompleteWriteError(f"The task has {records} rows, but {written} were acknowledged")
    return parts


def by_topic(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows of each topic."""
    topics = batch.column("topic")
    if topics.null_count:
        raise ValueError(
            "A row has no topic: its column 'topic' is null, and the option 'topic' is not set"
        )
    names = pc.unique(topics).to_pylist()
    for name in names:
        yield name, batch if len(names) == 1 else batch.filter(pc.equal(topics, name))


def _select(columns: Sequence[str], batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select([name for name in columns if name in batch.schema.names])
