"""The driver's side of the exactly-once sink.

Tasks write their rows in transactions of their own, and leave them open. When all are done, the
driver decides: it writes a commit record, with the ids of these transactions, to the progress topic
in a transaction of its own. From the moment at which that is committed the batch is committed, and
any driver completes it; before, no driver does.

    before the tasks   fence other drivers; read the last commit record; complete it
    commit             fence other drivers; write the commit record; commit the tasks' transactions;
                       write a completion record; abort what other attempts have left open

A transaction of a committed batch that was aborted, because it was open for too long, is not lost:
its rows are still in the log, and are copied in a transaction of the driver, which also replaces
the commit record. See docs/decisions/0013-exactly-once-spark-sink.md for what can be killed when.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Self

from ..admin import Admin
from ..errors import ErrorCode, KafkaError, ProducerFencedError
from ..producer.producer import Producer
from ..transaction_requests import FENCED
from ..types import EARLIEST, LATEST, TopicPartition
from .broker_client import broker_client
from .errors import FencedError
from .options import ExactlyOnceOptions, FetchOptions, WriteOptions
from .planning import PartitionRange
from .progress import (
    COMMIT_KEY,
    COMPLETION_KEY,
    BatchCommit,
    Progress,
    Ranges,
    StagedTransaction,
    driver_id,
    encode_commit,
    encode_completion,
    is_task_id,
    progress_topic,
    replay,
)
from .ranges import read_range_with
from .staged_rows import aborted_ones, copy_rows

logger = logging.getLogger(__name__)

_TOPIC_CONFIGS = {"cleanup.policy": "compact"}
# The last commit record is nearly always among so many offsets from the end.
_TAIL_OFFSETS = 64
_ONGOING = "Ongoing"
# The minimum transaction timeout of the driver, which writes one record, and rarely copies rows.
_COMMIT_SECONDS = 60.0
# The transaction is not open any more, or another one is, or the id is forgotten.
_ENDED = (ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_ID_MAPPING)


class DriverSession:
    """Reads and writes the progress of a sink. There is one at a time: a new one fences others."""

    def __init__(self, options: WriteOptions) -> None:
        assert options.exactly_once is not None
        self._exactly_once: ExactlyOnceOptions = options.exactly_once
        self._connection = options.connection
        prefix = self._exactly_once.prefix
        self._tp = TopicPartition(progress_topic(prefix), 0)
        self._stack = ExitStack()
        try:
            self._client = self._stack.enter_context(broker_client(options.connection))
            self._admin, self._producer = self._client.wait_for(self._open(options))
            self._create_topic()
            # Also aborts the commit record of a driver that was killed before it was committed.
            self._client.wait_for(self._producer.start())
            #: The last commit, of this or another driver; complete.
            self.progress = self._completed(self._read_progress())
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise

    async def _open(self, options: WriteOptions) -> tuple[Admin, Producer]:
        connection, wait_for = options.connection, self._client.wait_for
        admin, producer = Admin(connection.bootstrap, client=connection.client), _producer(options)
        self._stack.callback(lambda: wait_for(admin.close()))
        self._stack.callback(lambda: wait_for(producer.close()))
        return admin, producer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: Any) -> None:
        # After an exception requests may be in flight: the client is not used again.
        self._stack.__exit__(*exception)

    def close(self) -> None:
        """Close the session."""
        self._stack.close()

    # Batches.

    def commit(self, commit: BatchCommit) -> None:
        """Commit a batch: its rows will be visible, whatever is killed afterwards.

        Raises FencedError if there is a newer driver.
        """
        still_open = self._are_open(commit.transactions)
        lost = [one for one in commit.transactions if one not in still_open]
        if lost:
            logger.warning(
                "%d transactions of batch %s have timed out or were fenced; copying their rows",
                len(lost),
                commit.batch_id,
            )
        remaining = dataclasses.replace(
            commit, transactions=[one for one in commit.transactions if one in still_open]
        )
        offset = self._write_commit(remaining, lost, commit.ranges or {})
        is_complete = not remaining.transactions
        self.progress = self._completed(Progress(remaining, offset, is_complete=is_complete))

    def abort_open(self) -> None:
        """Abort all open transactions of tasks, whatever attempts have left them behind."""
        prefix = self._exactly_once.prefix

        async def abort_all() -> None:
            listed = await self._admin.list_transactions(states=[_ONGOING])
            ids = [one.transactional_id for one in listed]
            await self._admin.fence_producers(*(one for one in ids if is_task_id(one, prefix)))

        self._client.wait_for(abort_all())

    # The progress topic.

    def _create_topic(self) -> None:
        async def create() -> None:
            try:
                await self._admin.create_topic(self._tp.topic, partitions=1, configs=_TOPIC_CONFIGS)
            except KafkaError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise

        self._client.wait_for(create())

    def _read_progress(self) -> Progress:
        """Return the last commit, reading backwards from the end of the progress topic."""
        tp = self._tp
        first = end = self._client.look_up({tp: LATEST}, read_committed=True)[tp]
        start = self._client.look_up({tp: EARLIEST})[tp]
        size = _TAIL_OFFSETS
        while first > start:
            first = max(start, end - size)
            progress = replay(self._records(first, end))
            if progress is not None:
                return progress
            size *= 8
        return Progress()

    def _records(self, first: int, end: int) -> Iterator[tuple[int, bytes | None, bytes | None]]:
        fetch = FetchOptions(read_committed=True)
        offsets = PartitionRange(*self._tp, first, end)
        for batch in read_range_with(self._client, offsets, fetch):
            rows = batch.select(["offset", "key", "value"]).to_pydict()
            yield from zip(rows["offset"], rows["key"], rows["value"], strict=True)

    def _write_commit(
        self, commit: BatchCommit, lost: Collection[StagedTransaction], ranges: Ranges
    ) -> int:
        """Write a commit record, and copies of rows, in one transaction; return its offset."""

        async def write() -> int:
            async with self._producer.transaction():
                if lost:
                    await copy_rows(self._client, self._producer, lost, ranges)
                metadata = await self._producer.send(
                    self._tp.topic, encode_commit(commit), key=COMMIT_KEY, partition=0
                )
            return metadata.offset

        try:
            return self._client.wait_for(write())
        except (KafkaError, ProducerFencedError) as error:
            if isinstance(error, KafkaError) and error.code not in FENCED:
                raise
            raise FencedError(
                f"Cannot commit batch {commit.batch_id}: another driver was started with"
                f" transactionalIdPrefix={self._exactly_once.prefix}"
            ) from error

    # Completing a commit.

    def _completed(self, progress: Progress) -> Progress:
        """Commit the transactions of a committed batch. May be repeated, by any driver."""
        commit = progress.commit
        if progress.is_complete or commit is None:
            return progress
        ended = self._commit_transactions(commit.transactions)
        lost = aborted_ones(self._client, ended)
        if not lost:
            self._write_completion(progress.offset)
            return dataclasses.replace(progress, is_complete=True)
        logger.warning(
            "%d transactions of committed batch %s were aborted; copying their rows",
            len(lost),
            commit.batch_id,
        )
        copied = dataclasses.replace(commit, transactions=(), ranges={})
        offset = self._write_commit(copied, lost, commit.ranges or {})
        return Progress(copied, offset)

    def _commit_transactions(
        self, transactions: Sequence[StagedTransaction]
    ) -> list[StagedTransaction]:
        """Commit transactions; return those that are not open any more."""

        async def commit(transaction: StagedTransaction) -> bool:
            try:
                await self._admin.end_transaction(
                    transaction.transactional_id, *transaction.producer, commit=True
                )
            except ProducerFencedError:
                return False
            except KafkaError as error:
                if error.code not in _ENDED:
                    raise
                return False
            return True

        async def commit_all() -> list[StagedTransaction]:
            done = await asyncio.gather(*map(commit, transactions))
            return [one for one, is_done in zip(transactions, done, strict=True) if not is_done]

        return self._client.wait_for(commit_all())

    def _write_completion(self, offset: int) -> None:
        # Not in a transaction: it is true whenever it is written, and only saves work.
        async def write() -> None:
            async with Producer(
                self._connection.bootstrap, idempotent=False, client=self._connection.client
            ) as producer:
                await producer.send(
                    self._tp.topic, encode_completion(offset), key=COMPLETION_KEY, partition=0
                )

        self._client.wait_for(write())

    def _are_open(self, transactions: Sequence[StagedTransaction]) -> set[StagedTransaction]:
        """Return the transactions that are still open."""
        ids = [one.transactional_id for one in transactions]
        found = self._client.wait_for(self._admin.describe_transactions(*ids))
        return {
            one
            for one in transactions
            for state in [found[one.transactional_id]]
            if (state.state, state.producer_id, state.producer_epoch) == (_ONGOING, *one.producer)
        }


def _producer(options: WriteOptions) -> Producer:
    assert options.exactly_once is not None
    return Producer(
        options.connection.bootstrap,
        transactional_id=driver_id(options.exactly_once.prefix),
        transaction_timeout=max(_COMMIT_SECONDS, options.exactly_once.transaction_timeout),
        client=options.connection.client,
        batch=options.batch,
        **options.producer,
    )
