"""The assignors of the broker: pure functions from subscriptions to a target assignment.

`uniform` balances the number of partitions, and otherwise moves as few as it can. `range` gives
each member a contiguous range of each topic: topics with equal partition counts are divided
equally. Both are deterministic: members are ordered by id.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import NamedTuple
from uuid import UUID

from .partitions import NO_PARTITIONS, Partitions, TopicIdPartition, in_order

#: Passes over the members in which `uniform` balances members of different subscriptions.
_MAX_ROUNDS = 16


class MemberSubscription(NamedTuple):
    """What an assignor knows of a member."""

    topics: frozenset[UUID]
    #: Its previous target.
    owned: Partitions = NO_PARTITIONS
    instance_id: str | None = None


Subscriptions = Mapping[str, MemberSubscription]
#: Partition counts by topic id.
PartitionCounts = Mapping[UUID, int]
Assignor = Callable[[Subscriptions, PartitionCounts], dict[str, Partitions]]


def assign_uniform(members: Subscriptions, counts: PartitionCounts) -> dict[str, Partitions]:
    """Give all members the same number of partitions, as far as their subscriptions allow."""
    if not members:
        return {}
    if len({member.topics for member in members.values()}) == 1:
        return _assign_equal(members, counts)
    return _assign_different(members, counts)


def assign_range(members: Subscriptions, counts: PartitionCounts) -> dict[str, Partitions]:
    """Give each subscriber of a topic a contiguous range of its partitions."""
    assigned: dict[str, set[TopicIdPartition]] = {member_id: set() for member_id in members}
    ordered = sorted(members, key=lambda member_id: members[member_id].instance_id or member_id)
    for topic_id, count in counts.items():
        subscribers = [name for name in ordered if topic_id in members[name].topics]
        if not subscribers:
            continue
        size, longer = divmod(count, len(subscribers))
        start = 0
        for number, member_id in enumerate(subscribers):
            end = start + size + (number < longer)
            assigned[member_id].update(
                TopicIdPartition(topic_id, index) for index in range(start, end)
            )
            start = end
    return {member_id: frozenset(partitions) for member_id, partitions in assigned.items()}


#: By name, the default first.
ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}


def _assign_equal(members: Subscriptions, counts: PartitionCounts) -> dict[str, Partitions]:
    """Assign to members that all subscribe to the same topics."""
    topics = next(iter(members.values())).topics
    unassigned = _all_partitions(topics & counts.keys(), counts)
    ordered = sorted(members)
    quota, longer = divmod(len(unassigned), len(ordered))
    kept: dict[str, list[TopicIdPartition]] = {}
    for member_id in ordered:
        owned = in_order(tp for tp in members[member_id].owned if tp in unassigned)
        # Those that have one more keep it, as long as there is one more to have.
        limit = quota
        if longer and len(owned) > quota:
            limit, longer = quota + 1, longer - 1
        kept[member_id] = owned[:limit]
        for tp in kept[member_id]:
            del unassigned[tp]
    free = iter(unassigned)
    assigned = {}
    for member_id in ordered:
        partitions = kept[member_id]
        limit = quota
        if longer and len(partitions) <= quota:
            limit, longer = quota + 1, longer - 1
        while len(partitions) < limit:
            partitions.append(next(free))
        assigned[member_id] = frozenset(partitions)
    return assigned


def _assign_different(members: Subscriptions, counts: PartitionCounts) -> dict[str, Partitions]:
    """Assign to members whose subscriptions differ.

    Each keeps what it has. The other partitions go to the subscribers with the fewest, those of
    topics with the fewest subscribers first. Then partitions move from members with more to others
    with at least two less.
    """
    ordered = sorted(members)
    subscribers: dict[UUID, list[str]] = {
        topic_id: [name for name in ordered if topic_id in members[name].topics]
        for topic_id in counts
    }
    unassigned = _all_partitions([one for one in counts if subscribers[one]], counts)
    assigned: dict[str, dict[TopicIdPartition, None]] = {name: {} for name in ordered}
    for name in ordered:
        for tp in in_order(members[name].owned):
            if tp in unassigned and tp.topic_id in members[name].topics:
                assigned[name][tp] = None
                del unassigned[tp]
    for tp in sorted(unassigned, key=lambda tp: len(subscribers[tp.topic_id])):
        name = min(subscribers[tp.topic_id], key=lambda name: len(assigned[name]))
        assigned[name][tp] = None
    for _round in range(_MAX_ROUNDS):
        if not _balance(ordered, subscribers, assigned):
            break
    return {name: frozenset(partitions) for name, partitions in assigned.items()}


def _balance(
    ordered: list[str],
    subscribers: Mapping[UUID, list[str]],
    assigned: Mapping[str, dict[TopicIdPartition, None]],
) -> bool:
    """Move partitions from members with more to members with less; whether any was moved."""
    has_moved = False
    fewest = min(map(len, assigned.values()))
    for name in sorted(ordered, key=lambda name: -len(assigned[name])):
        for tp in list(assigned[name]):
            if len(assigned[name]) - fewest <= 1:
                break  # Nobody has at least two less.
            least = min(subscribers[tp.topic_id], key=lambda name: len(assigned[name]))
            if len(assigned[name]) - len(assigned[least]) > 1:
                del assigned[name][tp]
                assigned[least][tp] = None
                has_moved = True
    return has_moved


def _all_partitions(
    topics: Set[UUID] | list[UUID], counts: PartitionCounts
) -> dict[TopicIdPartition, None]:
    """Return the partitions of topics, in order, as an ordered set."""
    return {
        TopicIdPartition(topic_id, index): None
        for topic_id in sorted(topics, key=lambda topic_id: topic_id.int)
        for index in range(counts[topic_id])
    }
