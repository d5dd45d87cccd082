"""The record accumulator: from a program's records to the batches of partition queues.

    serialize ──▶ choose the partition ──▶ admit (wait for buffer memory) ──▶ append to a batch

This is what the asynchronous and the blocking producer have in common, and it is internal to the
SDK. All methods run on the event loop of the producer, except `serialize`, which any thread may
call.

Records that one task appends to one partition are written in the order in which it appended them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ottla.protocol.batch import HEADER_BYTES

from ..cluster import Cluster
from ..errors import ClientError, ClosedError, RecordTooLargeError
from ..serializers import to_bytes, to_headers
from ..types import Headers, Serializer
from .batch import RECORD_OVERHEAD_BYTES, AnyFuture, Batch
from .bulk import BulkRun, BulkSend, OffsetRange
from .partitioner import HASH_MASK, STICKY, Partitioner, key_hash
from .sender import Sender
from .topic_queues import TopicQueues

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_TIMESTAMP = 2**63 - 1

HeaderPairs = tuple[tuple[str, bytes | None], ...]


class ProducerRecord(NamedTuple):
    """A record for `send_many` that is more than a value."""

    value: Any
    key: Any = None
    headers: Headers = ()
    partition: int | None = None
    #: In milliseconds; None is now.
    timestamp: int | None = None


#: Records that `append_many` takes at once; nothing is sent before the event loop runs again.
_CHUNK_RECORDS = 64
# What a chunk consists of that is appended fast.
_VALUES = {bytes}
_RECORDS = {ProducerRecord}
# Skips the constructor of the named tuple, which takes longer than making the tuple.
_new_record = partial(tuple.__new__, ProducerRecord)


class RecordAccumulator:
    """Appends records to batches, waiting while the buffer is full."""

    def __init__(
        self,
        cluster: Cluster,
        sender: Sender,
        *,
        partitioner: Literal["sticky", "round-robin"] | Partitioner,
        key_serializer: Serializer[Any] | None,
        value_serializer: Serializer[Any] | None,
    ) -> None:
        config = sender.config
        #: The topics that records were sent to.
        self.topics: dict[str, TopicQueues] = {}
        self._cluster = cluster
        self._sender = sender
        self._pool = sender.pool
        self._batch_bytes = config.batch_bytes
        self._buffer_timeout = config.buffer_timeout
        self._max_record_bytes = min(config.request_bytes - HEADER_BYTES, config.buffer_bytes)
        #: Values of type bytes up to this size need no serialization, which most are.
        self.max_plain_bytes = (
            -1 if value_serializer else self._max_record_bytes - RECORD_OVERHEAD_BYTES
        )
        self._key_serializer = key_serializer
        self._value_serializer = value_serializer
        self._partitioner = partitioner
        self._is_closed = False

    def close(self) -> None:
        """Append no more records. Those that wait for memory fail with ClosedError."""
        self._is_closed = True
        self._pool.close()

    def check_not_closed(self) -> None:
        """Raise ClosedError if the producer is closed."""
        if self._is_closed:
            raise ClosedError("The producer is closed")

    def check_open(self) -> None:
        """Raise ClosedError if the producer is closed, or the reason why it accepts no records."""
        self.check_not_closed()
        if self._sender.failure is not None:
            # The traceback of an earlier caller would be kept, and grow.
            raise self._sender.failure.with_traceback(None)

    def report_failure(self, error: Exception) -> None:
        """Report that a record was not appended: a transaction must not be committed without it."""
        if self._sender.transactions is not None:
            self._sender.transactions.fail_record(error)

    async def queues_of(self, topic: str) -> TopicQueues:
        """Return the queues of a topic, after a metadata lookup if it is new.

        Raises KafkaError, DeadlineError and ClosedError.
        """
        self.check_open()
        queues = self.topics.get(topic)
        if queues is None:
            await self._cluster.retry(
                lambda: self._cluster.topic(topic), what=f"Metadata lookup of topic {topic!r}"
            )
            self.check_open()
            queues = self.topics.setdefault(
                topic, TopicQueues(topic, self._cluster, self._sender, self._partitioner)
            )
        return queues

    def serialize(
        self, key: Any, value: Any, headers: Headers, timestamp: int | None
    ) -> tuple[bytes | None, bytes | None, HeaderPairs, int]:
        """Return key, value and headers as they are sent, and the size of the record.

        Raises SerializationError, RecordTooLargeError and ValueError.
        """
        if (
            type(value) is bytes
            and len(value) <= self.max_plain_bytes
            and key is timestamp is None
            and not headers
        ):
            return None, value, (), RECORD_OVERHEAD_BYTES + len(value)
        if key is not None and (type(key) is not bytes or self._key_serializer is not None):
            key = to_bytes(key, self._key_serializer, "key")
        if type(value) is not bytes or self._value_serializer is not None:
            value = to_bytes(value, self._value_serializer, "value")
        size = RECORD_OVERHEAD_BYTES
        if value is not None:
            size += len(value)
        if key is not None:
            size += len(key)
        pairs: HeaderPairs = ()
        if headers:
            pairs, header_bytes = to_headers(headers)
            size += header_bytes
        if timestamp is not None and (
            type(timestamp) is not int or not 0 <= timestamp <= _MAX_TIMESTAMP
        ):
            raise ValueError(f"Invalid timestamp {timestamp!r}: expected milliseconds since 1970")
        if size > self._max_record_bytes:
            raise RecordTooLargeError(
                f"The record has {size} bytes; at most {self._max_record_bytes} fit a request and"
                " the buffer (BatchConfig.request_bytes, buffer_bytes)"
            )
        return key, value, pairs, size

    def append(
        self,
        queues: TopicQueues,
        future: AnyFuture,
        key: bytes | None,
        value: bytes | None,
        headers: HeaderPairs,
        size: int,
        partition: int | None,
        timestamp: int | None,
    ) -> Coroutine[Any, Any, None] | None:
        """Append a serialized record, whose metadata `future` will have.

        Returns None when that is done, which it mostly is without the cost of a coroutine, or a
        coroutine to await.
        """
        is_known = True
        if partition is None:
            partition = queues.partition_of(key, value)
        else:
            is_known = queues.has_partition(partition)
        if self._is_closed or self._sender.failure is not None:
            self.check_open()
        if timestamp is None:
            timestamp = time.time_ns() // 1_000_000
        if not is_known or not self._pool.try_allocate(size):
            return self._append_later(
                queues, future, key, value, headers, size, partition, timestamp
            )
        batch = queues.batch_for(partition, size)
        batch.add_awaited(future, timestamp, key, value, headers, size)
        return None

    async def _append_later(
        self,
        queues: TopicQueues,
        future: AnyFuture,
        key: bytes | None,
        value: bytes | None,
        headers: HeaderPairs,
        size: int,
        partition: int | None,
        timestamp: int,
    ) -> None:
        """Append a record when its partition is known and there is memory for it."""
        if partition is not None and not queues.has_partition(partition):
            await queues.find_partition(partition)
            self.check_open()
        if not self._pool.try_allocate(size):
            await self._admit(size)
        batch = queues.batch_for(partition, size)
        batch.add_awaited(future, timestamp, key, value, headers, size)

    async def append_to_new(self, topic: str, *record: Any) -> None:
        """Append a record, without its queues, to a topic that no record was sent to yet."""
        queues = await self.queues_of(topic)
        if (waiting := self.append(queues, *record)) is not None:
            await waiting

    async def append_many(self, topic: str, records: Iterable[Any], bulk: BulkSend) -> None:
        """Append values and ProducerRecords, until one of them fails."""
        queues = await self.queues_of(topic)
        iterator = iter(records)
        while True:
            chunk: list[Any] = []
            try:
                chunk.extend(islice(iterator, _CHUNK_RECORDS))
            except Exception:
                await self._append_chunk(queues, chunk, bulk)
                raise
            await self._append_chunk(queues, chunk, bulk)
            if len(chunk) < _CHUNK_RECORDS or bulk.error is not None:
                break

    async def _append_chunk(self, queues: TopicQueues, records: list[Any], bulk: BulkSend) -> None:
        """Append some of the records of a call, until one of them fails."""
        plain = set(map(type, records))
        if plain == _VALUES and self._append_values(queues, records, bulk):
            return
        if plain == _RECORDS:
            records = records[self._append_keyed(queues, records, bulk) :]
        bulk_queues = bulk.queues
        pool = self._pool
        max_plain_bytes = self.max_plain_bytes
        has_partitioner = callable(self._partitioner)
        for record in records:
            timestamp = partition = key = None
            headers: HeaderPairs = ()
            if type(record) is bytes and len(record) <= max_plain_bytes:
                value: bytes | None = record
                size = RECORD_OVERHEAD_BYTES + len(record)
                if has_partitioner:
                    partition = queues.partition_of(None, record)
            elif isinstance(record, ProducerRecord):
                timestamp, partition = record.timestamp, record.partition
                key, value, headers, size = self.serialize(
                    record.key, record.value, record.headers, timestamp
                )
                if partition is None:
                    partition = queues.partition_of(key, value)
                elif not queues.has_partition(partition):
                    await queues.find_partition(partition)
                    self.check_open()
            else:
                key, value, headers, size = self.serialize(None, record, (), None)
                partition = queues.partition_of(key, value)
            if not pool.try_allocate(size):
                await self._admit(size)
            if bulk.error is not None:
                pool.release(size)
                break
            if timestamp is None:
                timestamp = time.time_ns() // 1_000_000
            batch = queues.batch_for(partition, size)
            run = batch.run
            if run is None or run.bulk is not bulk:
                run = batch.begin_run(bulk)
                bulk_queues.add(batch.queue)
            batch.add(timestamp, key, value, headers, size)
            run.count += 1
            bulk.pending += 1

    def _append_values(self, queues: TopicQueues, values: list[bytes], bulk: BulkSend) -> bool:
        """Append values without keys to one batch; return False if it does not take them all."""
        if callable(self._partitioner) or self._partitioner != STICKY or bulk.error is not None:
            return False
        sizes = list(map(len, values))
        size = sum(sizes) + RECORD_OVERHEAD_BYTES * len(values)
        if max(sizes) > self.max_plain_bytes or size > self._pool.available:
            return False
        batch = queues.batch_with_room(size)
        if batch is None:
            return False
        self._pool.take(size)
        self._run_of(batch, bulk).count += len(values)
        bulk.pending += len(values)
        batch.add_values(time.time_ns() // 1_000_000, values, size)
        return True

    def _append_keyed(
        self, queues: TopicQueues, records: list[ProducerRecord], bulk: BulkSend
    ) -> int:
        """Append records with nothing but key and value, of bytes, up to the first other one.

        Returns how many, which may be none.
        """
        if callable(self._partitioner) or self._key_serializer or bulk.error is not None:
            return 0
        max_bytes = self.max_plain_bytes
        hash_key, count, batch_for = key_hash(), queues.partition_count, queues.batch_for
        now_ms, available, done = time.time_ns() // 1_000_000, self._pool.available, 0
        left = available
        for value, key, headers, partition, timestamp in records:
            if type(value) is not bytes or type(key) is not bytes or headers:
                break
            size = len(value) + len(key)
            if size > max_bytes or partition is not None or timestamp is not None:
                break
            size += RECORD_OVERHEAD_BYTES
            if size > left:
                break
            left -= size
            batch = batch_for((hash_key(key) & HASH_MASK) % count, size)
            run = batch.run
            if run is None or run.bulk is not bulk:
                run = self._run_of(batch, bulk)
            run.count += 1
            batch.add(now_ms, key, value, (), size)
            done += 1
        bulk.pending += done
        self._pool.take(available - left)
        return done

    @staticmethod
    def _run_of(batch: Batch, bulk: BulkSend) -> BulkRun:
        """Return the run of a batch that records of a call are added to."""
        run = batch.run
        if run is None or run.bulk is not bulk:
            run = batch.begin_run(bulk)
            bulk.queues.add(batch.queue)
        return run

    async def append_arrow(self, topic: str, rows: pa.RecordBatch, bulk: BulkSend) -> None:
        """Append rows, encoded in C where that is possible, until one of them fails."""
        from ..arrow.encoder import Rows  # noqa: PLC0415  # pyarrow is optional

        queues = await self.queues_of(topic)
        columns, encoded = Rows(rows), None
        if self._partitioner == STICKY and not (self._key_serializer or self._value_serializer):
            encoded = columns.encode(
                queues.partition_count,
                now_ms=time.time_ns() // 1_000_000,
                max_bytes=self._batch_bytes - HEADER_BYTES,
                max_record_bytes=self._max_record_bytes,
            )
        if encoded is None:
            await self.append_many(topic, map(_new_record, columns.records()), bulk)
            return
        for records in encoded:
            size = len(records.payload)
            if not self._pool.try_allocate(size):
                await self._admit(size)
            if bulk.error is not None:
                self._pool.release(size)
                break
            queues.closed_batch(records.partition).fill(records, bulk)
            bulk.pending += records.record_count

    async def finish(self, bulk: BulkSend) -> list[OffsetRange]:
        """Wait for the result of all records that were appended. Raises the first error."""
        self.expedite(bulk)
        await bulk.wait()
        if bulk.error is not None:
            raise bulk.error
        return bulk.ranges()

    def expedite(self, bulk: BulkSend) -> None:
        """Send the records of a call without lingering: no more will be added."""
        self._sender.expedite_all(bulk.queues)

    async def _admit(self, size: int) -> None:
        """Allocate memory for a record: after a turn of the event loop, or when there is some.

        The slow half of admission. Callers try `BufferPool.try_allocate` first, which needs no
        coroutine.
        """
        pool = self._pool
        if pool.is_turn_over:
            pool.begin_turn()
            await asyncio.sleep(0)
            self.check_open()
            if pool.try_allocate(size):
                return
        pool.begin_turn()
        # Batches that linger hold the memory that is waited for.
        self._sender.expedite_all(chain.from_iterable(self._sender.queues.values()))
        await pool.allocate(size, self._buffer_timeout)
        try:
            self.check_open()
        except ClientError:
            pool.release(size)
            raise
