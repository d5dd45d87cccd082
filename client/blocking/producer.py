"""The blocking producer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from ..config import ClientConfig
from ..producer.accumulator import ProducerRecord
from ..producer.batch import BatchConfig
from ..producer.bulk import BulkSend, OffsetRange
from ..producer.partitioner import Partitioner
from ..producer.producer import DetachedTransaction
from ..producer.producer import Producer as AsyncProducer
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
from .client import BlockingClient, blocking
from .consumer import Consumer
from .handoff import HandoffQueue
from .transaction import ConsumerSnapshot, Transaction

if TYPE_CHECKING:
    import pyarrow as pa

    from ..security import SecurityConfig

T = TypeVar("T")

# Records that are taken from an iterator before they are sent.
_CHUNK_RECORDS = 5000


class _OrderedProducer(AsyncProducer[K, V]):
    """A producer whose methods run after the records that threads have handed over before."""

    handoff: HandoffQueue

    async def send(self, *args: Any, **kwargs: Any) -> RecordMetadata:
        """Send a record."""
        await self.handoff.drained()
        return await super().send(*args, **kwargs)

    async def flush(self) -> None:
        """Flush."""
        await self.handoff.drained()
        await super().flush()

    async def begin_transaction(self) -> None:
        """Begin a transaction."""
        await self.handoff.drained()
        await super().begin_transaction()

    async def commit_transaction(self) -> None:
        """Commit the transaction."""
        await self.handoff.drained()
        await super().commit_transaction()

    async def abort_transaction(self) -> None:
        """Abort the transaction."""
        await self.handoff.drained()
        await super().abort_transaction()

    async def detach(self) -> DetachedTransaction:
        """Detach the transaction."""
        await self.handoff.drained()
        return await super().detach()

    async def close(self) -> None:
        """Close."""
        try:
            await self.handoff.drained()
        except asyncio.CancelledError:
            await self._abort()
            raise
        await super().close()


class Producer(BlockingClient[_OrderedProducer[K, V]], Generic[K, V]):
    """Like `ottla.client.Producer`, where the methods are documented.

    `enqueue` returns a `concurrent.futures.Future`, which also raises what goes wrong after the
    record has left the calling thread: an unknown topic, for example.
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
        # Not `signature_of`, as type checkers derive the types of keys and values from it.
        self._start(
            lambda: _OrderedProducer(
                bootstrap,
                acks=acks,
                compression=compression,
                idempotent=idempotent,
                partitioner=partitioner,
                key_serializer=key_serializer,
                value_serializer=value_serializer,
                transactional_id=transactional_id,
                transaction_timeout=transaction_timeout,
                batch=batch,
                client=client,
                security=security,
            )
        )

    flush = blocking(AsyncProducer.flush)
    start = blocking(AsyncProducer.start)
    begin_transaction = blocking(AsyncProducer.begin_transaction)
    commit_transaction = blocking(AsyncProducer.commit_transaction)
    abort_transaction = blocking(AsyncProducer.abort_transaction)
    detach = blocking(AsyncProducer.detach)

    @property
    def transactional_id(self) -> str | None:
        """The transactional id, if any."""
        return self._client.transactional_id

    @property
    def producer_id(self) -> int:
        """The producer id of a transactional producer; -1 before it is initialized."""
        return self._read(lambda producer: producer.producer_id)

    @property
    def producer_epoch(self) -> int:
        """The epoch of a transactional producer; -1 before it is initialized."""
        return self._read(lambda producer: producer.producer_epoch)

    @property
    def is_in_transaction(self) -> bool:
        """Whether there is a transaction that can be aborted."""
        return self._read(lambda producer: producer.is_in_transaction)

    def transaction(self, consumer: Consumer | None = None) -> Transaction:
        """Return a block that is a transaction: `with producer.transaction()`."""
        self._client.transaction()  # raises if there is no transactional id
        return Transaction(self, consumer)

    def commit_offsets(
        self,
        source: Consumer | Mapping[TopicPartition, int | OffsetAndMetadata],
        group: str | ConsumerGroupMetadata | None = None,
    ) -> None:
        """Commit offsets of a consumer group as part of the transaction."""
        offsets = ConsumerSnapshot(source) if isinstance(source, Consumer) else source
        self.run(lambda producer: producer.commit_offsets(offsets, group))

    def run(self, call: Callable[[AsyncProducer[K, V]], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine with the asynchronous producer (internal)."""
        return self._loop_thread.run(call(self._client))

    def send(
        self,
        topic: str,
        value: V | None = None,
        *,
        key: K | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> RecordMetadata:
        """Send a record, and return its metadata when it is acknowledged."""
        return self._loop_thread.run(
            self._client.send(
                topic, value, key=key, headers=headers, partition=partition, timestamp=timestamp
            )
        )

    def enqueue(
        self,
        topic: str,
        value: V | None = None,
        *,
        key: K | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Future[RecordMetadata]:
        """Queue a record, and return the future of its metadata."""
        try:
            return self._client.handoff.put(topic, value, key, headers, partition, timestamp)
        except Exception as error:
            if self._client.transactional_id is not None:
                self._read(partial(_report_failure, error))
            raise

    def send_many(
        self, topic: str, records: Iterable[V | ProducerRecord | None]
    ) -> list[OffsetRange]:
        """Send many records. An iterator runs in the calling thread."""
        append = self._client.accumulator.append_many
        return self._send_bulk(append, topic, _chunks(records))

    def send_arrow(
        self, topic: str, rows: pa.RecordBatch | pa.Table | Iterable[pa.RecordBatch]
    ) -> list[OffsetRange]:
        """Send rows. An iterator runs in the calling thread."""
        from ..arrow.encoder import batches_of  # noqa: PLC0415  # pyarrow is optional

        return self._send_bulk(self._client.accumulator.append_arrow, topic, batches_of(rows))

    def _send_bulk(
        self,
        append: Callable[[str, T, BulkSend], Coroutine[Any, Any, None]],
        topic: str,
        parts: Iterable[T],
    ) -> list[OffsetRange]:
        bulk = BulkSend()
        finish = partial(self._client.accumulator.finish, bulk)
        try:
            for part in parts:
                if bulk.error is not None:
                    break
                self._run_in_order(partial(append, topic, part, bulk))
        except Exception as error:
            with suppress(Exception):
                self._read(partial(_report_failure, error))
                self._run_in_order(finish)
            raise
        return self._run_in_order(finish)

    def _run_in_order(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Call and await after the records that were queued before."""

        async def run() -> T:
            await self._client.handoff.drained()
            return await call()

        return self._loop_thread.run(run())

    def _start(self, create: Callable[[], _OrderedProducer[K, V]]) -> None:
        super()._start(create)
        accumulator = self._client.accumulator
        self._client.handoff = HandoffQueue(self._loop_thread, accumulator)


def _report_failure(error: Exception, producer: AsyncProducer[Any, Any]) -> None:
    producer.accumulator.report_failure(error)


def _chunks(records: Iterable[Any]) -> Iterator[Sequence[Any]]:
    if isinstance(records, Sequence):
        yield records
        return
    iterator = iter(records)
    while chunk := list(islice(iterator, _CHUNK_RECORDS)):
        yield chunk
