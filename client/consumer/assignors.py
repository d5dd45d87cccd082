"""Assignors: how the partitions of a group's topics are assigned to its members.

The group leader runs one of these for all members. They are pure: subscriptions and partition
counts in, an assignment for each member out. `range` and `roundrobin` give the same result as the
assignors of that name in Java, librdkafka and kafka-python, whichever client leads.

`cooperative-sticky` moves as few partitions as a balanced assignment allows, and takes two
rebalances to move one (KIP-429). In the first, no member is assigned a partition that another
member still owns: the owner sees that it is missing from its assignment, revokes it, and rejoins.
In the second rebalance it is free, and assigned to its new member.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Protocol

from ..types import TopicPartition

#: The partitions of each member, by member id.
Assignments = dict[str, list[TopicPartition]]


@dataclass(frozen=True, slots=True)
class Member:
    """A member of the group, as it joined."""

    id: str
    topics: Collection[str]
    instance_id: str | None = None
    #: The partitions that it owns, and the generation that assigned them; -1 if not known.
    owned: Collection[TopicPartition] = ()
    generation_id: int = -1

    @property
    def rank(self) -> tuple[bool, str]:
        """The sort key of members: static ones first, by instance id, which does not change."""
        return (self.instance_id is None, self.instance_id or self.id)


class Assignor(Protocol):
    """An assignment strategy."""

    #: The protocol name, by which members agree on a strategy.
    name: str
    #: Whether members may keep their partitions during a rebalance.
    is_cooperative: bool

    def assign(self, members: Sequence[Member], partitions: Mapping[str, int]) -> Assignments:
        """Assign partitions to members; `partitions` is the partition count of each topic."""


class RangeAssignor:
    """Topic by topic, consecutive partitions for each member: co-partitioned topics match."""

    name = "range"
    is_cooperative = False

    def assign(self, members: Sequence[Member], partitions: Mapping[str, int]) -> Assignments:
        """Assign ranges; if they cannot be equal, the first members get one partition more."""
        assignments: Assignments = {member.id: [] for member in members}
        for topic, subscribers in sorted(_subscribers(members, partitions).items()):
            size, longer = divmod(partitions[topic], len(subscribers))
            start = 0
            for rank, member in enumerate(subscribers):
                end = start + size + (rank < longer)
                assignments[member.id] += [TopicPartition(topic, n) for n in range(start, end)]
                start = end
        return assignments


class RoundRobinAssignor:
    """All partitions of all topics, to the members in turn."""

    name = "roundrobin"
    is_cooperative = False

    def assign(self, members: Sequence[Member], partitions: Mapping[str, int]) -> Assignments:
        """Assign in turn; members that are not subscribed to a topic are skipped."""
        assignments: Assignments = {member.id: [] for member in members}
        subscribers = _subscribers(members, partitions)
        turns = cycle(sorted(members, key=lambda member: member.rank))
        for topic in sorted(subscribers):
            for index in range(partitions[topic]):
                member = next(member for member in turns if topic in member.topics)
                assignments[member.id].append(TopicPartition(topic, index))
        return assignments


class CooperativeStickyAssignor:
    """A balanced assignment with as few moves as possible, each in two rebalances."""

    name = "cooperative-sticky"
    is_cooperative = True

    def assign(self, members: Sequence[Member], partitions: Mapping[str, int]) -> Assignments:
        """Assign partitions, except those that another member has to revoke first."""
        target = _BalancedAssignment(members, partitions).assignments()
        # A member that claims a partition may be reading it, however old its generation.
        owners: dict[TopicPartition, set[str]] = {}
        for member in members:
            for tp in member.owned:
                owners.setdefault(tp, set()).add(member.id)
        return {
            member_id: [tp for tp in assigned if member_id in owners.get(tp, {member_id})]
            for member_id, assigned in target.items()
        }


ASSIGNORS: Mapping[str, Assignor] = {
    assignor.name: assignor
    for assignor in (RangeAssignor(), RoundRobinAssignor(), CooperativeStickyAssignor())
}


def _subscribers(
    members: Sequence[Member], partitions: Mapping[str, int]
) -> dict[str, list[Member]]:
    """Return the members subscribed to each topic, by rank; unknown topics are left out."""
    subscribers: dict[str, list[Member]] = {}
    for member in sorted(members, key=lambda member: member.rank):
        for topic in dict.fromkeys(member.topics):
            if partitions.get(topic, 0) > 0:
                subscribers.setdefault(topic, []).append(member)
    return subscribers


class _BalancedAssignment:
    """A balanced target: no member could take a partition from one that has two more than it.

    Every member starts with what it owns. Unowned partitions go to the least loaded members, and
    then partitions move, one by one, from the most loaded to the least loaded subscribers of their
    topic. Every move makes the loads more equal, so that the loop ends, and no partition moves
    that need not.
    """

    def __init__(self, members: Sequence[Member], partitions: Mapping[str, int]) -> None:
        self._subscribers = {
            topic: [member.id for member in subscribed]
            for topic, subscribed in _subscribers(members, partitions).items()
        }
        self._owners = _owners(members, self._subscribers, partitions)
        # By member and topic, because a move is of any partition of a topic.
        self._assigned: dict[str, dict[str, list[TopicPartition]]] = {
            member.id: {} for member in sorted(members, key=lambda member: member.rank)
        }
        self._load = dict.fromkeys(self._assigned, 0)
        for tp, member_id in self._owners.items():
            self._assign(member_id, tp)
        # Topics with few subscribers first: the others can even out what those leave uneven.
        for topic in sorted(
            self._subscribers, key=lambda topic: (len(self._subscribers[topic]), topic)
        ):
            for index in range(partitions[topic]):
                tp = TopicPartition(topic, index)
                if tp not in self._owners:
                    self._assign(self._least_loaded(topic), tp)
        while self._move_one():
            pass

    def assignments(self) -> Assignments:
        return {
            member_id: sorted(tp for tps in by_topic.values() for tp in tps)
            for member_id, by_topic in self._assigned.items()
        }

    def _least_loaded(self, topic: str) -> str:
        return min(self._subscribers[topic], key=self._load.__getitem__)

    def _move_one(self) -> bool:
        """Move one partition from the most loaded member that can give one; False if none can."""
        for giver in sorted(self._load, key=self._load.__getitem__, reverse=True):
            for topic, tps in self._assigned[giver].items():
                taker = self._least_loaded(topic)
                if tps and self._load[giver] > self._load[taker] + 1:
                    # Preferably one that the giver does not own yet.
                    tp = min(tps, key=lambda tp: self._owners.get(tp) == giver)
                    tps.remove(tp)
                    self._load[giver] -= 1
                    self._assign(taker, tp)
                    return True
        return False

    def _assign(self, member_id: str, tp: TopicPartition) -> None:
        self._assigned[member_id].setdefault(tp.topic, []).append(tp)
        self._load[member_id] += 1


def _owners(
    members: Sequence[Member], subscribers: Mapping[str, list[str]], partitions: Mapping[str, int]
) -> dict[TopicPartition, str]:
    """Return the owner of each partition: the member that was assigned it in the last generation.

    If two members claim it for the same generation, neither counts.
    """
    claims: dict[TopicPartition, list[Member]] = {}
    for member in members:
        for tp in member.owned:
            subscribed = subscribers.get(tp.topic, ())
            if member.id in subscribed and 0 <= tp.partition < partitions[tp.topic]:
                claims.setdefault(tp, []).append(member)
    owners: dict[TopicPartition, str] = {}
    for tp, claimants in sorted(claims.items()):
        latest = max(member.generation_id for member in claimants)
        last = [member for member in claimants if member.generation_id == latest]
        if len(last) == 1:
            owners[tp] = last[0].id
    return owners
