"""The memory that clients make a broker keep: groups, sessions, parked fetches, producer states.

All of them share one limit (`broker.memory.max.bytes`), beside the limits of each kind. Sizes are
estimates of the Python objects. What does not fit is not kept: a Fetch is answered at once instead
of being parked, a session is declined, and a JoinGroup or OffsetCommit gets
COORDINATOR_NOT_AVAILABLE, which clients retry. The last quarter is reserved for groups with
members: neither offsets that are committed for ever new group ids, nor fetches, keep consumers from
joining a group. Committed offsets are never evicted before they expire: their consumer would start
over.

Producer states use what the others leave free, and at least a quarter. Beyond that, the least
recently active producers are evicted when there is no room, for a new producer or for anything
else.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.protocol.api.fetch import FetchRequest
from ottla.storage.producer_memory import ProducerMemory

#: Estimated memory of a decoded partition, in a Fetch or a session, and of a topic.
PARTITION_BYTES = 256
_TOPIC_BYTES = 512
_RESERVE_FRACTION = 4
_PRODUCERS_FRACTION = 4
#: Producers are evicted in portions of the limit, because finding the oldest looks at every log.
_EVICTION_FRACTION = 128


class MemoryAccount:
    """Adds up the memory of its sources. `limit` may change at any time."""

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self.parked_bytes = 0
        #: Functions that return the memory of each kind; they are cheap.
        self.sources: dict[str, Callable[[], int]] = {"parked_fetches": lambda: self.parked_bytes}

        self._producers = ProducerMemory()

    def count_producers(self, producers: ProducerMemory) -> None:
        """Count the producer states of a data directory, and evict them when there is no room."""
        self._producers = producers
        self.sources["producers"] = lambda: producers.size_bytes
        producers.on_growth = lambda: self.fits(0)

    def __repr__(self) -> str:
        return f"<MemoryAccount {self.used_bytes} of {self._limit()}>"

    @property
    def used_bytes(self) -> int:
        """The memory of all sources."""
        return sum(source() for source in self.sources.values())

    def fits(self, size_bytes: int, *, is_member: bool = False) -> bool:
        """Whether there is room for so many more bytes; members of groups may use the reserve."""
        limit = self._limit()
        if not is_member:
            limit -= limit // _RESERVE_FRACTION
        surplus = self.used_bytes + size_bytes - limit
        if surplus > 0:
            surplus -= self._evict_producers(surplus)
        return surplus <= 0

    def _evict_producers(self, size_bytes: int) -> int:
        """Evict producers above their share; return how many bytes that freed."""
        limit = self._limit()
        evictable = self._producers.size_bytes - limit // _PRODUCERS_FRACTION
        if evictable <= 0:
            return 0
        portion = max(size_bytes, limit // _EVICTION_FRACTION)
        return self._producers.evict(min(evictable, portion))


def fetch_request_bytes(request: FetchRequest) -> int:
    """Estimate the memory of a decoded Fetch."""
    return sum(
        _TOPIC_BYTES + 4 * len(topic.topic) + PARTITION_BYTES * len(topic.partitions)
        for topic in request.topics
    ) + sum(
        _TOPIC_BYTES + 4 * len(forgotten.topic) + 36 * len(forgotten.partitions)
        for forgotten in request.forgotten_topics_data
    )
