"""The broker's counters: request latency by API, errors, connections, records, bytes.

They are plain numbers, because counting must cost next to nothing on the hot path. `collector`
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
#: Those of sizes, in bytes: 256 to 16 MiB.
SIZE_BUCKETS = tuple(float(4**power) for power in range(4, 13))


class Histogram:
    """Counts of observations by bucket, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...] = BUCKETS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """The number of observations."""
        return sum(self.counts)


class TopicTraffic:
    """What clients and followers have written to and read from the partitions of a topic here."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "messages_in",
        "replication_bytes_in",
        "replication_bytes_out",
    )

    def __init__(self) -> None:
        self.messages_in = 0
        self.bytes_in = 0
        #: To consumers. The records are not counted: they are sent as they are stored.
        self.bytes_out = 0
        #: Of the replicas that follow here, and to the followers of those that lead.
        self.replication_bytes_in = 0
        self.replication_bytes_out = 0


class Metrics:
    """The counters of one broker."""

    def __init__(self) -> None:
        #: By API name: the time from the last byte of a request to its response.
        self.latency: dict[str, Histogram] = {}
        #: Produced batches that were not appended, by error code.
        self.rejected_batches: Counter[str] = Counter()
        self.produced_batch_bytes = Histogram(SIZE_BUCKETS)
        #: Of responses with records.
        self.fetched_bytes = Histogram(SIZE_BUCKETS)
        #: Fsyncs that requests and replicas waited for.
        self.flush_seconds = Histogram()
        self.event_loop_delay_seconds = Histogram()
        #: Opening the logs at the start, with their recovery.
        self.log_loading_seconds = 0.0
        #: Requests that failed as a whole, by API name and error code.
        self.failures: Counter[tuple[str, str]] = Counter()
        #: Connections by outcome: accepted, refused, idle, stalled, malformed, throttled,
        #: unauthenticated, handshake_failed.
        self.connections: Counter[str] = Counter()
        #: Changes of the ISR by this leader: shrunk, expanded, emptied (the ELR).
        self.isr_changes: Counter[str] = _counter("shrunk", "expanded", "emptied")
        #: Leaders that this controller has elected: clean, preferred, unclean, reassignment, or
        #: none (no replica is eligible).
        self.elections: Counter[str] = _counter(
            "clean", "preferred", "unclean", "reassignment", "none"
        )
        #: Fetches of this broker's replicas, by leader.
        self.replica_fetch_seconds: defaultdict[int, Histogram] = defaultdict(Histogram)
        #: Responses that throttle their clients, and for how long in all, by quota.
        self.throttled_requests: Counter[str] = Counter()
        self.throttled_seconds: defaultdict[str, float] = defaultdict(float)
        self.bytes_received = 0
        self.bytes_sent = 0

    def histogram_of(self, api: str) -> Histogram:
        """Return the latency histogram of an API."""
        return self.latency.setdefault(api, Histogram())


def _counter(*outcomes: str) -> Counter[str]:
    """Return a counter with zeros: Prometheus sees an increase only of what it has seen before."""
    return Counter(dict.fromkeys(outcomes, 0))
