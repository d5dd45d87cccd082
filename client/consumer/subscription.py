"""What a consumer has subscribed to, and what that is right now. Pure: metadata come in.

A topic that cannot be asked about for the moment is taken to be as it was.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from ottla.protocol.errors import ErrorCode

from ..cluster import Metadata
from ..types import TopicPartition


class Subscription:
    """Topics by name, or by a pattern that their whole name must match."""

    def __init__(self, topics: frozenset[str], pattern: re.Pattern[str] | None) -> None:
        self._topics = topics
        self._pattern = pattern
        #: The topics to read. Those that were named are read as soon as they are there.
        self.found = topics
        self._counts: dict[str, int] = {}

    @classmethod
    def of(cls, topics: Iterable[str], pattern: str | re.Pattern[str] | None) -> Subscription:
        """Make one. Raises ValueError, and re.error for a pattern that is none."""
        names = frozenset(topics)
        if bool(names) == (pattern is not None):
            raise ValueError("topics or a pattern are needed, and not both")
        return cls(names, None if pattern is None else re.compile(pattern))

    def __repr__(self) -> str:
        return repr(self._pattern.pattern) if self._pattern else ", ".join(sorted(self._topics))

    @property
    def is_missing(self) -> bool:
        """Whether something that was asked for is not there yet."""
        return not self._counts or not self._counts.keys() >= self._topics

    @property
    def places(self) -> frozenset[TopicPartition]:
        """All partitions of the topics."""
        return frozenset(
            TopicPartition(topic, number)
            for topic, count in self._counts.items()
            for number in range(count)
        )

    def to_ask(self, others: Collection[str]) -> Collection[str] | None:
        """Give the topics to look up, with others that matter; None for all there are."""
        return None if self._pattern else sorted({*self._topics, *others})

    def look(self, metadata: Metadata) -> bool:
        """Find the topics; True if there are others than before."""
        before = self.found
        if self._pattern is not None:
            self.found = frozenset(
                name
                for name, info in metadata.topics.items()
                if not info.is_internal
                and self._pattern.fullmatch(name)
                and info.error is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
        self._counts = partition_counts(metadata, self.found, self._counts)
        return self.found != before


def partition_counts(
    metadata: Metadata, topics: Iterable[str], before: Mapping[str, int]
) -> dict[str, int]:
    """Give how many partitions topics have, or had when that was last known."""
    counts = {}
    for topic in topics:
        info = metadata.topics.get(topic)
        if info is not None and not info.error:
            counts[topic] = len(info.partitions)
        elif topic in before:
            counts[topic] = before[topic]
    return counts
