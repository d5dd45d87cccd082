"""Records on their way from threads to the event loop, handed over many at a time.

A round trip to another thread takes as long as sending a hundred records. So a thread that appends
a record does not wait for the producer, unless many records are on the way.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from ..errors import BufferFullError, ClosedError
from ..producer.accumulator import RecordAccumulator
from ..types import Headers
from .loop_thread import LoopThread
from .record_future import RecordFuture

# Maximum size of records on the way, besides the producer's own buffer.
_MAX_BYTES = 1024 * 1024
# Between two handovers, unless a thread waits for its record: waking the loop for each record would
# keep both threads busy with that.
_INTERVAL_SECONDS = 0.001


# The topic, the future, and the other arguments of `RecordAccumulator.append`. (A tuple and no
# object: there may be many, and the garbage collector visits each.)
_Entry = tuple[str, RecordFuture, *tuple[Any, ...]]
# An event marks a position, and is set when the records before it were handed over.
_Entries = deque[_Entry | asyncio.Event]


class HandoffQueue:
    """Records that threads have sent and the producer does not have yet."""

    def __init__(self, loop_thread: LoopThread, accumulator: RecordAccumulator) -> None:
        self._loop_thread = loop_thread
        self._accumulator = accumulator
        # Of all futures.
        self._future_lock = threading.RLock()
        # Set when somebody waits for a record.
        self._is_awaited = asyncio.Event()
        # Guards the fields below. (Reentrant: a signal handler or finalizer may enqueue, too.)
        self._lock = threading.RLock()
        # Notified when there is room, or when it is closed.
        self._changed = threading.Condition(self._lock)
        self._entries: _Entries = deque()
        # Of the entries, and of those that were taken and are being appended.
        self._bytes = 0
        self._taken_bytes = 0
        self._is_draining = False
        self._is_closed = False
        loop_thread.on_stop(self._close)

    def put(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Headers,
        partition: int | None,
        timestamp: int | None,
    ) -> RecordFuture:
        """Queue a record, waiting while too many are on the way, and return its future."""
        self._loop_thread.check()
        key, value, pairs, size = self._accumulator.serialize(key, value, headers, timestamp)
        if timestamp is None:
            timestamp = time.time_ns() // 1_000_000
        future = RecordFuture(self._future_lock, self._expedite)
        with self._lock:
            while self._bytes >= _MAX_BYTES and not self._is_closed:
                self._changed.wait()
            if self._is_closed:
                raise ClosedError("The producer is closed")
            self._entries.append((topic, future, key, value, pairs, size, partition, timestamp))
            self._bytes += size
            if not self._is_draining:
                self._is_draining = True
                self._loop_thread.call_soon(self._start_draining)
        return future

    async def drained(self) -> None:
        """Wait, on the loop, until the producer has all records that were put before."""
        with self._changed:
            if not self._is_draining:
                return
            reached = asyncio.Event()
            self._entries.append(reached)
        self._is_awaited.set()
        await reached.wait()

    def _expedite(self) -> None:
        """Hand over without a pause, because the calling thread waits."""
        self._loop_thread.call_soon(self._is_awaited.set)

    def _start_draining(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        entries: _Entries = deque()
        try:
            while entries := self._take():
                while entries:
                    if (waiting := self._append_next(entries)) is not None:
                        await waiting
                with suppress(TimeoutError):
                    async with asyncio.timeout(_INTERVAL_SECONDS):
                        await self._is_awaited.wait()
                self._is_awaited.clear()
        finally:
            _fail(entries, ClosedError("The producer was closed before the record was sent"))

    def _take(self) -> _Entries:
        with self._changed:
            entries, self._entries = self._entries, deque()
            self._bytes -= self._taken_bytes
            self._taken_bytes = self._bytes
            self._is_draining = bool(entries)
            self._changed.notify_all()
            return entries

    def _append_next(self, entries: _Entries) -> Coroutine[Any, Any, None] | None:
        """Append the first of some records; return None, or a coroutine if that has to wait."""
        entry = entries[0]
        if isinstance(entry, asyncio.Event):
            entry.set()
            entries.popleft()
            return None
        topic, future, *record = entry
        queues = self._accumulator.topics.get(topic)
        if queues is None:
            return self._find_topic(topic, entries)
        try:
            waiting = self._accumulator.append(queues, future, *record)
        except Exception as error:  # noqa: BLE001  # raised by the future
            self._reject(entries, error)
            return None
        if waiting is None:
            entries.popleft()
            return None
        return self._append_later(waiting, entries)

    async def _find_topic(self, topic: str, entries: _Entries) -> None:
        try:
            await self._accumulator.queues_of(topic)
        except Exception as error:  # noqa: BLE001  # raised by the futures
            # All records of the topic fail: another lookup for each would delay all the others.
            self._accumulator.report_failure(error)
            _fail(_remove_topic(entries, topic), error)

    async def _append_later(self, waiting: Coroutine[Any, Any, None], entries: _Entries) -> None:
        try:
            await waiting
        except BufferFullError as error:
            # The other records have waited for as long.
            self._accumulator.report_failure(error)
            _fail(entries, error)
        except Exception as error:  # noqa: BLE001  # raised by the future
            self._reject(entries, error)
        else:
            entries.popleft()

    def _reject(self, entries: _Entries, error: Exception) -> None:
        """Fail the first of some records."""
        self._accumulator.report_failure(error)
        _fail(deque([entries.popleft()]), error)

    def _close(self) -> None:
        """Accept no more records: the loop has stopped."""
        with self._changed:
            self._is_closed = True
            _fail(self._entries, ClosedError("The producer is closed"))
            self._changed.notify_all()


def _remove_topic(entries: _Entries, topic: str) -> _Entries:
    """Remove the records of a topic, and return them."""
    removed: _Entries = deque()
    for _ in range(len(entries)):
        entry = entries.popleft()
        is_of_topic = not isinstance(entry, asyncio.Event) and entry[0] == topic
        (removed if is_of_topic else entries).append(entry)
    return removed


def _fail(entries: _Entries, error: Exception) -> None:
    while entries:
        entry = entries.popleft()
        if isinstance(entry, asyncio.Event):
            entry.set()
        else:
            entry[1].set_exception(error)
