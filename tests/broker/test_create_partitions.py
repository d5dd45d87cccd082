"""CreatePartitions: the number of partitions only grows."""

import asyncio

import pytest

from harness.brokers import broker_and_client
from harness.requests import create_topic, offset_for_time, produce_batch, topic_metadata
from harness.wire import connect
from ottla.protocol.api.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.registry import CREATE_PARTITIONS


def grown_topic(name, count, assignments=None):
    if assignments is not None:
        assignments = [CreatePartitionsAssignment(broker_ids=brokers) for brokers in assignments]
    return CreatePartitionsTopic(name=name, count=count, assignments=assignments)


async def create_partitions(client, *topics, version=3, validate_only=False):
    request = CreatePartitionsRequest(topics=topics, validate_only=validate_only)
    return (await client.request(request, version)).results


async def partitions(client, name):
    return len((await topic_metadata(client))[name].partitions)


@pytest.mark.parametrize("version", [*CREATE_PARTITIONS.versions])
async def test_partitions_are_added_in_every_version(tmp_path, version):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t", 2)
        await produce_batch(client, "t", 3, partition=1)

        [result] = await create_partitions(client, grown_topic("t", 5), version=version)

        assert (result.name, result.error_code, result.error_message) == ("t", 0, None)
        assert await partitions(client, "t") == 5
        assert (await offset_for_time(client, "t", -1, partition=1)).offset == 3
        assert await produce_batch(client, "t", partition=4) == 0


async def test_an_invalid_topic_fails_alone(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        for name in ("good", "same", "less", "twice"):
            await create_topic(client, name, 2)

        results = await create_partitions(
            client,
            grown_topic("same", 2),
            grown_topic("less", 1),
            grown_topic("missing", 9),
            grown_topic("twice", 3),
            grown_topic("twice", 4),
            grown_topic("good", 3),
        )

        assert [(result.name, result.error_code) for result in results] == [
            ("same", ErrorCode.INVALID_PARTITIONS),
            ("less", ErrorCode.INVALID_PARTITIONS),
            ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("twice", ErrorCode.INVALID_REQUEST),
            ("good", ErrorCode.NONE),
        ]
        assert all(result.error_message for result in results if result.error_code)
        assert await partitions(client, "twice") == 2


async def test_replica_assignments_of_new_partitions(tmp_path):
    async with broker_and_client(tmp_path, {"broker.id": "3"}) as (_broker, client):
        await create_topic(client, "t", 2)

        for assignments in ([[3]], [[3], [3], [3]], [[3], [4]], [[3], []], []):
            [result] = await create_partitions(client, grown_topic("t", 4, assignments))
            assert result.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        [result] = await create_partitions(client, grown_topic("t", 4, [[3], [3]]))

        assert result.error_code == ErrorCode.NONE
        assert await partitions(client, "t") == 4


async def test_validate_only_adds_nothing(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t")

        [result] = await create_partitions(client, grown_topic("t", 4), validate_only=True)

        assert result.error_code == ErrorCode.NONE
        assert await partitions(client, "t") == 1


async def test_broker_max_partitions_limits_new_partitions(tmp_path):
    async with broker_and_client(tmp_path, {"broker.max.partitions": "5"}) as (_broker, client):
        await create_topic(client, "t", 4)

        [result] = await create_partitions(client, grown_topic("t", 6))

        assert result.error_code == ErrorCode.INVALID_PARTITIONS
        assert "broker.max.partitions is 5" in result.error_message


async def test_concurrent_requests_never_reduce_the_partition_count(tmp_path):
    async with (
        broker_and_client(tmp_path) as (broker, client),
        connect(broker.address) as other_client,
    ):
        await create_topic(client, "t")

        results = await asyncio.gather(
            create_partitions(client, grown_topic("t", 8)),
            create_partitions(other_client, grown_topic("t", 4)),
        )

        codes = [result.error_code for [result] in results]
        assert codes in ([0, 0], [0, ErrorCode.INVALID_PARTITIONS])
        assert await partitions(client, "t") == 8


async def test_internal_topics_cannot_be_extended(tmp_path):
    async with broker_and_client(tmp_path) as (broker, client):
        await broker.controller.create_topics(
            [broker.controller.plan_topic("__consumer_offsets", 1, {})]
        )

        [result] = await create_partitions(client, grown_topic("__consumer_offsets", 4))

        assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
