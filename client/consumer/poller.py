"""Waiting for records, on behalf of the application."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from ..types import ConsumerRecord
from .delivery import Delivery, ReadyRecords
from .fetched_data import BadRecordError
from .fetcher import Fetcher

if TYPE_CHECKING:
    import pyarrow as pa

    from ..arrow.stream import ArrowStream

T = TypeVar("T")

#: Called with a record as it was stored, and the error of the deserializer; may be a coroutine
#: function.
BadRecordHandler = Callable[[ConsumerRecord, Exception], Awaitable[None] | None]

# Records are delivered for this long before the event loop gets its turn.
_TURN_SECONDS = 0.002


class Poller:
    """Marks what was delivered as consumed, and waits for the next records."""

    def __init__(
        self,
        delivery: Delivery,
        fetcher: Fetcher,
        on_bad_record: BadRecordHandler | None,
        check_readable: Callable[[], None],
    ) -> None:
        self._delivery = delivery
        self._fetcher = fetcher
        self._on_bad_record = on_bad_record or _raise_bad_record
        #: Raises if the consumer cannot deliver records any more.
        self._check_readable = check_readable
        # The stream of Arrow tables that was read last.
        self._tables: ArrowStream | None = None
        self._turn_end = 0.0

    async def poll(self, max_records: int, timeout: float | None = None) -> ReadyRecords | None:
        """Return the next records, or None if there are none within `timeout`."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        self._switch_to(None)
        while True:
            ready = await self._wait_for(lambda: self._delivery.take(max_records), deadline)
            if ready is None or ready.error is None:
                return ready
            await self._handle_bad_record(ready, ready.error)

    async def poll_table(self, tables: ArrowStream) -> pa.RecordBatch:
        """Return the next records as an Arrow record batch."""
        self._switch_to(tables)
        return await self._wait_for(tables.take)

    def _switch_to(self, tables: ArrowStream | None) -> None:
        """Discard what another stream of tables has not delivered: it is fetched again."""
        if self._tables is not tables:
            if self._tables is not None:
                self._tables.discard()
                self._fetcher.wake()
            self._tables = tables

    async def _wait_for(
        self, take: Callable[[], T | None], deadline: float | None = None
    ) -> T | None:
        """Return what `take` returns once it is not None; None at the deadline."""
        loop = asyncio.get_running_loop()
        self._delivery.mark_consumed()
        if loop.time() > self._turn_end:
            await asyncio.sleep(0)
            self._turn_end = loop.time() + _TURN_SECONDS
        while True:
            self._check_readable()
            taken = take()
            if taken is not None:
                return taken
            try:
                async with asyncio.timeout_at(deadline):
                    await self._delivery.arrived.wait()
            except TimeoutError:
                return None
            self._turn_end = loop.time() + _TURN_SECONDS

    async def _handle_bad_record(self, ready: ReadyRecords, error: Exception) -> None:
        """Call the handler, and skip the record unless that was cancelled."""
        is_handled = True
        try:
            result = self._on_bad_record(ready.records[0], error)
            if isawaitable(result):
                await result
        except asyncio.CancelledError:
            is_handled = False
            raise
        finally:
            if is_handled:
                self._delivery.skip(ready)


def _raise_bad_record(record: ConsumerRecord, error: Exception) -> None:
    raise BadRecordError(record, error) from error


class Stream(Generic[T]):
    """An async iterator that, unlike a generator, can be used again after a cancellation."""

    def __init__(self, next_item: Callable[[], Awaitable[T]]) -> None:
        self._next_item = next_item

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        return await self._next_item()
