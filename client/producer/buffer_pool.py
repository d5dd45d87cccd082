"""The memory that a producer's records may take until they are acknowledged."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

from ..errors import BufferFullError, ClosedError


class BufferPool:
    """Counts buffered bytes against a limit, and grants memory in FIFO order.

    It also limits what is appended in one turn of the event loop: a task that appends without ever
    waiting for memory would keep the sender from running.
    """

    __slots__ = ("_max_turn_bytes", "_turn_bytes_left", "_waiters", "free", "limit")

    def __init__(self, limit: int, max_turn_bytes: int) -> None:
        self.limit = limit
        self.free = limit
        self._max_turn_bytes = max_turn_bytes
        self._turn_bytes_left = max_turn_bytes
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def is_turn_over(self) -> bool:
        """Whether the event loop has to run before more is appended."""
        return self._turn_bytes_left < 0

    def begin_turn(self) -> None:
        """Record that the caller is about to let the event loop run."""
        self._turn_bytes_left = self._max_turn_bytes

    def try_allocate(self, size: int) -> bool:
        """Allocate `size` bytes if that needs no waiting, for memory or for the event loop."""
        if size > self.free or self._waiters or self._turn_bytes_left < 0:
            return False
        self.free -= size
        self._turn_bytes_left -= size
        return True

    @property
    def available(self) -> int:
        """How many bytes need no waiting, for memory or for the event loop; see `take`."""
        return 0 if self._waiters else min(self.free, self._turn_bytes_left)

    def take(self, size: int) -> None:
        """Allocate bytes that are available."""
        self.free -= size
        self._turn_bytes_left -= size

    async def allocate(self, size: int, timeout: float) -> None:
        """Wait for `size` bytes. Raises BufferFullError. Allocates nothing if cancelled."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = (size, future)
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(timeout):
                await future
        except BaseException as error:
            if future.done() and not future.cancelled() and future.exception() is None:
                self.release(size)  # granted at the same moment
            else:
                with suppress(ValueError):
                    self._waiters.remove(waiter)
                self.release(0)  # the waiters behind this one may need less
            if isinstance(error, TimeoutError):
                reason = (
                    f"No room for {size} bytes within {timeout:g} s: {self.limit - self.free} of"
                    f" {self.limit} buffered bytes await acknowledgement (BatchConfig.buffer_bytes)"
                )
                raise BufferFullError(reason) from None
            raise
        self._turn_bytes_left -= size

    def release(self, size: int) -> None:
        """Return memory, and grant it to those who wait."""
        self.free += size
        while self._waiters and self._waiters[0][0] <= self.free:
            needed, future = self._waiters.popleft()
            if not future.done():
                self.free -= needed
                future.set_result(None)

    def close(self) -> None:
        """Fail all who wait for memory."""
        while self._waiters:
            _size, future = self._waiters.popleft()
            if not future.done():
                future.set_exception(ClosedError("The producer is closed"))
