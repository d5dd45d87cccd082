"""Placement: the replicas of new partitions, and the partition of a group."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache


def assign_replicas(count: int, brokers: Sequence[int], start: int) -> tuple[tuple[int, ...], ...]:
    """Return the replicas of `count` new partitions: one each, round-robin.

    `start` is any number, which selects the first broker. With the number of existing partitions,
    round-robin continues from topic to topic.
    """
    return tuple((brokers[(start + index) % len(brokers)],) for index in range(count))


@lru_cache(maxsize=10_000)
def partition_of_group(group_id: str, count: int) -> int:
    """Return the partition of `__consumer_offsets` that holds a group, as in Kafka."""
    code_units = group_id.encode("utf-16-be", "surrogatepass")
    hash_code = 0  # Java's String.hashCode().
    for high, low in zip(code_units[::2], code_units[1::2], strict=True):
        hash_code = (31 * hash_code + (high << 8) + low) & 0xFFFFFFFF
    signed = hash_code - (1 << 32) if hash_code >> 31 else hash_code
    # As Kafka's Utils.abs: the smallest int has no absolute value.
    return 0 if signed == -(1 << 31) else abs(signed) % count
