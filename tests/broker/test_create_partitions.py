"""CreatePartitions: more of them, never fewer."""

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


def more(name, count, assignments=None):
    if assignments is not None:
        assignments = [CreatePartitionsAssignment(broker_ids=brokers) for brokers in assignments]
    return CreatePartitionsTopic(name=name, count=count, assignments=assignments)


async def ask(client, *topics, version=3, validate_only=False):
    request = CreatePartitionsRequest(topics=topics, validate_only=validate_only)
    return (await client.request(request, version)).results


async def partitions(client, name):
    return len((await topic_metadata(client))[name].partitions)


@pytest.mark.parametrize("version", [*CREATE_PARTITIONS.versions])
async def test_every_version_adds_partitions_and_leaves_the_old_ones_alone(tmp_path, version):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t", 2)
        await produce_batch(client, "t", 3, partition=1)

        [answer] = await ask(client, more("t", 5), version=version)

        assert (answer.name, answer.error_code, answer.error_message) == ("t", 0, None)
        assert await partitions(client, "t") == 5
        assert (await offset_for_time(client, "t", -1, partition=1)).offset == 3
        assert await produce_batch(client, "t", partition=4) == 0


async def test_what_cannot_be_is_refused_and_harms_no_other(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        for name in ("good", "same", "less", "twice"):
            await create_topic(client, name, 2)

        answers = await ask(
            client,
            more("same", 2),
            more("less", 1),
            more("missing", 9),
            more("twice", 3),
            more("twice", 4),
            more("good", 3),
        )

        assert [(answer.name, answer.error_code) for answer in answers] == [
            ("same", ErrorCode.INVALID_PARTITIONS),
            ("less", ErrorCode.INVALID_PARTITIONS),
            ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("twice", ErrorCode.INVALID_REQUEST),
            ("good", ErrorCode.NONE),
        ]
        assert all(answer.error_message for answer in answers if answer.error_code)
        assert await partitions(client, "twice") == 2


async def test_assignments_are_for_the_new_partitions_and_to_the_one_broker(tmp_path):
    async with broker_and_client(tmp_path, {"broker.id": "3"}) as (_broker, client):
        await create_topic(client, "t", 2)

        for assignments in ([[3]], [[3], [3], [3]], [[3], [4]], [[3], []], []):
            [answer] = await ask(client, more("t", 4, assignments))
            assert answer.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        [answer] = await ask(client, more("t", 4, [[3], [3]]))

        assert answer.error_code == ErrorCode.NONE
        assert await partitions(client, "t") == 4


async def test_validating_only_does_nothing(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t")

        [answer] = await ask(client, more("t", 4), validate_only=True)

        assert answer.error_code == ErrorCode.NONE
        assert await partitions(client, "t") == 1


async def test_there_are_no_more_than_the_broker_may_have(tmp_path):
    async with broker_and_client(tmp_path, {"broker.max.partitions": "5"}) as (_broker, client):
        await create_topic(client, "t", 4)

        [answer] = await ask(client, more("t", 6))

        assert answer.error_code == ErrorCode.INVALID_PARTITIONS
        assert "broker.max.partitions is 5" in answer.error_message


async def test_of_two_that_ask_at_once_nobody_takes_partitions_away(tmp_path):
    async with broker_and_client(tmp_path) as (broker, one), connect(broker.address) as other:
        await create_topic(one, "t")

        answers = await asyncio.gather(ask(one, more("t", 8)), ask(other, more("t", 4)))

        codes = [answer.error_code for [answer] in answers]
        assert codes in ([0, 0], [0, ErrorCode.INVALID_PARTITIONS])
        assert await partitions(one, "t") == 8


async def test_the_broker_s_own_topics_keep_their_partitions(tmp_path):
    async with broker_and_client(tmp_path) as (broker, client):
        await broker.controller.create_topics(
            [broker.controller.plan_topic("__consumer_offsets", 1, {})]
        )

        [answer] = await ask(client, more("__consumer_offsets", 4))

        assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
