"""The image is what its records say, however often they are told."""

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


def told(*records) -> MetadataImage:
    image = MetadataImage()
    for key, value in records:
        image.replay(key, value)
    return image


def test_a_topic_comes_back_as_it_was():
    image = told(topic_record(ORDERS))

    assert image.topics == {"orders": ORDERS}
    assert image.topics_by_id == {ORDERS.id: ORDERS}


def test_the_last_record_of_a_topic_counts():
    grown = ORDERS.with_partitions(((2,),)).with_configs({})

    image = told(topic_record(ORDERS), topic_record(grown))

    assert image.topics["orders"].replicas == ((0,), (1,), (2,))
    assert image.topics["orders"].configs == {}


def test_a_deleted_topic_is_gone_and_remembered_as_such():
    image = told(topic_record(ORDERS), topic_tombstone("orders"))

    assert image.topics == {}
    assert image.topics_by_id == {}
    assert image.deleted == {"orders"}


def test_a_topic_that_is_made_again_is_another_one():
    again = Topic("orders", UUID(int=2), ((0,),), {})

    image = told(topic_record(ORDERS), topic_tombstone("orders"), topic_record(again))

    assert image.topics_by_id == {again.id: again}
    assert image.deleted == set()


def test_settings_of_brokers_and_producer_ids_are_kept():
    image = told(broker_record(3, {"num.partitions": "6"}), producer_ids_record(2001))

    assert image.broker_configs == {3: {"num.partitions": "6"}}
    assert image.next_producer_id == 2001


def test_a_record_of_a_kind_that_is_not_known_is_left_alone():
    assert told((b"acl/7", b"{}")).topics == {}


def test_producer_id_0_is_never_given_out():
    assert MetadataImage().next_producer_id == 1


@pytest.mark.parametrize("name", ["a", "a.b", "a_b", "a-0", "A" * 249, "..."])
def test_good_names(name):
    check_topic_name(name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a" * 250, "a/b", "../a", "a\0", "a b", "ä", "a\n", "a:b", "\\"]
)
def test_bad_names(name):
    with pytest.raises(InvalidTopicError):
        check_topic_name(name)


def test_names_that_differ_in_dots_and_underscores_alone_are_not_made():
    image = told(topic_record(Topic("a.b_c", UUID(int=1), ((0,),), {})))

    with pytest.raises(InvalidTopicError, match=r"looks like the topic 'a.b_c'"):
        image.check_new_name("a_b.c")
    image.check_new_name("a.b-c")

    image.replay(*topic_tombstone("a.b_c"))
    image.check_new_name("a_b.c")


def test_partitions_are_placed_in_turns_that_go_on_over_topics():
    assert assign_replicas(4, [5, 6, 7], start=0) == ((5,), (6,), (7,), (5,))
    assert assign_replicas(2, [5, 6, 7], start=4) == ((6,), (7,))
