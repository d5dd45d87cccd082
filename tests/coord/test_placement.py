"""A group is in the partition that Kafka would choose."""

import pytest

from ottla.coord.placement import coordinator_partition


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
