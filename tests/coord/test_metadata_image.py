"""The metadata image: replay of its records, and checks of topic names."""

from uuid import UUID

import pytest

from ottla.coord.metadata_image import (
    InvalidTopicError,
    MetadataImage,
    Topic,
    broker_record,
    check_topic_name,
    producer_ids_record,
    topic_record,
    topic_tombstone,
)
from ottla.coord.placement import assign_replicas

ORDERS = Topic("orders", UUID(int=1), ((0,), (1,)), {"retention.ms": "60000"})


def replayed(*records) -> MetadataImage:
    image = MetadataImage()
    for key, value in records:
        image.replay(key, value)
    return image


def test_a_topic_record_restores_the_topic():
    image = replayed(topic_record(ORDERS))

    assert image.topics == {"orders": ORDERS}
    assert image.topics_by_id == {ORDERS.id: ORDERS}


def test_the_last_record_of_a_topic_wins():
    grown = ORDERS.with_partitions(((2,),)).with_configs({})

    image = replayed(topic_record(ORDERS), topic_record(grown))

    assert image.topics["orders"].replicas == ((0,), (1,), (2,))
    assert image.topics["orders"].configs == {}


def test_a_deletion_removes_the_topic_and_remembers_its_id():
    image = replayed(topic_record(ORDERS))
    for record in image.deletion_records(ORDERS):
        image.replay(*record)

    assert image.topics == {}
    assert image.topics_by_id == {}
    assert image.deleted_topics == {ORDERS.id: "orders"}


def test_a_topic_that_is_created_again_has_a_new_id():
    again = Topic("orders", UUID(int=2), ((0,),), {})

    image = replayed(topic_record(ORDERS), topic_tombstone("orders"), topic_record(again))

    assert image.topics_by_id == {again.id: again}
    assert image.deleted_topics == {}  # A tombstone alone deletes no data.


def test_broker_configs_and_producer_ids_are_restored():
    image = replayed(broker_record(3, {"num.partitions": "6"}), producer_ids_record(2001))

    assert image.broker_configs == {3: {"num.partitions": "6"}}
    assert image.next_producer_id == 2001


def test_has_partition():
    image = replayed(topic_record(ORDERS))

    assert image.has_partition("orders", 1)
    assert not any(image.has_partition("orders", index) for index in (-1, 2))
    assert not image.has_partition("refunds", 0)


def test_records_of_unknown_kinds_are_ignored():
    assert replayed((b"future/7", b"{}")).topics == {}


def test_producer_id_0_is_never_allocated():
    assert MetadataImage().next_producer_id == 1


@pytest.mark.parametrize("name", ["a", "a.b", "a_b", "a-0", "A" * 249, "..."])
def test_valid_topic_names(name):
    check_topic_name(name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a" * 250, "a/b", "../a", "a\0", "a b", "ä", "a\n", "a:b", "\\"]
)
def test_invalid_topic_names(name):
    with pytest.raises(InvalidTopicError):
        check_topic_name(name)


def test_topic_names_that_differ_only_in_dots_and_underscores_collide():
    image = replayed(topic_record(Topic("a.b_c", UUID(int=1), ((0,),), {})))

    with pytest.raises(InvalidTopicError, match=r"collides with topic 'a.b_c'"):
        image.check_new_topic_name("a_b.c")
    image.check_new_topic_name("a.b-c")

    image.replay(*topic_tombstone("a.b_c"))
    image.check_new_topic_name("a_b.c")


def test_replicas_are_assigned_round_robin_across_topics():
    assert assign_replicas(4, [5, 6, 7], start=0) == ((5,), (6,), (7,), (5,))
    assert assign_replicas(2, [5, 6, 7], start=4) == ((6,), (7,))
