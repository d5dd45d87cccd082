"""How late the event loop is: what every request waits for before it is even looked at."""

from __future__ import annotations

import asyncio
import time

from .metrics import Histogram

_INTERVAL_SECONDS = 0.1


class LoopDelayProbe:
    """Asks to be called ten times a second, and observes by how much later that happens."""

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._loop = asyncio.get_running_loop()
        #: When the event loop last called it, as `time.monotonic`.
        self.called_at = time.monotonic()
        self._ask()

    def _ask(self) -> None:
        self._due = self._loop.time() + _INTERVAL_SECONDS
        self._timer = self._loop.call_at(self._due, self._called)

    def _called(self) -> None:
        # uvloop's timers are in whole milliseconds.
        self._histogram.observe(max(self._loop.time() - self._due, 0.0))
        self.called_at = time.monotonic()
        self._ask()

    def stop(self) -> None:
        """Ask no more."""
        self._timer.cancel()
