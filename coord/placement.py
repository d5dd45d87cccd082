"""Placement: the replicas of new partitions, and the partition of a group or transactional id."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache


def assign_replicas(
    count: int, brokers: Sequence[int], start: int, factor: int = 1
) -> tuple[tuple[int, ...], ...]:
    """Return the replicas of `count` new partitions, on distinct brokers, the leader first.

    Leaders are assigned round-robin. `start` is any number, which selects the first broker. With
    the number of existing partitions, round-robin continues from topic to topic. The distance of
    the followers from their leader changes with each round: the partitions of a broker that fails
    get leaders on all others.
    """
    if factor == 1:
        return tuple((brokers[(start + index) % len(brokers)],) for index in range(count))
    size = len(brokers)
    assigned = []
    for index in range(start, start + count):
        distances = ((index // size + follower) % (size - 1) + 1 for follower in range(factor - 1))
        assigned.append(
            (brokers[index % size], *(brokers[(index + distance) % size] for distance in distances))
        )
    return tuple(assigned)


@lru_cache(maxsize=10_000)
def coordinator_partition(key: str, count: int) -> int:
    """Return the partition of a coordinator's topic that holds a group or transactional id.

    It is the same as in Kafka.
    """
    code_units = key.encode("utf-16-be", "surrogatepass")
    hash_code = 0  # Java's String.hashCode().
    for high, low in zip(code_units[::2], code_units[1::2], strict=True):
        hash_code = (31 * hash_code + (high << 8) + low) & 0xFFFFFFFF
    signed = hash_code - (1 << 32) if hash_code >> 31 else hash_code
    # As Kafka's Utils.abs: the smallest int has no absolute value.
    return 0 if signed == -(1 << 31) else abs(signed) % count
