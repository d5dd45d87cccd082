"""Long polls: a fetch waits until enough bytes were appended, or until its timeout.

A waiter is registered with every partition it waits for, and is notified of every append. It fires
once, in a later iteration of the event loop than the append that completed it: so the response also
has what arrives with that append, in other partitions of the same request or in requests that were
read together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..partitions.partition import Partition


class Waiter:
    """Calls `fire` after `missing_bytes` were appended to the partitions, or after `seconds`."""

    __slots__ = (
        "_fire",
        "_is_replica",
        "_is_scheduled",
        "_loop",
        "_missing_bytes",
        "_partitions",
        "_timer",
        "is_committed",
        "was_forced",
    )

    def __init__(
        self,
        partitions: Sequence[Partition],
        missing_bytes: int,
        seconds: float,
        fire: Callable[[], None],
        *,
        is_committed: bool = False,
        is_replica: bool = False,
    ) -> None:
        self._partitions = partitions
        self._missing_bytes = missing_bytes
        self._fire = fire
        #: Whether it waits for records below the last stable offset: bytes of an open transaction
        #: do not count, and a marker wakes it.
        self.is_committed = is_committed
        #: Whether it fires because of its timeout, or because nothing is to be waited for any more.
        self.was_forced = False
        # Whether it waits for appends, and not for the high watermark.
        self._is_replica = is_replica
        self._is_scheduled = False
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(seconds, self.wake)
        for partition in partitions:
            (partition.replica_waiters if is_replica else partition.waiters)[self] = None

    def appended(self, size_bytes: int) -> None:
        """Count appended bytes; fire soon if they are enough."""
        self._missing_bytes -= size_bytes
        if self._missing_bytes <= 0:
            self.check()

    def wake(self) -> None:
        """Fire soon, whatever was appended."""
        self.was_forced = True
        self.check()

    def check(self) -> None:
        """Fire soon, to find out whether enough records are visible."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._fire_once)

    def cancel(self) -> None:
        """Stop waiting without firing."""
        self._is_scheduled = True
        self._fire = _do_nothing
        self._unregister()

    def _fire_once(self) -> None:
        self._unregister()
        self._fire()

    def _unregister(self) -> None:
        self._timer.cancel()
        for partition in self._partitions:
            waiters = partition.replica_waiters if self._is_replica else partition.waiters
            waiters.pop(self, None)


def _do_nothing() -> None:
    pass
