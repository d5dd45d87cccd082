"""DescribeTopicPartitions: pages sorted by topic name."""

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


async def describe(client, *names, limit=2000, cursor=None):
    return await client.request(
        DescribeTopicPartitionsRequest(
            topics=[TopicRequest(name=name) for name in names],
            response_partition_limit=limit,
            cursor=cursor,
        )
    )


def partitions(response):
    return [
        (topic.name, part.partition_index) for topic in response.topics for part in topic.partitions
    ]


async def test_topics_are_sorted_by_name(tmp_path):
    async with broker_and_client(tmp_path, {"broker.id": "2"}) as (_broker, client):
        ids = {}
        for name, count in TOPICS.items():
            ids[name] = (await create_topic(client, name, count)).topic_id

        response = await describe(client)

        assert partitions(response) == ALL
        assert response.next_cursor is None
        assert {topic.name: topic.topic_id for topic in response.topics} == ids
        for topic in response.topics:
            assert topic.topic_authorized_operations > 0
            for part in topic.partitions:
                assert (part.leader_id, part.leader_epoch, part.error_code) == (2, 0, 0)
                assert (part.replica_nodes, part.isr_nodes) == ((2,), (2,))
                assert (part.offline_replicas, part.eligible_leader_replicas) == ((), ())


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 7, 9, 10, 11])
async def test_pages_cover_all_partitions_within_the_limit(tmp_path, limit):
    async with broker_and_client(tmp_path) as (_broker, client):
        for name, count in TOPICS.items():
            await create_topic(client, name, count)

        for names in ((), ("d", "a", "c", "b")):
            seen, cursor = [], None
            while True:
                page = await describe(client, *names, limit=limit, cursor=cursor)
                assert 0 < len(partitions(page)) <= limit
                seen += partitions(page)
                cursor = page.next_cursor
                if cursor is None:
                    break
            assert seen == ALL


async def test_max_request_partition_size_limit_limits_a_page(tmp_path):
    async with broker_and_client(tmp_path, {"max.request.partition.size.limit": "5"}) as (
        _broker,
        client,
    ):
        await create_topic(client, "t", 8)

        for limit, expected in ((100, 5), (4, 4), (0, 1), (-1, 1)):
            page = await describe(client, limit=limit)
            assert len(partitions(page)) == expected
            assert (page.next_cursor.topic_name, page.next_cursor.partition_index) == (
                "t",
                expected,
            )


async def test_unknown_topics_are_returned_in_order_with_an_error(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "b")

        response = await describe(client, "c", "b", "a", "no name", "b", "__cluster_metadata")

        assert [(topic.name, topic.error_code) for topic in response.topics] == [
            ("__cluster_metadata", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("a", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("b", ErrorCode.NONE),
            ("c", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("no name", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ]


@pytest.mark.parametrize("cursor", [("b", 0), ("a", -1)])
async def test_an_invalid_cursor_fails_the_request(tmp_path, cursor):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "a")
        topic_name, index = cursor

        response = await describe(
            client, "a", "c", cursor=Cursor(topic_name=topic_name, partition_index=index)
        )

        assert [(topic.name, topic.error_code) for topic in response.topics] == [
            ("a", ErrorCode.INVALID_REQUEST),
            ("c", ErrorCode.INVALID_REQUEST),
        ]
        assert response.next_cursor is None


async def test_a_cursor_at_a_deleted_topic_continues_after_it(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        for name, count in TOPICS.items():
            await create_topic(client, name, count)
        page = await describe(client, limit=4)
        assert (page.next_cursor.topic_name, page.next_cursor.partition_index) == ("b", 2)

        await client.request(DeleteTopicsRequest(topics=[DeleteTopicState(name="b")]))
        next_page = await describe(client, cursor=page.next_cursor)

        assert partitions(next_page) == [tp for tp in ALL if tp[0] > "b"]
        beyond = await describe(client, cursor=Cursor(topic_name="c", partition_index=99))
        assert partitions(beyond) == [("d", 0)]
