"""Deadlines by key: one heap for all of them, and a clock that is somebody else's.

A deadline that is moved further away, as each heartbeat does, costs no work on the heap: its old
entry is found out of date when its time comes, and put back. When most entries are out of date, as
after many short visits, the heap is made anew.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

#: So many entries may be out of date before it is worth a look.
_SLACK = 64


class Deadlines(Generic[K]):
    """Times, in milliseconds on any clock that does not go back, at which keys are due."""

    def __init__(self) -> None:
        self._due: dict[K, int] = {}
        self._heap: list[tuple[int, int, K]] = []
        # Of each key, the earliest entry in the heap: there may be later ones, which are stale.
        self._queued: dict[K, int] = {}
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: K) -> bool:
        return key in self._due

    def set(self, key: K, when_ms: int) -> None:
        """Let a key be due then, and not when it was before."""
        self._due[key] = when_ms
        queued = self._queued.get(key)
        if queued is None or when_ms < queued:
            self._queue(key, when_ms)

    def postpone(self, key: K, when_ms: int) -> None:
        """Let a key be due then, if it is not due later anyway."""
        if when_ms > self._due.get(key, when_ms - 1):
            self.set(key, when_ms)

    def cancel(self, key: K) -> None:
        """Let a key not be due."""
        self._due.pop(key, None)

    def next(self) -> int | None:
        """Give a time before which nothing is due; None if nothing ever is."""
        while self._heap and self._heap[0][2] not in self._due:
            self._pop()
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: int) -> Iterator[K]:
        """Give the keys that are due, the earliest first; they are so no more.

        Each is looked for when it is asked for: one that is cancelled, or moved away, because of
        another one that was due is not given.
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
