"""Deadlines by key, in one heap. The caller supplies the clock.

Moving a deadline further away, as each heartbeat does, does not touch the heap: the stale entry is
recognized when its time comes, and queued again. When most entries are stale, as after many
short-lived members, the heap is rebuilt.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)

#: Stale entries that are tolerated before the heap is rebuilt.
_SLACK = 64


class Now(NamedTuple):
    """The time of an event: monotonic, for deadlines, and of the day, for records."""

    tick_ms: int
    time_ms: int


class Deadlines(Generic[K]):
    """The times at which keys are due, in milliseconds of any monotonic clock."""

    def __init__(self) -> None:
        self._due: dict[K, int] = {}
        self._heap: list[tuple[int, int, K]] = []
        # The earliest heap entry of each key. Later entries of the key are stale.
        self._queued: dict[K, int] = {}
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: K) -> bool:
        return key in self._due

    def set(self, key: K, when_ms: int) -> None:
        """Set or move the deadline of a key."""
        self._due[key] = when_ms
        queued = self._queued.get(key)
        if queued is None or when_ms < queued:
            self._queue(key, when_ms)

    def postpone(self, key: K, when_ms: int) -> None:
        """Set the deadline of a key, unless it has a later one."""
        if when_ms > self._due.get(key, when_ms - 1):
            self.set(key, when_ms)

    def cancel(self, key: K) -> None:
        """Remove the deadline of a key."""
        self._due.pop(key, None)

    def next(self) -> int | None:
        """Return a time before which nothing is due, or None if there are no deadlines."""
        while self._heap and self._heap[0][2] not in self._due:
            self._pop()
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: int) -> Iterator[K]:
        """Remove and yield the keys that are due, earliest first.

        The caller may cancel or move deadlines between two keys: each key is looked up when the
        iterator reaches it.
        """
        while self._heap and self._heap[0][0] <= now_ms:
            queued_ms, key = self._pop()
            when_ms = self._due.get(key)
            if when_ms == queued_ms:
                del self._due[key]
                yield key
            elif when_ms is not None and key not in self._queued:
                self._queue(key, when_ms)

    def _queue(self, key: K, when_ms: int) -> None:
        self._queued[key] = when_ms
        heappush(self._heap, (when_ms, next(self._numbers), key))
        if len(self._heap) > 2 * len(self._due) + _SLACK:
            self._queued = dict(self._due)
            self._heap = [(when, next(self._numbers), k) for k, when in self._due.items()]
            heapify(self._heap)

    def _pop(self) -> tuple[int, K]:
        when_ms, _number, key = heappop(self._heap)
        if self._queued.get(key) == when_ms:
            del self._queued[key]
        return when_ms, key
