"""DeleteTopics: by name and by id; a new topic of the same name is another topic."""

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
    response = await client.request(request, version)
    return [result.error_code for result in response.responses]


@pytest.mark.parametrize("version", [*DELETE_TOPICS.versions])
async def test_delete_by_name_in_every_version(tmp_path, version):
    async with broker_and_client(tmp_path) as (_broker, client):
        created = await create_topic(client, "t", 2)
        await create_topic(client, "other")

        response = await client.request(by_name("missing", "t", version=version), version)

        missing, deleted = response.responses
        assert (missing.name, missing.error_code) == (
            "missing",
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        )
        assert (deleted.name, deleted.error_code) == ("t", ErrorCode.NONE)
        assert deleted.topic_id == (created.topic_id if version >= 6 else NIL)
        assert bool(missing.error_message) == (version >= 5)
        assert list(await topic_metadata(client)) == ["other"]
        assert not list(tmp_path.glob("t-*"))


async def test_delete_by_topic_id(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        created = await create_topic(client, "t")
        unknown = uuid4()

        response = await client.request(by_id(unknown, created.topic_id))

        assert [
            (result.name, result.topic_id, result.error_code) for result in response.responses
        ] == [
            (None, unknown, ErrorCode.UNKNOWN_TOPIC_ID),
            ("t", created.topic_id, ErrorCode.NONE),
        ]
        assert await topic_metadata(client) == {}


async def test_a_recreated_topic_is_empty_and_has_a_new_id(tmp_path):
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


async def test_duplicate_or_unnamed_topics_are_invalid_requests(tmp_path):
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


async def test_internal_topics_cannot_be_deleted(tmp_path):
    async with broker_and_client(tmp_path) as (broker, client):
        await broker.controller.create_topics(
            [broker.controller.plan_topic("__consumer_offsets", 1, {})]
        )
        await create_topic(client, "t")

        error_codes = await codes(client, by_name("__consumer_offsets", "__cluster_metadata", "t"))

        assert error_codes == [
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.NONE,
        ]


async def test_delete_topic_enable_false_disables_deletion(tmp_path):
    async with broker_and_client(tmp_path, {"delete.topic.enable": "false"}) as (_broker, client):
        created = await create_topic(client, "t")

        assert await codes(client, by_name("t")) == [ErrorCode.TOPIC_DELETION_DISABLED]
        assert await codes(client, by_id(created.topic_id)) == [ErrorCode.TOPIC_DELETION_DISABLED]
        # TOPIC_DELETION_DISABLED exists since version 3.
        assert await codes(client, by_name("t", version=2), 2) == [ErrorCode.INVALID_REQUEST]
        assert "t" in await topic_metadata(client)
