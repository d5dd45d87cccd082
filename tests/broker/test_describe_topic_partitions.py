"""DescribeTopicPartitions: page by page, in the order of names."""

import pytest

from harness.brokers import broker_and_client
from harness.requests import create_topic
from ottla.protocol.api.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.api.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from ottla.protocol.errors import ErrorCode

TOPICS = {"b": 3, "a": 2, "d": 1, "c": 4}
ALL = [(name, index) for name in sorted(TOPICS) for index in range(TOPICS[name])]


async def ask(client, *names, limit=2000, cursor=None):
    return await client.request(
        DescribeTopicPartitionsRequest(
            topics=[TopicRequest(name=name) for name in names],
            response_partition_limit=limit,
            cursor=cursor,
        )
    )


def partitions(answer):
    return [
        (topic.name, part.partition_index) for topic in answer.topics for part in topic.partitions
    ]


async def test_topics_are_described_in_the_order_of_their_names(tmp_path):
    async with broker_and_client(tmp_path, {"broker.id": "2"}) as (_broker, client):
        ids = {}
        for name, count in TOPICS.items():
            ids[name] = (await create_topic(client, name, count)).topic_id

        answer = await ask(client)

        assert partitions(answer) == ALL
        assert answer.next_cursor is None
        assert {topic.name: topic.topic_id for topic in answer.topics} == ids
        for topic in answer.topics:
            assert topic.topic_authorized_operations > 0
            for part in topic.partitions:
                assert (part.leader_id, part.leader_epoch, part.error_code) == (2, 0, 0)
                assert (part.replica_nodes, part.isr_nodes) == ((2,), (2,))
                assert (part.offline_replicas, part.eligible_leader_replicas) == ((), ())


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 7, 9, 10, 11])
async def test_the_pages_together_are_all_and_none_is_too_long(tmp_path, limit):
    async with broker_and_client(tmp_path) as (_broker, client):
        for name, count in TOPICS.items():
            await create_topic(client, name, count)

        for names in ((), ("d", "a", "c", "b")):
            seen, cursor = [], None
            while True:
                page = await ask(client, *names, limit=limit, cursor=cursor)
                assert 0 < len(partitions(page)) <= limit
                seen += partitions(page)
                cursor = page.next_cursor
                if cursor is None:
                    break
            assert seen == ALL


async def test_the_broker_has_a_limit_of_its_own(tmp_path):
    async with broker_and_client(tmp_path, {"max.request.partition.size.limit": "5"}) as (
        _broker,
        client,
    ):
        await create_topic(client, "t", 8)

        for limit, expected in ((100, 5), (4, 4), (0, 1), (-1, 1)):
            page = await ask(client, limit=limit)
            assert len(partitions(page)) == expected
            assert (page.next_cursor.topic_name, page.next_cursor.partition_index) == (
                "t",
                expected,
            )


async def test_unknown_topics_are_answered_in_their_place(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "b")

        answer = await ask(client, "c", "b", "a", "no name", "b", "__cluster_metadata")

        assert [(topic.name, topic.error_code) for topic in answer.topics] == [
            ("__cluster_metadata", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("a", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("b", ErrorCode.NONE),
            ("c", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("no name", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ]


async def test_a_cursor_of_a_topic_that_is_gone_goes_on_behind_it(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        for name, count in TOPICS.items():
            await create_topic(client, name, count)
        page = await ask(client, limit=4)
        assert (page.next_cursor.topic_name, page.next_cursor.partition_index) == ("b", 2)

        await client.request(DeleteTopicsRequest(topics=[DeleteTopicState(name="b")]))
        rest = await ask(client, cursor=page.next_cursor)

        assert partitions(rest) == [place for place in ALL if place[0] > "b"]
        beyond = await ask(client, cursor=Cursor(topic_name="c", partition_index=99))
        assert partitions(beyond) == [("d", 0)]
