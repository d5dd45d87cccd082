"""DeleteTopics: gone is gone, and what comes after under the same name is another topic."""

from uuid import UUID, uuid4

import pytest

from harness.brokers import broker_and_client
from harness.requests import create_topic, offset_for_time, produce_batch, topic_metadata
from ottla.protocol.api.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.errors import ErrorCode
from ottla.protocol.registry import DELETE_TOPICS

NIL = UUID(int=0)
LATEST = -1


def by_name(*names, version=6):
    if version < 6:
        return DeleteTopicsRequest(topic_names=names)
    return DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in names])


def by_id(*ids):
    return DeleteTopicsRequest(topics=[DeleteTopicState(topic_id=topic_id) for topic_id in ids])


async def codes(client, request, version=6):
    answer = await client.request(request, version)
    return [result.error_code for result in answer.responses]


@pytest.mark.parametrize("version", [*DELETE_TOPICS.versions])
async def test_every_version_deletes_by_name(tmp_path, version):
    async with broker_and_client(tmp_path) as (_broker, client):
        created = await create_topic(client, "t", 2)
        await create_topic(client, "other")

        answer = await client.request(by_name("missing", "t", version=version), version)

        missing, deleted = answer.responses
        assert (missing.name, missing.error_code) == (
            "missing",
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        )
        assert (deleted.name, deleted.error_code) == ("t", ErrorCode.NONE)
        assert deleted.topic_id == (created.topic_id if version >= 6 else NIL)
        assert bool(missing.error_message) == (version >= 5)
        assert list(await topic_metadata(client)) == ["other"]
        assert not list(tmp_path.glob("t-*"))


async def test_a_topic_can_be_deleted_by_its_id(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        created = await create_topic(client, "t")
        unknown = uuid4()

        answer = await client.request(by_id(unknown, created.topic_id))

        assert [(one.name, one.topic_id, one.error_code) for one in answer.responses] == [
            (None, unknown, ErrorCode.UNKNOWN_TOPIC_ID),
            ("t", created.topic_id, ErrorCode.NONE),
        ]
        assert await topic_metadata(client) == {}


async def test_a_topic_of_the_same_name_is_a_new_one_and_empty(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        first = await create_topic(client, "t", retention_ms="5000")
        await produce_batch(client, "t", 10)
        await codes(client, by_name("t"))

        second = await create_topic(client, "t")

        assert second.topic_id != first.topic_id
        assert (await offset_for_time(client, "t", LATEST)).offset == 0
        assert await codes(client, by_id(first.topic_id)) == [ErrorCode.UNKNOWN_TOPIC_ID]
        assert "t" in await topic_metadata(client)
        assert {config.config_source for config in second.configs} == {5}
        assert await produce_batch(client, "t") == 0

    async with broker_and_client(tmp_path) as (_broker, client):
        assert (await topic_metadata(client))["t"].topic_id == second.topic_id
        assert (await offset_for_time(client, "t", LATEST)).offset == 1


async def test_a_request_that_names_a_topic_twice_or_not_at_all_deletes_nothing(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        created = await create_topic(client, "t")
        both = DeleteTopicState(name="t", topic_id=created.topic_id)

        for request in (
            by_name("t", "t"),
            by_id(created.topic_id, created.topic_id),
            DeleteTopicsRequest(topics=[both]),
            DeleteTopicsRequest(topics=[DeleteTopicState()]),
        ):
            assert await codes(client, request) == [ErrorCode.INVALID_REQUEST]
        assert await codes(client, by_name("t", "t", version=5), 5) == [ErrorCode.INVALID_REQUEST]
        assert "t" in await topic_metadata(client)


async def test_the_broker_s_own_topics_cannot_be_deleted(tmp_path):
    async with broker_and_client(tmp_path) as (broker, client):
        await broker.controller.create_topics(
            [broker.controller.plan_topic("__consumer_offsets", 1, {})]
        )
        await create_topic(client, "t")

        answer = await codes(client, by_name("__consumer_offsets", "__cluster_metadata", "t"))

        assert answer == [
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.NONE,
        ]


async def test_deletion_can_be_switched_off(tmp_path):
    async with broker_and_client(tmp_path, {"delete.topic.enable": "false"}) as (_broker, client):
        created = await create_topic(client, "t")

        assert await codes(client, by_name("t")) == [ErrorCode.TOPIC_DELETION_DISABLED]
        assert await codes(client, by_id(created.topic_id)) == [ErrorCode.TOPIC_DELETION_DISABLED]
        # Version 2 does not know that code.
        assert await codes(client, by_name("t", version=2), 2) == [ErrorCode.INVALID_REQUEST]
        assert "t" in await topic_metadata(client)
