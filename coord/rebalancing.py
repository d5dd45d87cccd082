"""Plans for reassignments: which replicas each partition should have, with few moves.

Replicas that may stay do. What is missing goes to the brokers with the fewest replicas, in racks
that the partition does not use yet; then replicas move from the fullest brokers to the emptiest
ones, and preferred leaders are spread.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

K = TypeVar("K", bound=Hashable)


class NotEnoughBrokersError(ValueError):
    """A partition would have more replicas than there are brokers."""

    def __init__(self, factor: int, brokers: Sequence[int]) -> None:
        ids = ", ".join(map(str, sorted(brokers))) or "none"
        super().__init__(f"{factor} replicas need as many brokers; available: {ids}")


def plan_assignment(
    current: Mapping[K, Sequence[int]],
    racks: Mapping[int, str | None],
    *,
    factor: int | None = None,
    balances: bool = True,
) -> dict[K, tuple[int, ...]]:
    """Return the replicas of each partition on the brokers of `racks`, the leader first.

    `racks` has the rack of each broker that may be used, None or empty if it has none. Without
    `factor` each partition keeps its own. With `balances`, replicas and preferred leaders are
    spread over the brokers; without, partitions on these brokers only stay as they are. Raises
    NotEnoughBrokersError.
    """
    plan = _Plan(racks)
    for key, replicas in current.items():
        size = len(replicas) if factor is None else factor
        if size > len(racks):
            raise NotEnoughBrokersError(size, list(racks))
        plan.keep(key, [one for one in replicas if one in racks][:size])
    for key, replicas in current.items():
        plan.fill(key, len(replicas) if factor is None else factor)
    if balances:
        plan.balance_replicas()
    for key, replicas in current.items():
        if replicas[0] not in racks:
            plan.choose_leader(key)
    if balances:
        plan.balance_leaders()
    return {key: tuple(plan.assigned[key]) for key in current}


class _Plan:
    """The replicas of each partition, and how many each broker has."""

    def __init__(self, racks: Mapping[int, str | None]) -> None:
        self.brokers = sorted(racks)
        self.rack_of: dict[int, Hashable] = {one: racks[one] or one for one in self.brokers}
        self.assigned: dict[Hashable, list[int]] = {}
        self.keys_of: dict[int, dict[Hashable, None]] = defaultdict(dict)
        self.led: Counter[int] = Counter()

    def keep(self, key: Hashable, replicas: list[int]) -> None:
        """Begin with the replicas that stay."""
        self.assigned[key] = replicas
        for one in replicas:
            self.keys_of[one][key] = None
        if replicas:
            self.led[replicas[0]] += 1

    def fill(self, key: Hashable, size: int) -> None:
        """Add replicas until there are enough."""
        replicas = self.assigned[key]
        while len(replicas) < size:
            used = Counter(self.rack_of[one] for one in replicas)
            best = min(
                (one for one in self.brokers if one not in replicas),
                key=lambda one: (used[self.rack_of[one]], len(self.keys_of[one]), one),
            )
            if not replicas:
                self.led[best] += 1
            replicas.append(best)
            self.keys_of[best][key] = None

    def balance_replicas(self) -> None:
        """Move replicas from the fullest to the emptiest brokers, as long as that helps."""
        while self._move_one():
            pass

    def _move_one(self) -> bool:
        by_load = sorted(self.brokers, key=lambda one: len(self.keys_of[one]))
        for full in reversed(by_load):
            for empty in by_load:
                if len(self.keys_of[full]) - len(self.keys_of[empty]) < 2:
                    break
                for key in self.keys_of[full]:
                    if self._may_replace(key, full, empty):
                        self._replace(key, full, empty)
                        return True
        return False

    def _may_replace(self, key: Hashable, old: int, new: int) -> bool:
        """Whether a partition without the broker uses as many racks with it."""
        replicas = self.assigned[key]
        if new in replicas:
            return False
        others = {self.rack_of[one] for one in replicas if one != old}
        return self.rack_of[new] not in others or self.rack_of[old] in others

    def _replace(self, key: Hashable, old: int, new: int) -> None:
        replicas = self.assigned[key]
        if replicas[0] == old:
            self.led[old] -= 1
            self.led[new] += 1
        replicas[replicas.index(old)] = new
        del self.keys_of[old][key]
        self.keys_of[new][key] = None

    def choose_leader(self, key: Hashable) -> None:
        """Make the replica that leads the fewest partitions the preferred leader."""
        replicas = self.assigned[key]
        self.led[replicas[0]] -= 1
        self._prefer(key, min(replicas, key=lambda one: self.led[one]))

    def balance_leaders(self) -> None:
        """Change the order of replicas where one broker is preferred more often than another."""
        is_changed = True
        while is_changed:
            is_changed = False
            for key, replicas in self.assigned.items():
                first = replicas[0]
                best = min(replicas, key=lambda one: self.led[one])
                if self.led[first] - self.led[best] > 1:
                    self.led[first] -= 1
                    self._prefer(key, best)
                    is_changed = True

    def _prefer(self, key: Hashable, leader: int) -> None:
        replicas = self.assigned[key]
        replicas.remove(leader)
        replicas.insert(0, leader)
        self.led[leader] += 1
