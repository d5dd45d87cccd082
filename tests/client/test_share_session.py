"""The requests of a share session: what they add to it and drop from it."""

from uuid import UUID

from ottla.client import ShareConfig, TopicPartition
from ottla.client.share.partition import SharePartition
from ottla.client.share.session import ShareSession

TOPIC_ID = UUID(int=7)
CONFIG = ShareConfig()


def a_partition(index):
    return SharePartition(TopicPartition("orders", index), TOPIC_ID)


def named(topics):
    return [partition.partition_index for topic in topics for partition in topic.partitions]


def dropped(request):
    return [index for topic in request.forgotten_topics_data for index in topic.partitions]


def test_only_changes_of_the_session_are_named():
    session = ShareSession("group", "member")
    first, second = a_partition(0), a_partition(1)

    opening = session.fetch_request([first], {}, CONFIG, 10)
    same = session.fetch_request([first], {}, CONFIG, 10)
    other = session.fetch_request([second], {}, CONFIG, 10)

    assert (named(opening.topics), dropped(opening)) == ([0], [])
    assert (named(same.topics), dropped(same)) == ([], [])
    assert (named(other.topics), dropped(other)) == ([1], [0])


def test_a_partition_that_is_assigned_again_stays_in_the_session():
    """A broker that is told to drop what a request adds would return none of its records."""
    session = ShareSession("group", "member")
    session.fetch_request([a_partition(0), a_partition(1)], {}, CONFIG, 10)

    request = session.fetch_request([a_partition(0)], {}, CONFIG, 10)

    assert dropped(request) == [1]
