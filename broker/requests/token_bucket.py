"""A limit on events per second that allows bursts of one second."""

from __future__ import annotations

import time
from collections.abc import Callable


class TokenBucket:
    """Grants at most `rate` tokens per second. `rate` may change at any time."""

    def __init__(
        self, rate: Callable[[], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate = rate
        self._clock = clock
        self._tokens = float("inf")
        self._updated = clock()

    def take(self, count: int) -> int:
        """Take up to `count` tokens; return how many there were."""
        rate, now = self._rate(), self._clock()
        self._tokens = min(self._tokens + (now - self._updated) * rate, rate)
        self._updated = now
        taken = min(count, int(self._tokens))
        self._tokens -= taken
        return taken
