"""The requests of a share session, and what is acquired in it."""

from uuid import UUID

from ottla.client import ShareConfig, TopicPartition
from ottla.client.share.partition import SharePartition
from ottla.client.share.session import ShareSession
from ottla.client.types import AcknowledgeType
from ottla.protocol.api.share_fetch import AcquiredRecords

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


def test_a_topic_that_was_created_anew_replaces_the_old_one():
    session, partition = ShareSession("group", "member"), a_partition(0)
    session.fetch_request([partition], {}, CONFIG, 10)

    partition.topic_id = UUID(int=8)
    request = session.fetch_request([partition], {}, CONFIG, 10)

    assert [topic.topic_id for topic in request.topics] == [UUID(int=8)]
    assert [topic.topic_id for topic in request.forgotten_topics_data] == [TOPIC_ID]


def test_what_was_said_of_an_earlier_delivery_is_not_sent_for_the_next_one():
    """After the locks of 4 to 6 were lost: a release of 5 must not follow its second delivery."""
    partition = a_partition(0)
    partition.acknowledge(5, AcknowledgeType.RELEASE)
    partition.acknowledge(9, AcknowledgeType.ACCEPT)

    again = [AcquiredRecords(first_offset=4, last_offset=6, delivery_count=2)]

    assert partition.drop_lost(again) == [5]
    assert partition.pending == {9: AcknowledgeType.ACCEPT}
