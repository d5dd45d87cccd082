"""The producer.

    async with Producer("localhost:9092") as producer:
        metadata = await producer.send("orders", b"…", key=b"user-1")

        future = await producer.enqueue("orders", b"…")    # pipelined: a future of the metadata
        await producer.send_many("orders", [b"…", b"…"])   # in bulk: no future per record
        await producer.send_arrow("orders", table)         # from Arrow: no object per record
        await producer.flush()

    async with Producer("localhost:9092", transactional_id="billing") as producer:
        async with producer.transaction() as transaction:    # commits, or aborts on an exception
            await producer.send("invoices", b"…")
            await transaction.commit_offsets(consumer)

All of them wait while the buffer is full. No record is dropped silently: its future, or the call in
bulk, returns metadata or raises the error. Records that one task sends to one partition are written
in the order in which it sent them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Self

from ottla.protocol.compression import Compression

from ..cluster import Cluster
from ..config import ClientConfig
from ..errors import KafkaError, TransactionError
from ..transaction_requests import NO_PRODUCER
from ..types import (
    ConsumerGroupMetadata,
    Headers,
    K,
    OffsetAndMetadata,
    RecordMetadata,
    Serializer,
    TopicPartition,
    V,
)
from .accumulator import ProducerRecord, RecordAccumulator
from .batch import BatchConfig
from .bulk import BulkSend, OffsetRange
from .partitioner import ROUND_ROBIN, STICKY, Partitioner
from .sender import Sender
from .transaction import OffsetSource, Transaction, abort_and_log
from .transaction_manager import DetachedTransaction, TransactionManager

if TYPE_CHECKING:
    import pyarrow as pa

    from ..consumer.consumer import Consumer
    from ..security import SecurityConfig

__all__ = [
    "BatchConfig",
    "DetachedTransaction",
    "OffsetRange",
    "Producer",
    "ProducerRecord",
    "Transaction",
]

_ACKS: dict[str | int, int] = {"all": -1, -1: -1, 1: 1, 0: 0}


class Producer(Generic[K, V]):
    """Sends records to topics.

    Keys and values are bytes, or what `key_serializer` and `value_serializer` accept; type checkers
    know: `Producer[bytes, str]`.

    `acks` says who acknowledges a record: "all" in-sync replicas, 1 (the leader) or 0 (nobody:
    metadata has no offset, and losses go unnoticed). With `idempotent`, a retry is never written
    twice; it requires acks="all", and is then the default.

    `partitioner` is "sticky", "round-robin" or a function; see `partitioner.py`. `client` has the
    timeouts: a record that is not acknowledged within `timeouts.operation` fails with
    DeadlineError.

    With a `transactional_id`, records are sent in transactions only: see `transaction`. A producer
    that starts ends the transaction of an older one with the same id, and fences it. The
    coordinator aborts a transaction that is open for longer than `transaction_timeout` seconds.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        acks: Literal["all", -1, 0, 1] = "all",
        compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none",
        idempotent: bool | None = None,
        partitioner: Literal["sticky", "round-robin"] | Partitioner = "sticky",
        key_serializer: Serializer[K] | None = None,
        value_serializer: Serializer[V] | None = None,
        transactional_id: str | None = None,
        transaction_timeout: float = 60.0,
        batch: BatchConfig | None = None,
        client: ClientConfig | None = None,
        security: SecurityConfig | None = None,
    ) -> None:
        if acks not in _ACKS:
            raise ValueError(f"Invalid acks={acks!r}: expected 'all', 1 or 0")
        if compression.upper() not in Compression.__members__:
            names = ", ".join(codec.lower() for codec in Compression.__members__)
            raise ValueError(f"Invalid compression={compression!r}: expected one of {names}")
        if not callable(partitioner) and partitioner not in (STICKY, ROUND_ROBIN):
            raise ValueError(
                f"Invalid partitioner={partitioner!r}: expected {STICKY!r}, {ROUND_ROBIN!r} or a"
                " function"
            )
        if idempotent and acks not in ("all", -1):
            raise ValueError(f"Invalid acks={acks!r}: idempotence requires acks='all'")
        if transactional_id is not None:
            _check_transactional(transactional_id, transaction_timeout, acks, idempotent)
        self._cluster = Cluster(bootstrap, client, security)
        self._sender = Sender(
            self._cluster,
            batch or BatchConfig(),
            acks=_ACKS[acks],
            compression=Compression[compression.upper()],
            is_idempotent=acks in ("all", -1) if idempotent is None else idempotent,
        )
        self._transactions: TransactionManager | None = None
        if transactional_id is not None:
            self._transactions = self._sender.transactions = TransactionManager(
                self._cluster, self._sender, transactional_id, transaction_timeout
            )
        #: Internal: what the blocking producer appends records with.
        self.accumulator = RecordAccumulator(
            self._cluster,
            self._sender,
            partitioner=partitioner,
            key_serializer=key_serializer,
            value_serializer=value_serializer,
        )

    async def start(self) -> None:
        """Connect. Raises ClientError and KafkaError.

        `async with` connects as well. With a transactional id, this also fences older producers
        with the same one, and aborts their transaction; otherwise the first transaction does that.
        """
        await self.__aenter__()
        if self._transactions is not None:
            try:
                await self._transactions.initialize()
            except BaseException:
                await self._abort()
                raise

    async def __aenter__(self) -> Self:
        try:
            await self._cluster.retry(lambda: self._cluster.refresh([]), what="connecting")
        except BaseException:
            await self._abort()
            raise
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def send(
        self,
        topic: str,
        value: V | None = None,
        *,
        key: K | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> RecordMetadata:
        """Send a record, and return its metadata when it is acknowledged.

        If this is cancelled, the record may or may not be written; other records are not affected.
        """
        future = self._append(topic, value, key, headers, partition, timestamp)
        return await (future if isinstance(future, asyncio.Future) else await future)

    async def enqueue(
        self,
        topic: str,
        value: V | None = None,
        *,
        key: K | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Append a record to its batch, and return the future of its metadata.

        If this is cancelled, the record is not sent. If the future is cancelled, it may or may not
        be written. asyncio logs a failure that nobody retrieves.
        """
        future = self._append(topic, value, key, headers, partition, timestamp)
        return future if isinstance(future, asyncio.Future) else await future

    def _append(
        self,
        topic: str,
        value: V | None,
        key: K | None,
        headers: Headers,
        partition: int | None,
        timestamp: int | None,
    ) -> asyncio.Future[RecordMetadata] | Coroutine[Any, Any, asyncio.Future[RecordMetadata]]:
        """Append a record; return its future, or a coroutine of it if that has to wait."""
        accumulator = self.accumulator
        try:
            key_bytes, value_bytes, pairs, size = accumulator.serialize(
                key, value, headers, timestamp
            )
            queues = accumulator.topics.get(topic)
            loop = asyncio.get_running_loop() if queues is None else queues.loop
            future: asyncio.Future[RecordMetadata] = asyncio.Future(loop=loop)
            if queues is None:
                waiting: Coroutine[Any, Any, None] | None = accumulator.append_to_new(
                    topic, future, key_bytes, value_bytes, pairs, size, partition, timestamp
                )
            else:
                waiting = accumulator.append(
                    queues, future, key_bytes, value_bytes, pairs, size, partition, timestamp
                )
        except Exception as error:
            accumulator.report_failure(error)
            raise
        return future if waiting is None else self._append_later(future, waiting)

    async def _append_later(
        self, future: asyncio.Future[RecordMetadata], waiting: Coroutine[Any, Any, None]
    ) -> asyncio.Future[RecordMetadata]:
        try:
            await waiting
        except Exception as error:
            self.accumulator.report_failure(error)
            raise
        return future

    async def send_many(
        self, topic: str, records: Iterable[V | ProducerRecord | None]
    ) -> list[OffsetRange]:
        """Send values or `ProducerRecord`s, and return their offsets when all are acknowledged.

        If a record fails, those behind it in `records` are not sent, and its error is raised once
        the result of those before it is known; the other records of its batch have failed with it.
        If this is cancelled, any number of records may be written.
        """
        bulk = BulkSend()
        return await self._send_bulk(bulk, self.accumulator.append_many(topic, records, bulk))

    async def send_arrow(
        self, topic: str, rows: pa.RecordBatch | pa.Table | Iterable[pa.RecordBatch]
    ) -> list[OffsetRange]:
        """Send rows like `send_many`, without an object per record. Requires pyarrow.

        Columns are matched by name: `value`, and optionally `key`, `headers`, `partition` and
        `timestamp`. A null value is a tombstone; a null partition or timestamp is chosen as for any
        record.
        """
        from ..arrow.encoder import batches_of  # noqa: PLC0415  # pyarrow is optional

        bulk = BulkSend()

        async def append_all() -> None:
            for batch in batches_of(rows):
                if bulk.error is not None:
                    break
                await self.accumulator.append_arrow(topic, batch, bulk)

        return await self._send_bulk(bulk, append_all())

    async def flush(self) -> None:
        """Wait until all records sent so far are acknowledged or failed. Nothing lingers.

        Errors are raised by the records' futures, not here.
        """
        await self._sender.flush()

    # Transactions.

    @property
    def transactional_id(self) -> str | None:
        """The transactional id, if any."""
        return None if self._transactions is None else self._transactions.transactional_id

    @property
    def producer_id(self) -> int:
        """The producer id of a transactional producer; -1 before it is initialized."""
        return self._producer_id_and_epoch[0]

    @property
    def producer_epoch(self) -> int:
        """The epoch of a transactional producer; -1 before it is initialized."""
        return self._producer_id_and_epoch[1]

    @property
    def is_in_transaction(self) -> bool:
        """Whether there is a transaction that can be aborted: it is open, or has failed."""
        return self._transactions is not None and self._transactions.is_open

    def transaction(self, consumer: Consumer | None = None) -> Transaction:
        """Return a block that is a transaction: `async with producer.transaction()`.

        It is committed at the end, and aborted if an exception leaves the block, a cancellation
        too. A record that fails to be sent fails the commit, even if nobody has looked at its
        future. With a `consumer`, what it has delivered is committed as well (`commit_offsets`), or
        delivered again after an abort (`Consumer.seek_to_committed`).

        Raises AbortableTransactionError if the transaction was aborted because something in it has
        failed; ProducerFencedError if there is a newer producer; FatalTransactionError if the
        producer cannot go on for another reason; and DeadlineError if the outcome is not known: see
        `commit_transaction`.
        """
        self._require_transactions()
        return Transaction(self, consumer)

    async def begin_transaction(self) -> None:
        """Begin a transaction; `transaction` does this, and the commit or abort, for a block."""
        self.accumulator.check_not_closed()
        await self._require_transactions().begin()

    async def commit_transaction(self) -> None:
        """Wait until all records are acknowledged, and commit the transaction.

        Raises AbortableTransactionError if something in it has failed: it has to be aborted. If
        there is a DeadlineError, or this is cancelled, after the coordinator was asked, the
        transaction may or may not be committed. Call this again to find out, or close the producer
        and start another one.
        """
        await self._require_transactions().commit()

    async def abort_transaction(self) -> None:
        """Abort the transaction. Records that are not sent yet fail."""
        await self._require_transactions().abort()

    async def commit_offsets(
        self,
        source: OffsetSource | Mapping[TopicPartition, int | OffsetAndMetadata],
        group: str | ConsumerGroupMetadata | None = None,
    ) -> None:
        """Commit offsets of a consumer group as part of the transaction.

        `source` is a consumer with a group and `auto_commit=None`: all that it has delivered is
        committed, if it is still assigned to it. Or the offsets of the next records, with the
        `group` that they are for: its id, or `Consumer.group_metadata`, with which the coordinator
        rejects a member that was removed from the group.

        Raises AbortableTransactionError if the offsets cannot be committed: a partition was revoked
        after its records were delivered, or the consumer is not a member any more.
        """
        transactions = self._require_transactions()
        on_committed: Callable[[], None] | None = None
        if isinstance(source, Mapping):
            if group is None:
                raise ValueError("Offsets need the group that they are committed for")
            offsets = {
                tp: one if isinstance(one, OffsetAndMetadata) else OffsetAndMetadata(one)
                for tp, one in source.items()
            }
        else:
            if group is not None:
                raise ValueError("The group is that of the consumer")
            try:
                group, offsets = source.transaction_offsets()
            except KafkaError as error:
                transactions.fail(error)
                transactions.state.check_open()  # raises
                raise
            on_committed = partial(source.mark_transaction_committed, offsets)
        if isinstance(group, str):
            group = ConsumerGroupMetadata(group)
        await transactions.commit_offsets(group, offsets, on_committed)

    async def detach(self) -> DetachedTransaction:
        """Wait until all records are acknowledged, and leave the transaction open.

        `Admin.end_transaction` ends it, from any process, before the transaction timeout. The
        producer can only be closed. Raises AbortableTransactionError if a record has failed.
        """
        return await self._require_transactions().detach()

    @property
    def _producer_id_and_epoch(self) -> tuple[int, int]:
        producer = None if self._transactions is None else self._transactions.state.producer
        return producer or NO_PRODUCER

    def _require_transactions(self) -> TransactionManager:
        if self._transactions is None:
            raise TransactionError("The producer has no transactional_id")
        return self._transactions

    # Closing.

    async def close(self) -> None:
        """Flush, and close all connections. No more records are accepted.

        An open transaction is aborted, unless it was detached. If this is cancelled, records that
        are not acknowledged fail with ClosedError.
        """
        self.accumulator.close()
        try:
            if self.is_in_transaction:
                await abort_and_log(self)
            await self._sender.flush()
        finally:
            await self._abort()

    async def _abort(self) -> None:
        """Close all connections now. Records that are not acknowledged fail with ClosedError."""
        self.accumulator.close()
        try:
            await self._sender.close()
        finally:
            await self._cluster.close()

    async def _send_bulk(
        self, bulk: BulkSend, appending: Coroutine[Any, Any, None]
    ) -> list[OffsetRange]:
        try:
            await appending
        except BaseException as error:
            self.accumulator.expedite(bulk)
            if isinstance(error, Exception):
                self.accumulator.report_failure(error)
                await bulk.wait()
            raise
        return await self.accumulator.finish(bulk)


def _check_transactional(
    transactional_id: str, timeout: float, acks: str | int, idempotent: bool | None
) -> None:
    if not transactional_id:
        raise ValueError("Invalid transactional_id '': must not be empty")
    if timeout <= 0:
        raise ValueError(f"Invalid transaction_timeout={timeout:g}: must be positive")
    if idempotent is False or acks not in ("all", -1):
        raise ValueError("Transactions require acks='all' and idempotence")
