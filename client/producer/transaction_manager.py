"""The transactions of a producer: requests to the coordinator, and what the sender has to ask.

The state is in `transaction_state`. Requests are retried over lost connections, restarts and moves
of the coordinator, and CONCURRENT_TRANSACTIONS, until the operation timeout.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ..cluster import Cluster
from ..errors import (
    AbortableTransactionError,
    ClientError,
    DeadlineError,
    ErrorCode,
    FatalTransactionError,
    KafkaError,
    TransactionError,
)
from ..transaction_requests import (
    NO_PRODUCER,
    add_offsets,
    add_partitions,
    commit_transaction_offsets,
    end_transaction,
    init_producer_id,
    transaction_version,
)
from ..types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from .batch import Batch, ProducerIdAndEpoch
from .partition_queue import PartitionQueue
from .transaction_state import (
    ProducerTransactions,
    TransactionEvent,
    TransactionState,
    fatal_error,
    fatal_produce_error,
)

if TYPE_CHECKING:
    from .sender import Sender

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Nothing that was sent has arrived, or the coordinator has forgotten an unused transactional id.
_NOTHING_TO_ABORT = (ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
_CAN_ABORT = (
    TransactionState.IN_TRANSACTION,
    TransactionState.ABORTABLE_ERROR,
    TransactionState.ABORTING,
)
_CANNOT_COMMIT = (
    TransactionState.ABORTABLE_ERROR,
    TransactionState.ABORTING,
    TransactionState.FATAL_ERROR,
)


class DetachedTransaction(NamedTuple):
    """An open transaction that `Admin.end_transaction` can end, from any process."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    #: Whether nothing was sent: there is nothing to commit, and `end_transaction` would fail.
    is_empty: bool


