"""The producer without `await`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ..producer import producer as there
from ..types import Headers, RecordMetadata
from .backlog import Backlog
from .portal import Blocking, Verb, like

if TYPE_CHECKING:
    import pyarrow as pa

P = ParamSpec("P")
T = TypeVar("T")

# What is taken from an iterator before it is sent.
_CHUNK_RECORDS = 5000


class _Behind(Verb[P, T]):
    """A verb that comes behind all that was queued before it."""

    async def there(self, client: Any, args: Any, kwargs: Any) -> T:
        """Wait for its turn, and await it."""
        await client._client.backlog.moved()
        return await super().there(client, args, kwargs)


class _Producer(there.Producer):
    """The one that sends."""

    backlog: Backlog

    async def close(self) -> None:
        """Take in what threads have queued, and close as any producer does."""
        try:
            await self.backlog.moved()
        except asyncio.CancelledError:
            await self._end()
            raise
        await super().close()


class Producer(Blocking[_Producer]):
    """As `ottla.client.Producer`, which says what the verbs do.

    `enqueue` gives a `concurrent.futures.Future`, which is also told of what is found out when the
    record has left this thread: that there is no such topic, for example.
    """

    @like(_Producer)
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    send = _Behind(there.Producer.send)
    flush = _Behind(there.Producer.flush)
    _queue_many = _Behind(there.Producer._queue_many)
    _queue_arrow = _Behind(there.Producer._queue_arrow)
    _finish = _Behind(there.Producer._finish)

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
        """Queue a record when there is room for it, and give what will be its receipt."""
        return self._client.backlog.add(topic, value, key, headers, partition, timestamp)

    def send_many(self, topic: str, records: Iterable[Any]) -> list[there.OffsetRange]:
        """Send many records; what an iterator gives is taken here, in the caller's thread."""
        return self._send_all(self._queue_many, topic, _chunks(records))

    def send_arrow(
        self, topic: str, rows: pa.RecordBatch | pa.Table | Iterable[pa.RecordBatch]
    ) -> list[there.OffsetRange]:
        """Send rows; what an iterator gives is taken here, in the caller's thread."""
        from ..arrow.encoder import batches_of  # noqa: PLC0415  # pyarrow need not be there

        return self._send_all(self._queue_arrow, topic, batches_of(rows))

    def _send_all(
        self,
        queue: Callable[[str, T, there.Many], None],
        topic: str,
        parts: Iterable[T],
    ) -> list[there.OffsetRange]:
        many = there.Many()
        try:
            for part in parts:
                if many.has_failed:
                    break
                queue(topic, part, many)
        except Exception:
            with suppress(Exception):
                self._finish(many)
            raise
        return self._finish(many)

    def _start(self, make: Callable[[], _Producer]) -> None:
        super()._start(make)
        self._client.backlog = Backlog(self._portal, self._client)


def _chunks(records: Iterable[Any]) -> Iterator[Sequence[Any]]:
    if isinstance(records, Sequence):
        yield records
        return
    iterator = iter(records)
    while chunk := list(islice(iterator, _CHUNK_RECORDS)):
        yield chunk
