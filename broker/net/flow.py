"""How much a broker takes in at once: bytes that are received and not yet handled.

A request that is larger than what is read at once reserves room for all of itself before more of it
is read; where there is none, its connection is not read from until others have been handled, in
the order in which they came. So requests that were let in can always be completed, and those that
wait cost what the kernel keeps for them. Small requests never wait: heartbeats and fetches of some
go on while large requests of others fill the budget.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ottla.protocol.schema import Message


class Budget:
    """Bytes that all connections share. `limit` may change at any time."""

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self.used_bytes = 0
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def __repr__(self) -> str:
        return f"<Budget {self.used_bytes} of {self._limit()}, {len(self._waiting)} waiting>"

    def reserve(self, size_bytes: int, granted: Callable[[], None]) -> bool:
        """Take room; if there is none, have `granted` called when it has been taken."""
        if not self._waiting and self._fits(size_bytes):
            self.used_bytes += size_bytes
            return True
        self._waiting.append((size_bytes, granted))
        return False

    def release(self, size_bytes: int) -> None:
        """Give room back, and let in who waits for it."""
        self.used_bytes -= size_bytes
        while self._waiting and self._fits(self._waiting[0][0]):
            size_bytes, granted = self._waiting.popleft()
            self.used_bytes += size_bytes
            granted()

    def withdraw(self, granted: Callable[[], None]) -> None:
        """Forget one who waits."""
        self._waiting = deque(entry for entry in self._waiting if entry[1] != granted)
        self.release(0)

    def _fits(self, size_bytes: int) -> bool:
        # One that is larger than all there is may pass when it is alone.
        return self.used_bytes == 0 or self.used_bytes + size_bytes <= self._limit()


def count_elements(message: Message) -> int:
    """Count what a message has in its arrays, and in the arrays of those."""
    count = 0
    for name in message.fields:
        value = getattr(message, name)
        if isinstance(value, list):
            count += len(value)
            if value and isinstance(value[0], Message):
                count += sum(map(count_elements, value))
    return count
