"""Replication throttles: how fast replicas that are not in sync are copied.

As in Kafka, only replicas of a topic's lists of throttled replicas count, and only while they are
behind: a throttle never delays acks=all. It applies at the leader and at the follower, each with
its own rate.
"""

from __future__ import annotations

from collections.abc import Callable

#: What may be sent at once after a pause: bytes of so many seconds.
_BURST_SECONDS = 1.0
#: The longest pause: the rate may be changed meanwhile.
_MAX_PAUSE_SECONDS = 1.0


class ReplicationThrottle:
    """Counts bytes against a rate in bytes per second, which may change at any time."""

    def __init__(self, rate: Callable[[], int]) -> None:
        self._rate = rate
        # Bytes that the rate does not cover yet, as of a time.
        self._debt_bytes = 0.0
        self._as_of = 0.0

    def record(self, size_bytes: int, now: float) -> None:
        """Count bytes that were sent or received."""
        self._debt_bytes = self._debt_at(now) + size_bytes
        self._as_of = now

    def seconds_until_free(self, now: float) -> float:
        """Return how long to wait before the next bytes; 0 if the rate is not exceeded."""
        rate = self._rate()
        if not rate:
            return _MAX_PAUSE_SECONDS
        return min(max(self._debt_at(now) / rate - _BURST_SECONDS, 0.0), _MAX_PAUSE_SECONDS)

    def _debt_at(self, now: float) -> float:
        return max(self._debt_bytes - (now - self._as_of) * self._rate(), 0.0)
