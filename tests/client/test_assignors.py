"""Assignors: equal to those of other clients with the same name, otherwise balanced and sticky."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from types import SimpleNamespace

import pytest
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.consumer.assignors import ASSIGNORS, Assignments, Member
from ottla.client.types import TopicPartition

TOPICS = ("a", "b", "c")


def assigned(
    assignor: str, members: Sequence[Member], partitions: Mapping[str, int]
) -> Assignments:
    return ASSIGNORS[assignor].assign(members, partitions)


def named(assignments: Assignments) -> dict[str, list[str]]:
    return {name: [str(tp) for tp in tps] for name, tps in assignments.items()}


def subscribed(*topics: str, count: int) -> list[Member]:
    return [Member(f"m{number}", topics) for number in range(count)]


def rebalanced(members: Sequence[Member], partitions: Mapping[str, int]) -> tuple[Assignments, int]:
    """Rebalance cooperatively until nothing is revoked; return the number of rounds."""
    rounds = 0
    while True:
        rounds += 1
        assert rounds <= 3, "the group does not become stable"
        assigned_to = assigned("cooperative-sticky", members, partitions)
        holders = Counter(
            tp
            for member in members
            for tp in {*member.owned, *assigned_to[member.id]}
            if tp in assigned_to[member.id] or tp in member.owned
        )
        assert max(holders.values(), default=1) == 1, "a partition has two owners"
        is_revoking = any(set(member.owned) - set(assigned_to[member.id]) for member in members)
        members = [
            Member(one.id, one.topics, one.instance_id, tuple(assigned_to[one.id]), rounds)
            for one in members
        ]
        if not is_revoking:
            return assigned_to, rounds


def owning(assignments: Assignments, topics: Sequence[str], generation: int = 1) -> list[Member]:
    return [
        Member(name, topics, owned=tuple(tps), generation_id=generation)
        for name, tps in assignments.items()
    ]


def test_range_assigns_consecutive_partitions_and_one_more_to_the_first_members():
    assignments = assigned("range", subscribed("a", "b", count=2), {"a": 3, "b": 3})

    assert named(assignments) == {
        "m0": ["a-0", "a-1", "b-0", "b-1"],
        "m1": ["a-2", "b-2"],
    }


def test_roundrobin_assigns_in_turn():
    assignments = assigned("roundrobin", subscribed("a", "b", count=2), {"a": 3, "b": 3})

    assert named(assignments) == {"m0": ["a-0", "a-2", "b-1"], "m1": ["a-1", "b-0", "b-2"]}


def test_roundrobin_skips_members_not_subscribed_to_a_topic():
    members = [Member("m0", ["a"]), Member("m1", ["a", "b"]), Member("m2", ["a", "b", "c"])]

    assignments = assigned("roundrobin", members, {"a": 1, "b": 2, "c": 3})

    assert named(assignments) == {
        "m0": ["a-0"],
        "m1": ["b-0"],
        "m2": ["b-1", "c-0", "c-1", "c-2"],
    }


@pytest.mark.parametrize("assignor", ["range", "roundrobin"])
def test_static_members_come_first_by_instance_id(assignor):
    members = [Member("z", ["a"], "1"), Member("y", ["a"], "2"), Member("b", ["a"])]

    assignments = assigned(assignor, members, {"a": 3})

    assert named(assignments) == {"z": ["a-0"], "y": ["a-1"], "b": ["a-2"]}


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_unknown_topics_and_surplus_members_are_handled(assignor):
    assignments = assigned(assignor, subscribed("a", "missing", count=3), {"a": 1})

    assert named(assignments) == {"m0": ["a-0"], "m1": [], "m2": []}
    assert assigned(assignor, subscribed("missing", count=1), {}) == {"m0": []}


@pytest.mark.parametrize(
    ("name", "theirs"),
    [("range", RangePartitionAssignor), ("roundrobin", RoundRobinPartitionAssignor)],
)
@given(data=st.data())
def test_aiokafka_assigns_the_same(name, theirs, data):
    partitions = data.draw(st.fixed_dictionaries(dict.fromkeys(TOPICS, st.integers(1, 7))))
    subscriptions = data.draw(
        st.lists(st.sets(st.sampled_from(TOPICS), min_size=1), min_size=1, max_size=5)
    )
    members = [Member(f"m{n}", sorted(topics)) for n, topics in enumerate(subscriptions)]
    cluster = SimpleNamespace(partitions_for_topic=lambda topic: set(range(partitions[topic])))
    asked = {member.id: SimpleNamespace(subscription=list(member.topics)) for member in members}

    found = theirs.assign(cluster, asked)

    assert assigned(name, members, partitions) == {
        member: [(topic, number) for topic, numbers in share.assignment for number in numbers]
        for member, share in found.items()
    }


def test_a_new_member_gets_its_share_and_nothing_else_moves():
    before, _rounds = rebalanced(subscribed("a", count=2), {"a": 6})

    members = [*owning(before, ["a"]), Member("m2", ["a"])]
    first = assigned("cooperative-sticky", members, {"a": 6})
    after, rounds = rebalanced(members, {"a": 6})

    assert first["m2"] == [], "partitions of others are not assigned before they are revoked"
    assert rounds == 2
    assert [len(share) for share in after.values()] == [2, 2, 2]
    assert all(set(after[name]) <= set(before[name]) for name in before)


def test_partitions_of_a_member_that_left_are_assigned_at_once():
    before, _rounds = rebalanced(subscribed("a", count=3), {"a": 6})
    del before["m1"]

    after, rounds = rebalanced(owning(before, ["a"]), {"a": 6})

    assert rounds == 1
    assert all(set(before[name]) <= set(after[name]) for name in before)
    assert [len(share) for share in after.values()] == [3, 3]


def test_the_owner_of_the_latest_generation_keeps_a_partition():
    old = Member("m0", ["a"], owned=[TopicPartition("a", 0)], generation_id=1)
    new = Member("m1", ["a"], owned=[TopicPartition("a", 0)], generation_id=2)

    assignments = assigned("cooperative-sticky", [old, new], {"a": 1})

    assert named(assignments) == {"m0": [], "m1": ["a-0"]}


def test_as_few_partitions_as_possible_move_from_the_most_loaded_member():
    owned = {
        "m0": [TopicPartition("a", n) for n in (0, 1, 2)],
        "m1": [TopicPartition("a", n) for n in (3, 4)],
        "m2": [],
    }

    after, _rounds = rebalanced(owning(owned, ["a"]), {"a": 5})

    assert sum(len(set(owned[name]) - set(after[name])) for name in owned) == 1
    assert len(after["m2"]) == 1


@given(data=st.data())
def test_cooperative_sticky_is_balanced_and_assigns_every_partition(data):
    partitions = data.draw(st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 9), min_size=1))
    subscriptions = data.draw(
        st.lists(st.sets(st.sampled_from(TOPICS), min_size=1), min_size=1, max_size=6)
    )
    chance = random.Random(data.draw(st.integers(0, 2**32)))
    members = []
    tps = [TopicPartition(topic, n) for topic, count in partitions.items() for n in range(count)]
    owners = {tp: chance.randrange(-1, len(subscriptions)) for tp in tps}
    for number, topics in enumerate(subscriptions):
        owned = tuple(tp for tp in tps if owners[tp] == number)
        members.append(Member(f"m{number}", sorted(topics), owned=owned, generation_id=1))

    assignments, _rounds = rebalanced(members, partitions)

    assigned_to = [tp for share in assignments.values() for tp in share]
    all_topics = set().union(*subscriptions)
    assert sorted(assigned_to) == sorted(tp for tp in tps if tp.topic in all_topics)
    topics_of = {member.id: set(member.topics) for member in members}
    for name, share in assignments.items():
        assert {tp.topic for tp in share} <= topics_of[name]
        for other, theirs in assignments.items():
            if len(theirs) > len(share) + 1:
                assert not {tp.topic for tp in theirs} & topics_of[name], (name, other)
