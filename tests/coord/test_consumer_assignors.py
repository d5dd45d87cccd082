"""The assignors of the broker, with random subscriptions."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.coord.consumer.assignors import ASSIGNORS, MemberSubscription
from ottla.coord.consumer.partitions import TopicIdPartition

TOPICS = [UUID(int=number) for number in range(1, 4)]
counts = st.fixed_dictionaries({topic: st.integers(1, 7) for topic in TOPICS})
subscriptions = st.lists(st.frozensets(st.sampled_from(TOPICS)), min_size=1, max_size=5)


def sizes(assigned):
    return sorted(len(partitions) for partitions in assigned.values())


def check(assigned, members, counts):
    """Every partition of a subscribed topic has one member, which subscribes to the topic."""
    every = [tp for partitions in assigned.values() for tp in partitions]
    topics = {topic for member in members.values() for topic in member.topics}
    assert sorted(every) == [
        TopicIdPartition(topic, index) for topic in sorted(topics) for index in range(counts[topic])
    ]
    for name, partitions in assigned.items():
        assert {tp.topic_id for tp in partitions} <= members[name].topics


@pytest.mark.parametrize("name", ASSIGNORS)
@given(counts=counts, topics=subscriptions)
def test_every_partition_is_assigned_to_one_subscriber(name, counts, topics):
    members = {f"m{number}": MemberSubscription(one) for number, one in enumerate(topics)}

    assigned = ASSIGNORS[name](members, counts)

    assert assigned.keys() == members.keys()
    check(assigned, members, counts)


@given(counts=counts, size=st.integers(1, 6), other=st.integers(1, 6))
def test_uniform_is_balanced_and_moves_as_little_as_possible(counts, size, other):
    """After a change of the number of members, a member keeps what its new share allows."""
    topics = frozenset(TOPICS)
    assign = ASSIGNORS["uniform"]
    before = assign({f"m{n}": MemberSubscription(topics) for n in range(size)}, counts)
    members = {
        f"m{n}": MemberSubscription(topics, before.get(f"m{n}", frozenset())) for n in range(other)
    }

    after = assign(members, counts)

    check(after, members, counts)
    assert sizes(after)[-1] - sizes(after)[0] <= 1
    total = sum(counts.values())
    moved = sum(len(after[name] - member.owned) for name, member in members.items())
    remaining = sum(len(member.owned) for member in members.values())
    fair = [total // other + (number < total % other) for number in range(other)]
    owned = sorted((len(member.owned) for member in members.values()), reverse=True)
    assert moved == (total - remaining) + sum(
        max(have - share, 0) for have, share in zip(owned, fair, strict=True)
    )


@given(counts=counts, topics=subscriptions)
def test_uniform_is_stable(counts, topics):
    members = {f"m{number}": MemberSubscription(one) for number, one in enumerate(topics)}
    assign = ASSIGNORS["uniform"]
    before = assign(members, counts)

    again = assign({n: one._replace(owned=before[n]) for n, one in members.items()}, counts)

    assert again == before


def test_range_assigns_the_same_indexes_of_equal_topics():
    members = {
        name: MemberSubscription(frozenset(TOPICS[:2]), instance_id=instance)
        for name, instance in (("a", "2"), ("b", "1"), ("c", None))
    }

    assigned = ASSIGNORS["range"](members, dict.fromkeys(TOPICS[:2], 4))

    assert {name: sorted(tp.partition for tp in tps) for name, tps in assigned.items()} == {
        "a": [2, 2],
        "b": [0, 0, 1, 1],
        "c": [3, 3],
    }
