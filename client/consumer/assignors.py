"""Who reads what: the partitions of a group's topics, shared out among its members.

The leader of a group asks one of these for everybody's share. They are pure: what members said and
how many partitions topics have goes in, a share for each member comes out. `range` and `roundrobin`
give the same as Java's, librdkafka's and kafka-python's assignors of that name, whoever leads.

`cooperative-sticky` leaves partitions where they are as far as a fair share allows, and takes two
rounds to move one (KIP-429). In the first nobody is given what another member still has: that one
sees that it is to let go of it, does, and joins again. In the second it is free, and given away.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Protocol

from ..types import TopicPartition

#: The partitions of each member, by its id.
Shares = dict[str, list[TopicPartition]]


@dataclass(frozen=True, slots=True)
class Member:
    """What a member of the group said when it joined."""

    id: str
    topics: Collection[str]
    instance_id: str | None = None
    #: What it has, and the generation in which it was given it; -1 if it did not say.
    owned: Collection[TopicPartition] = ()
    generation_id: int = -1

    @property
    def rank(self) -> tuple[bool, str]:
        """Where it stands in the order of members: static ones first, by a name that stays."""
        return (self.instance_id is None, self.instance_id or self.id)


class Assignor(Protocol):
    """A way to share out partitions."""

    #: By which members find what they have in common.
    name: str
    #: Whether members may keep what they have while the group rebalances.
    is_cooperative: bool

    def assign(self, members: Sequence[Member], partitions: Mapping[str, int]) -> Shares:
        """Share out the partitions of topics; `partitions` is how many each topic has."""


class RangeAssignor:
    """Topic by topic, a run of neighbours for each: equal numbers of two topics stay together."""

    name = "range"
    is_cooperative = False

    def assign(self, members: Sequence[Member], partitions: Mapping[str, int]) -> Shares:
        """Share out; those in front get one more where it does not come out even."""
        shares: Shares = {member.id: [] for member in members}
        for topic, readers in _readers(members, partitions).items():
            size, longer = divmod(partitions[topic], len(readers))
            start = 0
            for place, member in enumerate(readers):
                end = start + size + (place < longer)
                shares[member.id] += [TopicPartition(topic, n) for n in range(start, end)]
                start = end
        return shares


class RoundRobinAssignor:
    """All partitions of all topics dealt out in turn."""

    name = "roundrobin"
    is_cooperative = False

    def assign(self, members: Sequence[Member], partitions: Mapping[str, int]) -> Shares:
        """Share out; a member that does not want a topic is passed over."""
        shares: Shares = {member.id: [] for member in members}
        readers = _readers(members, partitions)
        turns = cycle(sorted(members, key=lambda member: member.rank))
        for topic in sorted(readers):
            for number in range(partitions[topic]):
                member = next(one for one in turns if topic in one.topics)
                shares[member.id].append(TopicPartition(topic, number))
        return shares


class CooperativeStickyAssignor:
    """Fair shares with as few moves as can be, each in two rounds."""

    name = "cooperative-sticky"
    is_cooperative = True

    def assign(self, members: Sequence[Member], partitions: Mapping[str, int]) -> Shares:
        """Share out, and hold back what somebody else must let go of first."""
        target = _Balance(members, partitions).shares()
        # Whoever says that it has a partition may be reading it, however old its claim is.
        holders: dict[TopicPartition, set[str]] = {}
        for member in members:
            for place in member.owned:
                holders.setdefault(place, set()).add(member.id)
        return {
            name: [place for place in share if name in holders.get(place, {name})]
            for name, share in target.items()
        }


ASSIGNORS: Mapping[str, Assignor] = {
    assignor.name: assignor
    for assignor in (RangeAssignor(), RoundRobinAssignor(), CooperativeStickyAssignor())
}


def _readers(members: Sequence[Member], partitions: Mapping[str, int]) -> dict[str, list[Member]]:
    """Give those who want each topic, in order; topics that do not exist are left out."""
    readers: dict[str, list[Member]] = {}
    for member in sorted(members, key=lambda member: member.rank):
        for topic in dict.fromkeys(member.topics):
            if partitions.get(topic, 0) > 0:
                readers.setdefault(topic, []).append(member)
    return readers


class _Balance:
    """A fair target: no member could take a partition from one that has two more than it.

    Everybody starts with what it has. What nobody has goes to those with least, and then partitions
    move, one by one, from those with most to those with least who want their topic. Every move
    makes shares more equal, so that it comes to an end, and none moves that need not.
    """

    def __init__(self, members: Sequence[Member], partitions: Mapping[str, int]) -> None:
        self._readers = {
            topic: [member.id for member in wanting]
            for topic, wanting in _readers(members, partitions).items()
        }
        self._had = _owners(members, self._readers, partitions)
        # By member and topic, because a move is of any partition of a topic.
        self._share: dict[str, dict[str, list[TopicPartition]]] = {
            member.id: {} for member in sorted(members, key=lambda member: member.rank)
        }
        self._load = dict.fromkeys(self._share, 0)
        for place, name in self._had.items():
            self._give(name, place)
        # Topics that few want come first: the others can make up for what those leave uneven.
        for topic in sorted(self._readers, key=lambda topic: (len(self._readers[topic]), topic)):
            for number in range(partitions[topic]):
                place = TopicPartition(topic, number)
                if place not in self._had:
                    self._give(self._least(topic), place)
        while self._move_one():
            pass

    def shares(self) -> Shares:
        return {
            name: sorted(place for places in topics.values() for place in places)
            for name, topics in self._share.items()
        }

    def _least(self, topic: str) -> str:
        return min(self._readers[topic], key=self._load.__getitem__)

    def _move_one(self) -> bool:
        """Move a partition from whoever has most and can give to somebody with less."""
        for name in sorted(self._load, key=self._load.__getitem__, reverse=True):
            for topic, places in self._share[name].items():
                taker = self._least(topic)
                if places and self._load[name] > self._load[taker] + 1:
                    # Rather one that is new to the giver.
                    place = min(places, key=lambda one: self._had.get(one) == name)
                    places.remove(place)
                    self._load[name] -= 1
                    self._give(taker, place)
                    return True
        return False

    def _give(self, name: str, place: TopicPartition) -> None:
        self._share[name].setdefault(place.topic, []).append(place)
        self._load[name] += 1


def _owners(
    members: Sequence[Member], readers: Mapping[str, list[str]], partitions: Mapping[str, int]
) -> dict[TopicPartition, str]:
    """Give who has each partition: the member that got it in the latest generation.

    Where two got it in the same one neither is believed.
    """
    claims: dict[TopicPartition, list[Member]] = {}
    for member in members:
        for place in member.owned:
            wanting = readers.get(place.topic, ())
            if member.id in wanting and 0 <= place.partition < partitions[place.topic]:
                claims.setdefault(place, []).append(member)
    owners: dict[TopicPartition, str] = {}
    for place, claimants in sorted(claims.items()):
        latest = max(member.generation_id for member in claimants)
        last = [member for member in claimants if member.generation_id == latest]
        if len(last) == 1:
            owners[place] = last[0].id
    return owners
