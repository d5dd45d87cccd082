"""Numbers over time: what charts and rates are made of.

They are kept in memory only, and only of what somebody looked at in the last minutes: the console
asks brokers for nothing in the background.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque

#: What a chart shows.
WINDOW_MS = 5 * 60 * 1000
_POINTS = 300
_SERIES = 2000
# A rate is the growth within so long; samples that are closer than the least are not worth keeping.
_RATE_MS = 15_000
_LEAST_MS = 500

Point = tuple[int, float]


class Samples:
    """Series of samples by name; the one that was used least recently is dropped first."""

    def __init__(self) -> None:
        self._series: OrderedDict[str, deque[Point]] = OrderedDict()

    def add(self, name: str, value: float) -> None:
        """Add what was just read."""
        now = _now_ms()
        points = self._series.setdefault(name, deque(maxlen=_POINTS))
        self._series.move_to_end(name)
        if not points or now - points[-1][0] >= _LEAST_MS:
            points.append((now, value))
        if len(self._series) > _SERIES:
            self._series.popitem(last=False)

    def since(self, name: str, after_ms: int) -> list[Point]:
        """Return the samples after a time, within the window of a chart."""
        after_ms = max(after_ms, _now_ms() - WINDOW_MS)
        return [point for point in self._series.get(name, ()) if point[0] > after_ms]

    def rate(self, name: str) -> float | None:
        """Return the growth per second; None if there are not yet two samples."""
        points = self.since(name, _now_ms() - _RATE_MS)
        if len(points) < 2:
            return None
        (first_ms, first), (last_ms, last) = points[0], points[-1]
        return max(0.0, (last - first) * 1000 / (last_ms - first_ms))


def _now_ms() -> int:
    return int(time.time() * 1000)
