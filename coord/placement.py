"""Which broker owns which partition: in turns, from a place that differs from topic to topic."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache


def assign_replicas(count: int, brokers: Sequence[int], start: int) -> tuple[tuple[int, ...], ...]:
    """Give the replicas, of which there is one, of `count` partitions.

    `start` is any number: where the first one goes. The number of partitions that there are already
    keeps the turns going over topics.
    """
    return tuple((brokers[(start + index) % len(brokers)],) for index in range(count))


@lru_cache(maxsize=10_000)
def partition_of_group(group_id: str, count: int) -> int:
    """Give the partition of `__consumer_offsets` that a group is kept in: the same as in Kafka."""
    number = 0
    units = group_id.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        number = (31 * number + (high << 8) + low) & 0xFFFFFFFF
    # As Java's absolute value of the hash of the string, which is signed.
    signed = number - (1 << 32) if number >> 31 else number
    return 0 if signed == -(1 << 31) else abs(signed) % count
