"""The blocking producer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from ..producer.bulk import BulkSend, OffsetRange
from ..producer.producer import Producer as AsyncProducer
from ..types import Headers, RecordMetadata
from .client import BlockingClient, blocking, signature_of
from .handoff import HandoffQueue

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

# Records that are taken from an iterator before they are sent.
_CHUNK_RECORDS = 5000


class _OrderedProducer(AsyncProducer):
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

    async def close(self) -> None:
        """Close."""
        try:
            await self.handoff.drained()
        except asyncio.CancelledError:
            await self._abort()
            raise
        await super().close()


class Producer(BlockingClient[_OrderedProducer]):
    """Like `ottla.client.Producer`, where the methods are documented.

    `enqueue` returns a `concurrent.futures.Future`, which also raises what goes wrong after the
    record has left the calling thread: an unknown topic, for example.
    """

    @signature_of(_OrderedProducer)
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    send = blocking(AsyncProducer.send)
    flush = blocking(AsyncProducer.flush)

    def enqueue(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Future[RecordMetadata]:
        """Queue a record, and return the future of its metadata."""
        return self._client.handoff.put(topic, value, key, headers, partition, timestamp)

    def send_many(self, topic: str, records: Iterable[Any]) -> list[OffsetRange]:
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
        except Exception:
            with suppress(Exception):
                self._run_in_order(finish)
            raise
        return self._run_in_order(finish)

    def _run_in_order(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Call and await after the records that were queued before."""

        async def run() -> T:
            await self._client.handoff.drained()
            return await call()

        return self._loop_thread.run(run())

    def _start(self, create: Callable[[], _OrderedProducer]) -> None:
        super()._start(create)
        accumulator = self._client.accumulator
        self._client.handoff = HandoffQueue(self._loop_thread, accumulator)


def _chunks(records: Iterable[Any]) -> Iterator[Sequence[Any]]:
    if isinstance(records, Sequence):
        yield records
        return
    iterator = iter(records)
    while chunk := list(islice(iterator, _CHUNK_RECORDS)):
        yield chunk
