"""The sink: rows in Arrow batches, and a producer of the SDK in each task.

A producer is idempotent: what it has to send again is written once. A task that fails while it
writes has written part of its rows, and Spark runs it again: then these rows are written twice, as
they are with Spark's own sink. Only a transaction could take them back. To hold rows back until all
are there would not help: where they are computed and that fails, the rest is missing, and Spark
does not tell a sink in Python.
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
from .options import WriteOptions

#: What a record is made of; its time is only if that is wanted.
_COLUMNS = ("key", "value", "headers", "partition")


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
    link, topic = options.link, options.topic
    columns = (*_COLUMNS, "timestamp") if options.has_timestamps else _COLUMNS
    records = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal records
        for batch in batches:
            records += batch.num_rows
            yield batch

    with Producer(
        link.bootstrap, client=link.client, batch=options.batch, **options.producer
    ) as producer:
        if topic is not None:
            # Nothing of one is waited for before the next is sent.
            parts = producer.send_arrow(topic, (_only(columns, batch) for batch in counted()))
        else:
            parts = []
            for batch in counted():
                for name, rows in by_topic(batch):
                    parts += producer.send_arrow(name, _only(columns, rows))
    assert sum(part.record_count for part in parts) == records
    return Written(records)


def by_topic(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Give the rows of each topic."""
    topics = batch.column("topic")
    if topics.null_count:
        raise ValueError("a row has no topic: the column is null, and there is no option 'topic'")
    names = pc.unique(topics).to_pylist()
    for name in names:
        yield name, batch if len(names) == 1 else batch.filter(pc.equal(topics, name))


def _only(columns: Sequence[str], batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select([name for name in columns if name in batch.schema.names])
