"""The exactly-once sink: tasks write in open transactions, which the driver commits.

Spark creates a writer on the driver before it starts the tasks of a batch, sends it to the tasks,
and creates another one for the commit of a micro-batch. What a task knows of other batches is what
the first of these writers has read; what the commit knows of the tasks is in their messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from ..blocking import Producer
from ..producer.bulk import OffsetRange
from ..types import TopicPartition
from .commit import DriverSession
from .errors import FencedError
from .options import WriteOptions
from .progress import (
    BatchCommit,
    Progress,
    Ranges,
    StagedTransaction,
    merge_ranges,
    task_id,
)
from .writer import send_all

_BATCH_ID = "streaming.sql.batchId"
_QUERY_ID = "sql.streaming.queryId"
_NO_QUERY = ""


@dataclass(frozen=True)
class StagedRows(WriterCommitMessage):
    """What a task has written, and not committed."""

    query: str
    #: The offset of the last commit record before the tasks were started.
    last_commit: int
    #: None if there were no rows, or the batch is committed already.
    transaction: StagedTransaction | None = None
    ranges: Ranges = field(default_factory=dict)


class _Writer:
    """What batch and streaming writers share."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._session: DriverSession | None = DriverSession(options)
        self._progress: Progress = self._session.progress

    def __getstate__(self) -> dict[str, Any]:
        # Spark pickles the writer for the tasks; the commit has a session of its own.
        if self._session is not None:
            self._session.close()
            self._session = None
        return self.__dict__

    def _stage(
        self, rows: Iterator[pa.RecordBatch], query: str, batch_id: int | None
    ) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        last_commit = self._progress.offset
        if self._progress.covers(query, batch_id):
            # Only the commit of the query's checkpoint, or of the job, was missing. The rows are
            # still computed, because operators with state update it on the way.
            for _ in rows:
                pass
            return StagedRows(query, last_commit)
        assert self._options.exactly_once is not None
        prefix = self._options.exactly_once.prefix
        transactional_id = task_id(prefix, context.partitionId(), context.attemptNumber())
        staged = stage(rows, self._options, transactional_id)
        return StagedRows(query, last_commit, *(staged or ()))

    def _commit(self, messages: Sequence[WriterCommitMessage | None], batch_id: int | None) -> None:
        tasks = [message for message in messages if isinstance(message, StagedRows)]
        if not tasks:
            return  # no tasks, hence no rows
        with self._open() as session:
            query, last_commit = tasks[0].query, tasks[0].last_commit
            transactions = [one.transaction for one in tasks if one.transaction is not None]
            if session.progress.covers(query, batch_id):
                pass
            elif session.progress.offset != last_commit:
                raise FencedError(self._fenced(batch_id))
            elif transactions:
                ranges = merge_ranges(one.ranges for one in tasks)
                session.commit(BatchCommit(query, batch_id, transactions, ranges))
            session.abort_open()

    def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        tasks = [message for message in messages if isinstance(message, StagedRows)]
        with self._open() as session:
            # Another driver may have taken over: then these are its transactions.
            if all(one.last_commit == session.progress.offset for one in tasks):
                session.abort_open()

    def _open(self) -> DriverSession:
        session, self._session = self._session, None
        return session or DriverSession(self._options)

    def _fenced(self, batch_id: int | None) -> str:
        assert self._options.exactly_once is not None
        prefix = self._options.exactly_once.prefix
        batch = "the batch" if batch_id is None else f"batch {batch_id}"
        return (
            f"Cannot commit {batch}: another run or query with transactionalIdPrefix={prefix} has"
            " committed a batch meanwhile. Each query needs a prefix of its own"
        )


class ExactlyOnceBatchWriter(_Writer, DataSourceArrowWriter):
    """Writes the rows of a batch in transactions."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task, and leave their transaction open."""
        return self._stage(iterator, _NO_QUERY, self._batch_id)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make the rows of all tasks visible."""
        self._commit(messages, self._batch_id)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Abort the transactions of all tasks."""
        self._abort(messages)

    @property
    def _batch_id(self) -> int | None:
        assert self._options.exactly_once is not None
        return self._options.exactly_once.batch_id


class ExactlyOnceStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes the rows of each micro-batch in transactions."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task, and leave their transaction open."""
        context = TaskContext.get()
        assert context is not None
        query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        if query is None or batch is None:
            raise RuntimeError(f"Spark has not set {_QUERY_ID} and {_BATCH_ID} for this task")
        return self._stage(iterator, query, int(batch))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Make the rows of all tasks visible."""
        self._commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Abort the transactions of all tasks."""
        self._abort(messages)


def stage(
    rows: Iterator[pa.RecordBatch], options: WriteOptions, transactional_id: str
) -> tuple[StagedTransaction, Ranges] | None:
    """Write rows in a transaction, and leave it open; None if there are no rows.

    A transaction that an older attempt with the same id has left open is aborted.
    """
    first = next((batch for batch in rows if batch.num_rows), None)
    if first is None:
        return None
    assert options.exactly_once is not None
    with Producer(
        options.connection.bootstrap,
        client=options.connection.client,
        batch=options.batch,
        transactional_id=transactional_id,
        transaction_timeout=options.exactly_once.transaction_timeout,
        **options.producer,
    ) as producer:
        producer.begin_transaction()
        parts = send_all(producer, chain([first], rows), options)
        detached = producer.detach()
    witness = parts[0]
    transaction = StagedTransaction(
        transactional_id,
        detached.producer_id,
        detached.producer_epoch,
        sum(part.record_count for part in parts),
        witness.topic,
        witness.partition,
        witness.base_offset,
    )
    return transaction, merge_ranges(map(_range_of, parts))


def _range_of(part: OffsetRange) -> Ranges:
    end = part.base_offset + part.record_count
    return {TopicPartition(part.topic, part.partition): (part.base_offset, end)}
