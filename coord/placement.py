"""Which broker owns which partition: in turns, from a place that differs from topic to topic."""

from __future__ import annotations

from collections.abc import Sequence


def place(count: int, brokers: Sequence[int], start: int) -> tuple[tuple[int, ...], ...]:
    """Give the replicas, of which there is one, of `count` partitions.

    `start` is any number: where the first one goes. The number of partitions that there are already
    keeps the turns going over topics.
    """
    return tuple((brokers[(start + index) % len(brokers)],) for index in range(count))
