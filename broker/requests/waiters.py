"""Long polls: a fetch that waits until enough was appended, or until it has waited long enough.

A waiter is registered with each partition that it waits for, and is told of every append. It fires
once, in a later turn of the event loop than the append that was enough: so what comes with that
append, in other partitions of the same request or in requests read together, is in the answer too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..partitions.partition import Partition


class Waiter:
    """Waits for `missing_bytes` in any of the partitions, for at most `seconds`."""

    __slots__ = ("_fire", "_loop", "_missing_bytes", "_partitions", "_scheduled", "_timer")

    def __init__(
        self,
        partitions: Sequence[Partition],
        missing_bytes: int,
        seconds: float,
        fire: Callable[[], None],
    ) -> None:
        self._partitions = partitions
        self._missing_bytes = missing_bytes
        self._fire = fire
        self._scheduled = False
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(seconds, self.wake)
        for partition in partitions:
            partition.waiters.add(self)

    def appended(self, size_bytes: int) -> None:
        """Count what came."""
        self._missing_bytes -= size_bytes
        if self._missing_bytes <= 0:
            self.wake()

    def wake(self) -> None:
        """Fire soon, whatever came."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._fire_once)

    def cancel(self) -> None:
        """Wait no more, and do not fire."""
        self._scheduled = True
        self._fire = _nothing
        self._leave()

    def _fire_once(self) -> None:
        self._leave()
        self._fire()

    def _leave(self) -> None:
        self._timer.cancel()
        for partition in self._partitions:
            partition.waiters.discard(self)


def _nothing() -> None:
    pass
