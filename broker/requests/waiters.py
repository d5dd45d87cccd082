"""Long polls: a fetch waits until enough bytes were appended, or until its timeout.

A waiter is registered with every partition it waits for, or with a follower's fetch session, and is
notified of every append. It fires once, in a later iteration of the event loop than the append that
completed it: so the response also has what arrives with that append, in other partitions of the
same request or in requests that were read together.

A fetch that reads its partitions in slices registers its waiter with each slice, before others may
append to it, and begins to wait after the last one: what was appended in between counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

#: Where waiters are registered, in the order in which they came.
WaiterRegistry = dict["Waiter", None]


class Waiter:
    """Calls a function after enough bytes were appended, or after a timeout."""

    __slots__ = (
        "_appended_bytes",
        "_fire",
        "_is_scheduled",
        "_loop",
        "_missing_bytes",
        "_must_check",
        "_registries",
        "_timer",
        "is_committed",
        "was_forced",
    )

    def __init__(self, *, is_committed: bool = False) -> None:
        #: Whether it waits for records below the last stable offset: bytes of an open transaction
        #: do not count, and a marker wakes it.
        self.is_committed = is_committed
        #: Whether it fires because of its timeout, or because nothing is to be waited for any more.
        self.was_forced = False
        self._registries: list[WaiterRegistry] = []
        self._appended_bytes = 0
        # Set when it begins to wait.
        self._missing_bytes: int | None = None
        self._fire: Callable[[], None] = _do_nothing
        self._timer: asyncio.TimerHandle | None = None
        self._must_check = False
        self._is_scheduled = False
        self._loop = asyncio.get_running_loop()

    def register(self, registries: Iterable[WaiterRegistry]) -> None:
        """Count what is appended from now on."""
        for registry in registries:
            registry[self] = None
            self._registries.append(registry)

    def wait(self, missing_bytes: int, seconds: float, fire: Callable[[], None]) -> None:
        """Call `fire` when so many bytes were appended since it registered, or after `seconds`."""
        self._missing_bytes = missing_bytes
        self._fire = fire
        self._timer = self._loop.call_later(seconds, self.wake)
        if self._must_check or self._appended_bytes >= missing_bytes:
            self.check()

    def appended(self, size_bytes: int) -> None:
        """Count appended bytes; fire soon if they are enough."""
        self._appended_bytes += size_bytes
        if self._missing_bytes is not None and self._appended_bytes >= self._missing_bytes:
            self.check()

    def wake(self) -> None:
        """Fire soon, whatever was appended."""
        self.was_forced = True
        self.check()

    def check(self) -> None:
        """Fire soon, to find out whether enough records are visible."""
        self._must_check = True
        if self._missing_bytes is not None and not self._is_scheduled:
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
        if self._timer is not None:
            self._timer.cancel()
        for registry in self._registries:
            registry.pop(self, None)
        self._registries = []


def _do_nothing() -> None:
    pass
