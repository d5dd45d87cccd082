"""Partitions by topic id: a topic that is deleted and created again is another topic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol
from uuid import UUID


class TopicIdPartition(NamedTuple):
    """A partition of a topic, which is given by its id."""

    topic_id: UUID
    partition: int


Partitions = frozenset[TopicIdPartition]
NO_PARTITIONS: Partitions = frozenset()


class TopicPartitions(Protocol):
    """A message with partitions of one topic."""

    @property
    def topic_id(self) -> UUID:
        """The topic."""

    @property
    def partitions(self) -> Sequence[int]:
        """The indexes of its partitions."""


def partitions_of(topics: Iterable[TopicPartitions]) -> Partitions:
    """Return the partitions that messages list by topic."""
    return frozenset(
        TopicIdPartition(topic.topic_id, index) for topic in topics for index in topic.partitions
    )


def by_topic(partitions: Iterable[TopicIdPartition]) -> dict[UUID, list[int]]:
    """Return the sorted indexes of partitions by topic id."""
    indexes: defaultdict[UUID, list[int]] = defaultdict(list)
    for topic_id, index in in_order(partitions):
        indexes[topic_id].append(index)
    return indexes


def in_order(partitions: Iterable[TopicIdPartition]) -> list[TopicIdPartition]:
    """Return partitions sorted by topic id and index."""
    return sorted(partitions, key=_sort_key)


def _sort_key(partition: TopicIdPartition) -> tuple[int, int]:
    return partition.topic_id.int, partition.partition  # UUIDs compare in Python.
