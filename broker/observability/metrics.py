"""What the broker counts: requests and their latency by api, connections, bytes.

Counting must cost next to nothing on the hot path: these are plain numbers. `exporter` makes a page
of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

#: Upper ends of the classes of a latency histogram, in seconds; the last class has none.
BUCKETS = (
    0.00005,
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)


class Histogram:
    """How many values fell into which class, how many there were, and their sum."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count a value."""
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.sum += seconds

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)


class Metrics:
    """All counters of one broker."""

    def __init__(self) -> None:
        #: By name of the api: from the last byte of the request to the response being handed over.
        self.latency: dict[str, Histogram] = {}
        #: By name of the api, and error code. Errors of a request as a whole, and bugs.
        self.failures: Counter[tuple[str, str]] = Counter()
        #: Connections by what became of them: accepted, refused, idle, stalled, malformed.
        self.connections: Counter[str] = Counter()
        self.bytes_received = 0
        self.bytes_sent = 0

    def histogram_of(self, api: str) -> Histogram:
        """Give the latency histogram of an api."""
        found = self.latency.get(api)
        if found is None:
            found = self.latency[api] = Histogram()
        return found
