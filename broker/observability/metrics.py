"""The broker's counters: request latency by API, errors, connections, bytes.

They are plain numbers, because counting must cost next to nothing on the hot path. `prometheus`
exports them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict

#: Upper bounds of the latency buckets, in seconds; the last bucket is unbounded.
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
    """Counts of observations by bucket, and their sum."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one observation."""
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.sum += seconds

    @property
    def count(self) -> int:
        """The number of observations."""
        return sum(self.counts)


class Metrics:
    """The counters of one broker."""

    def __init__(self) -> None:
        #: By API name: the time from the last byte of a request to its response.
        self.latency: dict[str, Histogram] = {}
        #: Produced batches that were not appended, by error code.
        self.rejected_batches: Counter[str] = Counter()
        #: Requests that failed as a whole, by API name and error code.
        self.failures: Counter[tuple[str, str]] = Counter()
        #: Connections by outcome: accepted, refused, idle, stalled, malformed, throttled,
        #: unauthenticated, handshake_failed.
        self.connections: Counter[str] = Counter()
        #: Changes of the ISR by this leader: shrunk, expanded, emptied (the ELR).
        self.isr_changes: Counter[str] = Counter()
        #: Leaders that this controller has elected: clean, preferred, unclean, reassignment, or
        #: none (no replica is eligible).
        self.elections: Counter[str] = Counter()
        #: Fetches of this broker's replicas from their leaders.
        self.replica_fetch_seconds = Histogram()
        #: Responses that throttle their clients, and for how long in all, by quota.
        self.throttled_requests: Counter[str] = Counter()
        self.throttled_seconds: defaultdict[str, float] = defaultdict(float)
        self.bytes_received = 0
        self.bytes_sent = 0

    def histogram_of(self, api: str) -> Histogram:
        """Return the latency histogram of an API."""
        return self.latency.setdefault(api, Histogram())
