"""The bytes of large requests that a broker receives at once (`queued.max.request.bytes`).

A request that is larger than one read reserves room for all of itself before more of it is read. If
there is none, its connection is not read from until earlier requests were handled, first come first
served. So a request that was let in can always be completed, and one that waits costs only the
kernel's socket buffer. Small requests never wait: heartbeats and fetches of some clients go on
while large requests of others fill the budget.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class Budget:
    """Bytes that all connections share. `limit` may change at any time."""

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self.used_bytes = 0
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def __repr__(self) -> str:
        return f"<Budget {self.used_bytes} of {self._limit()}, {len(self._waiting)} waiting>"

    def reserve(self, size_bytes: int, granted: Callable[[], None]) -> bool:
        """Reserve bytes and return True; otherwise call `granted` once they are reserved."""
        if not self._waiting and self._fits(size_bytes):
            self.used_bytes += size_bytes
            return True
        self._waiting.append((size_bytes, granted))
        return False

    def release(self, size_bytes: int) -> None:
        """Release reserved bytes, and grant those that wait for them."""
        self.used_bytes -= size_bytes
        while self._waiting and self._fits(self._waiting[0][0]):
            size_bytes, granted = self._waiting.popleft()
            self.used_bytes += size_bytes
            granted()

    def withdraw(self, granted: Callable[[], None]) -> None:
        """Remove a reservation that still waits."""
        self._waiting = deque(entry for entry in self._waiting if entry[1] != granted)
        self.release(0)

    def _fits(self, size_bytes: int) -> bool:
        # A request larger than the whole budget is let in alone, or it would wait forever.
        return self.used_bytes == 0 or self.used_bytes + size_bytes <= self._limit()
