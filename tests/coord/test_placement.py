"""Replicas are spread over brokers and racks; a group is in the partition Kafka would choose."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.coord.placement import assign_replicas, coordinator_partition

RACKS = st.dictionaries(st.integers(0, 30), st.sampled_from(["", "a", "b", "c"]), min_size=1)


@given(RACKS, st.integers(0, 1000), st.integers(1, 40), st.integers(1, 5))
def test_replicas_are_spread_over_brokers_and_racks(racks, start, count, factor):
    brokers = sorted(racks)
    factor = min(factor, len(brokers))
    assigned = assign_replicas(count, brokers, start, factor, racks)

    rack_count = len({racks[one] or one for one in brokers})
    assert len(assigned) == count
    for replicas in assigned:
        assert len(replicas) == factor
        assert set(replicas) <= set(brokers)
        assert len(set(replicas)) == factor
        in_racks = Counter(racks[one] or one for one in replicas)
        assert len(in_racks) == min(factor, rack_count)
    leaders = Counter(replicas[0] for replicas in assigned)
    counts = [leaders[one] for one in brokers]
    assert max(counts) - min(counts) <= 1


@given(st.integers(0, 1000), st.integers(1, 4), st.integers(2, 3), st.integers(2, 4))
def test_brokers_of_equal_racks_have_as_many_replicas(start, rounds, rack_count, rack_size):
    racks = {number: f"rack-{number % rack_count}" for number in range(rack_count * rack_size)}
    size = len(racks)
    assigned = assign_replicas(rounds * size * (size - 1), sorted(racks), start, 2, racks)

    replicas = Counter(one for some in assigned for one in some)
    assert max(replicas.values()) - min(replicas.values()) <= size * rounds
    followers = {some[1] for some in assigned if some[0] == 0}
    assert followers == {one for one in racks if racks[one] != racks[0]}


def test_without_racks_all_brokers_follow_each_leader_in_turn():
    assigned = assign_replicas(6, [0, 1, 2], 0, 2)
    assert assigned == ((0, 1), (1, 2), (2, 0), (0, 2), (1, 0), (2, 1))
    assert assign_replicas(6, [0, 1, 2], 0, 2, {0: "a", 1: "b", 2: "c"}) == assigned


# What Kafka's Utils.abs(groupId.hashCode()) % n gives.
@pytest.mark.parametrize(
    ("group_id", "of_50", "of_7"),
    [
        ("", 0, 0),
        ("g", 3, 5),
        ("billing", 9, 6),
        ("my-group", 12, 1),
        ("orders.v2", 45, 4),
        ("connect-sink", 22, 4),
        ("console-consumer-12345", 6, 6),
        ("G\0", 1, 3),
        ("ärger", 40, 0),
        ("日本", 47, 3),
    ],
)
def test_the_partition_of_a_group_is_that_of_kafka(group_id, of_50, of_7):
    assert coordinator_partition(group_id, 50) == of_50
    assert coordinator_partition(group_id, 7) == of_7
    assert coordinator_partition(group_id, 1) == 0


def test_a_supplementary_character_counts_as_two_code_units():
    assert coordinator_partition("😀", 50) == 49
    assert coordinator_partition("a😀b", 50) == 44


def test_the_smallest_hash_has_no_absolute_value_and_becomes_0():
    assert coordinator_partition("polygenelubricants", 50) == 0
    assert coordinator_partition("polygenelubricants", 7) == 0


def test_a_lone_surrogate_is_accepted():
    assert coordinator_partition("\ud83d", 50) == 7
