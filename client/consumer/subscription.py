"""The subscription of a consumer, resolved against metadata. No I/O.

A topic whose metadata cannot be fetched for the moment keeps its last known partitions.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from ottla.protocol.errors import ErrorCode

from ..cluster import Metadata
from ..types import TopicPartition


class Subscription:
    """Topics by name, or by a pattern that must match the whole name."""

    def __init__(self, names: frozenset[str], pattern: re.Pattern[str] | None) -> None:
        self._names = names
        self._pattern = pattern
        #: The topics to read: the named ones, existing or not, or those that match the pattern.
        self.topics = names
        self._partition_counts: dict[str, int] = {}
        #: The pattern, if a coordinator can resolve it; "" if not.
        self.regex = ""
        if pattern is not None and pattern.flags == re.UNICODE:
            self.regex = pattern.pattern

    @classmethod
    def of(cls, topics: Iterable[str], pattern: str | re.Pattern[str] | None) -> Subscription:
        """Return a subscription. Raises ValueError, or re.error for an invalid pattern."""
        names = frozenset(topics)
        if bool(names) == (pattern is not None):
            raise ValueError("Subscribe to topics or to a pattern: one of them, not both")
        return cls(names, None if pattern is None else re.compile(pattern))

    def __repr__(self) -> str:
        return repr(self._pattern.pattern) if self._pattern else ", ".join(sorted(self._names))

    def give_up_regex(self) -> bool:
        """Resolve the pattern here from now on; False if it is already."""
        regex, self.regex = self.regex, ""
        return bool(regex)

    @property
    def is_missing(self) -> bool:
        """Whether a named topic, or any topic that matches the pattern, does not exist yet."""
        return not self._partition_counts or not self._partition_counts.keys() >= self._names

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """All partitions of the topics."""
        return frozenset(
            TopicPartition(topic, index)
            for topic, count in self._partition_counts.items()
            for index in range(count)
        )

    def topics_to_fetch(self, others: Collection[str]) -> Collection[str] | None:
        """Return the topics, and `others`, to request metadata of; None for all topics."""
        return None if self._pattern else sorted({*self._names, *others})

    def update(self, metadata: Metadata) -> bool:
        """Resolve the subscription; return whether its topics have changed."""
        before = self.topics
        if self._pattern is not None:
            self.topics = frozenset(
                name
                for name, info in metadata.topics.items()
                if not info.is_internal
                and self._pattern.fullmatch(name)
                and info.error is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
        self._partition_counts = partition_counts(metadata, self.topics, self._partition_counts)
        return self.topics != before


def partition_counts(
    metadata: Metadata, topics: Iterable[str], last_known: Mapping[str, int]
) -> dict[str, int]:
    """Return the number of partitions of each topic, or the last known one."""
    counts = {}
    for topic in topics:
        info = metadata.topics.get(topic)
        if info is not None and not info.error:
            counts[topic] = len(info.partitions)
        elif topic in last_known:
            counts[topic] = last_known[topic]
    return counts
