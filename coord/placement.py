"""Placement: the replicas of new partitions, and the partition of a group or transactional id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from itertools import zip_longest


def assign_replicas(
    count: int,
    brokers: Sequence[int],
    start: int,
    factor: int = 1,
    racks: Mapping[int, str] | None = None,
    down: Sequence[int] = (),
) -> tuple[tuple[int, ...], ...]:
    """Return the replicas of `count` new partitions, on distinct brokers, the leader first.

    Leaders are assigned round-robin. `start` is any number, which selects the first broker. With
    the number of existing partitions, round-robin continues from topic to topic. The distance of
    the followers from their leader changes with each round: the partitions of a broker that fails
    get leaders on all others.

    Replicas are spread over as many racks as there are. A broker without a rack is one by itself.

    If there are fewer brokers than `factor`, brokers that are `down` are the last replicas.
    """
    if factor > len(brokers):
        led = assign_replicas(count, brokers, start, len(brokers), racks)
        missing = factor - len(brokers)
        return tuple(
            (*some, *(down[(index + number) % len(down)] for number in range(missing)))
            for index, some in enumerate(led, start=start)
        )
    if factor == 1:
        return tuple((brokers[(start + index) % len(brokers)],) for index in range(count))
    rack_of = {one: (racks or {}).get(one) or one for one in brokers}
    if len(set(rack_of.values())) < len(brokers):
        brokers = _alternating(brokers, rack_of)
    size = len(brokers)
    assigned = []
    for index in range(start, start + count):
        others = [
            brokers[(index + (index // size + number) % (size - 1) + 1) % size]
            for number in range(size - 1)
        ]
        assigned.append(spread([brokers[index % size]], others, factor, rack_of))
    return tuple(assigned)


def spread(
    replicas: Sequence[int],
    candidates: Sequence[int],
    factor: int,
    rack_of: Mapping[int, Hashable],
) -> tuple[int, ...]:
    """Return `factor` replicas: those there are, and the first candidates of the emptiest racks."""
    chosen, left = list(replicas), list(candidates)
    used = Counter(rack_of[one] for one in chosen)
    while len(chosen) < factor:
        best = min(left, key=lambda one: used[rack_of[one]])
        left.remove(best)
        chosen.append(best)
        used[rack_of[best]] += 1
    return tuple(chosen)


def _alternating(brokers: Sequence[int], rack_of: Mapping[int, Hashable]) -> list[int]:
    """Return the brokers in an order in which the racks take turns."""
    by_rack: dict[Hashable, list[int]] = {}
    for one in brokers:
        by_rack.setdefault(rack_of[one], []).append(one)
    rounds = zip_longest(*by_rack.values())
    return [one for some in rounds for one in some if one is not None]


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
