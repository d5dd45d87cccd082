"""Records on their way to the loop: taken one by one by threads, and handed over many at a time.

To go to another thread and back takes as long as to send a hundred records. So whoever queues a
record does not wait until the producer has it, unless many are on the way already.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from concurrent.futures import Future
from typing import Any

from ..errors import BufferFullError, ClosedError
from ..producer.producer import Producer
from ..types import Headers, RecordMetadata
from .portal import Portal

# What may be on the way, beside what the producer itself lets wait.
_MOST_BYTES = 1024 * 1024
# Before more is fetched: to be woken for each record would keep both threads busy with that alone.
_PAUSE_SECONDS = 0.001


# A topic, the future, and the record as `Producer._queue` takes it. (One tuple and no object: there
# may be many, and the garbage collector looks at each.)
_Queued = tuple[str, Future[RecordMetadata], *tuple[Any, ...]]
# An event is set when its turn has come.
_Line = deque[_Queued | asyncio.Event]


class Backlog:
    """What threads have queued, and the producer does not have yet."""

    def __init__(self, portal: Portal, producer: Producer) -> None:
        self._portal = portal
        self._producer = producer
        # Guards what follows; who waits for room waits for it.
        self._changed = threading.Condition()
        self._line: _Line = deque()
        # What is in it, with what was taken out of it and is being moved.
        self._bytes = 0
        self._bytes_taken = 0
        self._is_moving = False
        self._is_closed = False
        portal.at_end(self._close)

    def add(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Headers,
        partition: int | None,
        timestamp: int | None,
    ) -> Future[RecordMetadata]:
        """Take a record when there is room for it. Raises what is wrong with it."""
        self._portal.check()
        key, value, pairs, size = self._producer._prepare(key, value, headers, timestamp)
        if timestamp is None:
            timestamp = time.time_ns() // 1_000_000
        future: Future[RecordMetadata] = Future()
        future.set_running_or_notify_cancel()  # what is queued cannot be taken back
        with self._changed:
            while self._bytes >= _MOST_BYTES and not self._is_closed:
                self._changed.wait()
            if self._is_closed:
                raise ClosedError("the producer has been closed")
            self._line.append((topic, future, key, value, pairs, size, partition, timestamp))
            self._bytes += size
            if not self._is_moving:
                self._is_moving = True
                self._portal.call(self._begin)
        return future

    async def moved(self) -> None:
        """Wait, on the loop, until the producer has all that was queued before."""
        with self._changed:
            if not self._is_moving:
                return
            turn = asyncio.Event()
            self._line.append(turn)
        await turn.wait()

    def _begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._move())

    async def _move(self) -> None:
        line: _Line = deque()
        try:
            while line := self._take():
                while line:
                    await self._move_one(line)
                await asyncio.sleep(_PAUSE_SECONDS)
        finally:
            _give_up(line, ClosedError("the producer was closed before this was sent"))

    def _take(self) -> _Line:
        with self._changed:
            line, self._line = self._line, deque()
            self._bytes -= self._bytes_taken
            self._bytes_taken = self._bytes
            self._is_moving = bool(line)
            self._changed.notify_all()
            return line

    async def _move_one(self, line: _Line) -> None:
        first = line[0]
        if isinstance(first, asyncio.Event):
            first.set()
            line.popleft()
            return
        producer = self._producer
        topic, future, *record = first
        try:
            known = producer._topics.get(topic) or await producer._learn(topic)
        except Exception as error:  # noqa: BLE001  # whoever has a future is told
            # To look again for each would keep everybody waiting, once for each.
            _give_up(_taken_out(line, topic), error)
            return
        try:
            await producer._queue(known, future, *record)
        except BufferFullError as error:
            # The others have waited for as long.
            _give_up(line, error)
            return
        except Exception as error:  # noqa: BLE001  # whoever has the future is told
            future.set_exception(error)
        line.popleft()

    def _close(self) -> None:
        """Take nothing more: there is no loop that it could go to."""
        with self._changed:
            self._is_closed = True
            _give_up(self._line, ClosedError("the producer has been closed"))
            self._changed.notify_all()


def _taken_out(line: _Line, topic: str) -> _Line:
    """Take the records of a topic out of a line, and give them."""
    whole = tuple(line)
    line.clear()
    taken: _Line = deque()
    for one in whole:
        is_meant = not isinstance(one, asyncio.Event) and one[0] == topic
        (taken if is_meant else line).append(one)
    return taken


def _give_up(line: _Line, error: Exception) -> None:
    while line:
        first = line.popleft()
        if isinstance(first, asyncio.Event):
            first.set()
        else:
            first[1].set_exception(error)
