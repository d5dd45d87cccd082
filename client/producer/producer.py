"""The producer.

    async with Producer("localhost:9092") as producer:
        metadata = await producer.send("orders", b"…", key=b"user-1")

        future = await producer.enqueue("orders", b"…")    # pipelined: a future of the metadata
        await producer.send_many("orders", [b"…", b"…"])   # in bulk: no future per record
        await producer.send_arrow("orders", table)         # from Arrow: no object per record
        await producer.flush()

All of them wait while the buffer is full. No record is dropped silently: its future, or the call in
bulk, returns metadata or raises the error. Records that one task sends to one partition are written
in the order in which it sent them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from ottla.protocol.compression import Compression

from ..cluster import Cluster
from ..config import ClientConfig
from ..types import Headers, RecordMetadata, Serializer
from .accumulator import HeaderPairs, ProducerRecord, RecordAccumulator
from .batch import RECORD_OVERHEAD_BYTES, BatchConfig
from .bulk import BulkSend, OffsetRange
from .partitioner import ROUND_ROBIN, STICKY, Partitioner
from .sender import Sender

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BatchConfig", "OffsetRange", "Producer", "ProducerRecord"]

_ACKS: dict[str | int, int] = {"all": -1, -1: -1, 1: 1, 0: 0}


class Producer:
    """Sends records to topics.

    `acks` says who acknowledges a record: "all" in-sync replicas, 1 (the leader) or 0 (nobody:
    metadata has no offset, and losses go unnoticed). With `idempotent`, a retry is never written
    twice; it requires acks="all", and is then the default.

    `partitioner` is "sticky", "round-robin" or a function; see `partitioner.py`. `client` has the
    timeouts: a record that is not acknowledged within `timeouts.operation` fails with
    DeadlineError.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        acks: Literal["all", -1, 0, 1] = "all",
        compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none",
        idempotent: bool | None = None,
        partitioner: Literal["sticky", "round-robin"] | Partitioner = "sticky",
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        batch: BatchConfig | None = None,
        client: ClientConfig | None = None,
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
        self._cluster = Cluster(bootstrap, client)
        self._sender = Sender(
            self._cluster,
            batch or BatchConfig(),
            acks=_ACKS[acks],
            compression=Compression[compression.upper()],
            is_idempotent=acks in ("all", -1) if idempotent is None else idempotent,
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

        Like that of the consumer, but optional: otherwise the first record that is sent connects.
        """
        try:
            await self._cluster.retry(lambda: self._cluster.refresh([]), what="connecting")
        except BaseException:
            await self._abort()
            raise

    async def __aenter__(self) -> Self:
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
        value: Any = None,
        *,
        key: Any = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> RecordMetadata:
        """Send a record, and return its metadata when it is acknowledged.

        If this is cancelled, the record may or may not be written; other records are not affected.
        """
        return await (
            await self.enqueue(
                topic, value, key=key, headers=headers, partition=partition, timestamp=timestamp
            )
        )

    async def enqueue(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Append a record to its batch, and return the future of its metadata.

        If this is cancelled, the record is not sent. If the future is cancelled, it may or may not
        be written. asyncio logs a failure that nobody retrieves.
        """
        accumulator = self.accumulator
        pairs: HeaderPairs = ()
        if (
            type(value) is bytes
            and len(value) <= accumulator.max_plain_bytes
            and key is timestamp is None
            and not headers
        ):
            size = RECORD_OVERHEAD_BYTES + len(value)
        else:
            key, value, pairs, size = accumulator.serialize(key, value, headers, timestamp)
        queues = accumulator.topics.get(topic) or await accumulator.queues_of(topic)
        future: asyncio.Future[RecordMetadata] = asyncio.Future(loop=queues.loop)
        await accumulator.append(queues, future, key, value, pairs, size, partition, timestamp)
        return future

    async def send_many(self, topic: str, records: Iterable[Any]) -> list[OffsetRange]:
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

    async def close(self) -> None:
        """Flush, and close all connections. No more records are accepted.

        If this is cancelled, records that are not acknowledged fail with ClosedError.
        """
        self.accumulator.close()
        try:
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
                await bulk.wait()
            raise
        return await self.accumulator.finish(bulk)