class TransactionManager:
    """Begins and ends the transactions of a producer."""

    def __init__(
        self, cluster: Cluster, sender: Sender, transactional_id: str, timeout: float
    ) -> None:
        self.transactional_id = transactional_id
        self.state = ProducerTransactions()
        self._cluster = cluster
        self._sender = sender
        self._timeout_ms = int(timeout * 1000)
        # Begin, commit, abort and offset commits: one at a time.
        self._lock = asyncio.Lock()
        self._has_begun = False
        # Partitions to be added, with transaction.version 1, and whether a task adds some.
        self._to_add: dict[TopicPartition, PartitionQueue] = {}
        self._is_adding = False
        self._added = asyncio.Event()
        self._on_committed: list[Callable[[], None]] = []
        self._reject_records()

    @property
    def is_open(self) -> bool:
        """Whether there is a transaction that `abort` can end."""
        return self.state.state in _CAN_ABORT

    # Operations of the application.

    async def initialize(self) -> None:
        """Get a producer id and epoch, unless there is one. Fences older producers."""
        async with self._lock:
            if self.state.state is TransactionState.UNINITIALIZED:
                await self._initialize()

    async def begin(self) -> None:
        """Begin a transaction. A commit or abort without a response is completed first."""
        async with self._lock:
            if self.state.state is TransactionState.ABORTING:
                await self._abort()
            elif self.state.state is TransactionState.COMMITTING:
                try:
                    await self._commit()
                except AbortableTransactionError:
                    # It had timed out. The caller learns that, and can begin the next one.
                    await self._abort()
                    raise
            if self.state.state is TransactionState.UNINITIALIZED:
                await self._initialize()
            self.state.check(TransactionEvent.BEGIN)
            version = await self._retry(
                lambda: transaction_version(self._cluster, self.transactional_id), "begin"
            )
            if self._has_begun and version > self.state.version:
                # The epoch was used with the other protocol (KIP-890).
                await self._initialize()
            self._has_begun = True
            self.state.begin(version)
            self._sender.begin_transaction(version)

    async def commit(self) -> None:
        """Wait until all records are acknowledged, and commit.

        Raises AbortableTransactionError if one has failed. After a DeadlineError the outcome is not
        known: the call can be repeated.
        """
        async with self._lock:
            self.state.check(TransactionEvent.COMMIT)
            if self.state.state is TransactionState.IN_TRANSACTION:
                await self._flush("committed")
            await self._commit()

    async def abort(self) -> None:
        """Drop the records that are not sent, and abort. Nothing of the transaction is visible."""
        async with self._lock:
            await self._abort()

    async def detach(self) -> DetachedTransaction:
        """Wait until all records are acknowledged, and leave the transaction open."""
        async with self._lock:
            self.state.check(TransactionEvent.DETACH)
            await self._flush("detached")
            self.state.detach()
            producer = self.state.producer
            assert producer is not None
            return DetachedTransaction(
                self.transactional_id, *producer, is_empty=not self.state.may_be_open
            )

    async def commit_offsets(
        self,
        group: ConsumerGroupMetadata,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        on_committed: Callable[[], None] | None = None,
    ) -> None:
        """Add offsets to the transaction. `on_committed` is called when it is committed."""
        async with self._lock:
            self.state.check_open()
            if offsets:
                try:
                    await self._commit_offsets(group, offsets)
                except (KafkaError, ClientError) as error:
                    self.fail(error)
                    self.state.check_open()
            if on_committed is not None:
                self._on_committed.append(on_committed)

    async def _commit_offsets(
        self,
        group: ConsumerGroupMetadata,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
    ) -> None:
        state, cluster = self.state, self._cluster
        producer = state.producer
        assert producer is not None
        state.may_be_open = True
        if state.version == 1 and group.group_id not in state.groups:
            await self._retry(
                lambda: add_offsets(cluster, self.transactional_id, producer, group.group_id),
                "add offsets to the transaction",
            )
            state.groups.add(group.group_id)
        await self._retry(
            lambda: commit_transaction_offsets(
                cluster,
                self.transactional_id,
                producer,
                group,
                offsets,
                transaction_version=state.version,
            ),
            "commit offsets in the transaction",
        )

    # What the sender asks and reports.

    def admits(self, queue: PartitionQueue) -> bool:
        """Whether batches of a partition may be sent now.

        With transaction.version 1, the partition is added to the transaction first, and the queue
        scheduled again. After a failure its batches are dropped.
        """
        state = self.state
        if state.state is not TransactionState.IN_TRANSACTION:
            error = state.error or TransactionError("The transaction was aborted")
            self._sender.drop_waiting(queue, error)
            return False
        tp = TopicPartition(queue.topic, queue.partition)
        if state.version == 1 and tp not in state.partitions:
            self._to_add[tp] = queue
            if not self._is_adding:
                self._is_adding = True
                self._added.clear()
                self._sender.start_task(self._add_partitions(), "partitions of the transaction")
            return False
        state.may_be_open = True
        return True

    def fail(self, error: Exception) -> None:
        """Record that something of the transaction has failed."""
        fatal = fatal_error(error, self.transactional_id)
        if fatal is None:
            self.state.fail(error)
        else:
            self.state.fail_fatally(fatal)
        self._drop_records()

    def fail_batch(self, batch: Batch) -> None:
        """Record that the records of a batch have failed."""
        error = batch.error
        assert error is not None
        if batch.producer is not None:
            self.state.break_sequence()
        if self.state.state in (TransactionState.IN_TRANSACTION, TransactionState.COMMITTING):
            fatal = fatal_produce_error(error, self.transactional_id)
            if fatal is None:
                self.state.fail(error)
            else:
                self.state.fail_fatally(fatal)
            # Not now: the caller is in the middle of a change to the queue.
            asyncio.get_running_loop().call_soon(self._drop_records)

    def fail_record(self, error: Exception) -> None:
        """Record that a record could not be appended to a batch."""
        self.state.fail(error)
        self._drop_records()

    async def _add_partitions(self) -> None:
        """Add partitions to the transaction until there are no more to add."""
        state, producer = self.state, self.state.producer
        assert producer is not None
        try:
            while self._to_add and state.state is TransactionState.IN_TRANSACTION:
                adding, self._to_add = self._to_add, {}
                state.may_be_open = True
                await self._retry(
                    lambda tps=list(adding): add_partitions(  # type: ignore[misc]
                        self._cluster, self.transactional_id, producer, tps
                    ),
                    "add partitions to the transaction",
                    lambda: state.state is TransactionState.IN_TRANSACTION,
                )
                state.partitions.update(adding)
                for queue in adding.values():
                    self._sender.schedule(queue)
        except (KafkaError, ClientError) as error:
            self.fail(error)
        finally:
            self._is_adding = False
            self._to_add.clear()
            self._added.set()

    # Steps.

    async def _initialize(self) -> None:
        current = self.state.producer or NO_PRODUCER
        producer_id, epoch = await self._retry(
            lambda: init_producer_id(
                self._cluster, self.transactional_id, self._timeout_ms, current
            ),
            "initialize the transactional producer",
        )
        producer = ProducerIdAndEpoch(producer_id, epoch)
        self.state.initialize(producer)
        self._sender.set_producer(producer)

    async def _flush(self, what: str) -> None:
        """Wait for all records; accept no more of them. Raises TransactionError if one failed."""
        self._sender.failure = TransactionError(f"The transaction is being {what}")
        try:
            await self._sender.flush()
        except BaseException:
            if self.state.state is TransactionState.IN_TRANSACTION:
                self._sender.failure = None
            raise
        self.state.check_open()

    async def _commit(self) -> None:
        self.state.commit()
        try:
            await self._end(is_commit=True)
        except DeadlineError as error:
            reason = f"{error}; the transaction may or may not be committed"
            raise DeadlineError(reason) from error
        callbacks, self._on_committed = self._on_committed, []
        for callback in callbacks:
            callback()

    async def _abort(self) -> None:
        self.state.abort()
        self._on_committed.clear()
        self._drop_records()
        # A batch must not be written after the marker.
        await self._sender.settle()
        if self._is_adding:
            await self._added.wait()
        await self._end(is_commit=False)

    async def _end(self, *, is_commit: bool) -> None:
        state = self.state
        producer = state.producer
        assert producer is not None
        next_producer = producer
        if state.may_be_open:
            next_producer = await self._retry(
                lambda: self._send_end(producer, is_commit=is_commit),
                "commit the transaction" if is_commit else "abort the transaction",
            )
        state.end(next_producer)
        self._sender.set_producer(next_producer)
        self._reject_records()

    async def _send_end(
        self, producer: ProducerIdAndEpoch, *, is_commit: bool
    ) -> ProducerIdAndEpoch:
        try:
            return ProducerIdAndEpoch(
                *await end_transaction(
                    self._cluster,
                    self.transactional_id,
                    producer,
                    is_commit=is_commit,
                    transaction_version=self.state.version,
                )
            )
        except KafkaError as error:
            if error.code not in _NOTHING_TO_ABORT or is_commit:
                raise
            self.state.break_sequence()
            return producer

    async def _retry(
        self,
        attempt: Callable[[], Awaitable[T]],
        what: str,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> T:
        """Retry a request; an error that is not retriable changes the state, and is raised."""

        async def once() -> T:
            if not is_wanted():
                raise TransactionError(f"Gave up to {what}: the transaction has failed")
            return await attempt()

        try:
            return await self._cluster.retry(once, what=f"{self.transactional_id}: {what}")
        except DeadlineError:
            raise  # it can be called again
        except (KafkaError, ClientError) as error:
            if not is_wanted():
                raise
            if self.state.state is TransactionState.ABORTING:
                # There is nothing else to try.
                fatal = fatal_error(error, self.transactional_id)
                self.state.fail_fatally(
                    fatal or FatalTransactionError(f"The transaction cannot be aborted: {error}")
                )
                self._drop_records()
            else:
                self.fail(error)
            if self.state.error is not None:
                raise self.state.error from error
            raise

    def _drop_records(self) -> None:
        """Fail the records that are not sent, if the transaction cannot commit any more."""
        if self.state.state not in _CANNOT_COMMIT:
            return
        error = self.state.error or TransactionError("The transaction was aborted")
        self._sender.failure = error
        self._sender.drop_all_waiting(error)

    def _reject_records(self) -> None:
        self._sender.failure = TransactionError(
            "No transaction is open: use `async with producer.transaction()`"
        )
