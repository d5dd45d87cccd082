"""Fetch and Produce with topic ids, from version 13 on: unknown ids, sessions, replica state."""

from uuid import uuid4

import pytest

from harness.brokers import a_broker, add_topic, partition_of
from harness.logs import a_batch
from harness.wire import (
    connect,
    error_codes,
    fetch_request,
    fetched_partitions,
    offsets_of,
    produce_request,
    produce_results,
)
from ottla.protocol.api.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    ReplicaState,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.primitives import NIL_UUID

FETCH_VERSIONS = pytest.mark.parametrize("version", range(13, 19))
NEWEST = 18
LONG_MS = 9000
UNKNOWN_ID = ErrorCode.UNKNOWN_TOPIC_ID
UNKNOWN_PARTITION = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def fetch_by_id(*topics, **fields):
    """Return a Fetch of partitions by topic id: (id, index, offset) for each."""
    return FetchRequest(
        topics=[
            FetchTopic(
                topic_id=topic_id,
                partitions=[
                    FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=10**6)
                ],
            )
            for topic_id, index, offset in topics
        ],
        **fields,
    )


def id_of(broker, topic="t"):
    return broker.topics.image.topics[topic].id


async def append(client, topic="t", index=0):
    assert error_codes(
        await client.request(produce_request(a_batch(), topic=topic, partition=index), 12)
    ) == [0]


async def delete_topic(broker, name):
    await broker.controller.delete_topic(broker.topics.image.topics[name])


@FETCH_VERSIONS
async def test_a_fetch_by_id_returns_records_and_echoes_the_id(tmp_path, version):
    async with a_broker(tmp_path, {"t": 2}) as broker, connect(broker) as client:
        await append(client, index=1)

        response = await client.request(fetch_by_id((id_of(broker), 1, 0)), version)

        assert [topic.topic_id for topic in response.responses] == [id_of(broker)]
        assert [offsets_of(data) for data in fetched_partitions(response)] == [[0]]


@FETCH_VERSIONS
async def test_an_unknown_id_fails_alone_without_waiting(tmp_path, version):
    unknown = uuid4()
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await append(client)
        request = fetch_by_id(
            (unknown, 0, 0),
            (id_of(broker), 0, 0),
            (id_of(broker), 77, 0),
            (NIL_UUID, 0, 0),
            max_wait_ms=LONG_MS,
            min_bytes=10**6,
        )

        response = await client.request(request, version)

        assert [
            (topic.topic_id, [data.error_code for data in topic.partitions])
            for topic in response.responses
        ] == [
            (unknown, [UNKNOWN_ID]),
            (id_of(broker), [0, UNKNOWN_PARTITION]),
            (NIL_UUID, [UNKNOWN_ID]),
        ]
        failed = fetched_partitions(response)[0]
        assert (failed.high_watermark, failed.records, failed.aborted_transactions) == (-1, b"", [])


async def test_the_id_of_a_deleted_topic_is_unknown_even_if_the_name_exists_again(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await append(client)
        old_id = id_of(broker)
        await delete_topic(broker, "t")
        await add_topic(broker, "t", 1)

        assert error_codes(await client.request(fetch_by_id((old_id, 0, 0)), NEWEST)) == [
            UNKNOWN_ID
        ]
        produced = produce_request(a_batch())
        produced.topic_data[0].topic_id = old_id
        response = await client.request(produced, 13)
        assert error_codes(response) == [UNKNOWN_ID]
        assert response.responses[0].topic_id == old_id
        assert partition_of(broker).log.end_offset == 0


async def test_a_long_poll_by_id_is_woken_by_an_append(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        client.send(fetch_by_id((id_of(broker), 0, 0), max_wait_ms=LONG_MS, min_bytes=1), NEWEST)
        assert await client.receives_nothing()

        async with connect(broker) as producer:
            await append(producer)

        response = await client.response()
        assert response.responses[0].topic_id == id_of(broker)
        assert offsets_of(fetched_partitions(response)[0]) == [0]


async def test_deleting_a_topic_ends_its_long_polls_by_id(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        client.send(fetch_by_id((id_of(broker), 0, 0), max_wait_ms=LONG_MS, min_bytes=1), NEWEST)
        assert await client.receives_nothing()

        await delete_topic(broker, "t")

        assert error_codes(await client.response()) == [UNKNOWN_ID]


# Sessions.


async def open_session(client, *topics, version=NEWEST):
    response = await client.request(fetch_by_id(*topics, session_epoch=0), version)
    assert response.session_id > 0
    return response.session_id, response


async def test_a_session_by_id_returns_what_changed_and_forgets_by_id(tmp_path):
    async with a_broker(tmp_path, {"t": 1, "u": 1}) as broker, connect(broker) as client:
        t, u = id_of(broker, "t"), id_of(broker, "u")
        session_id, first = await open_session(client, (t, 0, 0), (u, 0, 0))
        await append(client, "u")

        second = await client.request(FetchRequest(session_id=session_id, session_epoch=1), NEWEST)
        forget = FetchRequest(
            session_id=session_id,
            session_epoch=2,
            forgotten_topics_data=[ForgottenTopic(topic_id=u, partitions=[0])],
        )
        third = await client.request(forget, NEWEST)

        assert [topic.topic_id for topic in first.responses] == [t, u]
        assert [topic.topic_id for topic in second.responses] == [u]
        assert [offsets_of(data) for data in fetched_partitions(second)] == [[0]]
        assert list(third.responses) == []
        assert broker.fetch_sessions.size_bytes() > 0


@pytest.mark.parametrize(("opened", "continued"), [(12, 13), (13, 12), (7, 18), (18, 11)])
async def test_a_session_does_not_mix_names_and_ids(tmp_path, opened, continued):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        request = fetch_request(0, session_epoch=0)
        session_id = (await client.request(request, opened)).session_id
        assert session_id > 0

        mixed = await client.request(
            FetchRequest(session_id=session_id, session_epoch=1), continued
        )
        wrong_epoch = await client.request(
            FetchRequest(session_id=session_id, session_epoch=9), continued
        )
        resumed = await client.request(FetchRequest(session_id=session_id, session_epoch=1), opened)

        assert (mixed.error_code, list(mixed.responses)) == (
            ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
            [],
        )
        assert wrong_epoch.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        assert resumed.error_code == 0


async def test_a_session_tells_deleted_recreated_and_unknown_ids_apart(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        old_id, unknown = id_of(broker), uuid4()
        session_id, _ = await open_session(client, (old_id, 0, 0), (unknown, 0, 0))

        await delete_topic(broker, "t")
        deleted = await client.request(FetchRequest(session_id=session_id, session_epoch=1), NEWEST)
        await add_topic(broker, "t", 1)
        recreated = [
            await client.request(FetchRequest(session_id=session_id, session_epoch=epoch), NEWEST)
            for epoch in (2, 3)
        ]

        assert error_codes(deleted) == [UNKNOWN_PARTITION, UNKNOWN_ID]
        inconsistent = [ErrorCode.INCONSISTENT_TOPIC_ID, UNKNOWN_ID]
        assert [error_codes(each) for each in recreated] == [inconsistent] * 2


# Replica state and endpoints.


@pytest.mark.parametrize(("replica_id", "code"), [(-1, 0), (-2, 0), (0, 31), (5, 31)])
async def test_a_fetch_with_replica_state_is_refused(tmp_path, replica_id, code):
    state = ReplicaState(replica_id=replica_id, replica_epoch=7)
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        response = await client.request(
            fetch_by_id((id_of(broker), 0, 0), replica_state=state), NEWEST
        )

        assert error_codes(response) == [code]
        assert response.responses[0].topic_id == id_of(broker)


async def test_the_follower_fields_of_a_consumer_are_ignored(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await append(client)
        request = fetch_request(0, 0)
        for partition in request.topics[0].partitions:
            partition.replica_directory_id = uuid4()
            partition.high_watermark = 0

        response = await client.request(request, NEWEST)

        assert [offsets_of(data) for data in fetched_partitions(response)] == [[0], []]


@pytest.mark.parametrize("version", [12, 15, 16, 18])
async def test_a_fenced_leader_epoch_comes_with_the_current_leader_from_16_on(tmp_path, version):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        response = await client.request(fetch_request(0, epoch=-2), version)

        (data,) = fetched_partitions(response)
        assert data.error_code == ErrorCode.FENCED_LEADER_EPOCH
        if version < 16:
            assert data.current_leader.leader_id == -1
            assert list(response.node_endpoints) == []
        else:
            leader = data.current_leader
            assert (leader.leader_id, leader.leader_epoch) == (0, broker.topics.leader_epoch)
            (node,) = response.node_endpoints
            assert (node.node_id, f"{node.host}:{node.port}") == (0, broker.address)


# Produce.


async def test_produce_by_id_appends_and_echoes_the_id(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        response = await client.request(produce_request(a_batch(2), a_batch(1)), 13)

        assert [topic.topic_id for topic in response.responses] == [id_of(broker)]
        assert [(each.error_code, each.base_offset) for each in produce_results(response)] == [
            (0, 0),
            (0, 0),
        ]
        assert partition_of(broker).log.end_offset == 2


async def test_an_unknown_id_of_a_produce_fails_alone(tmp_path):
    unknown = uuid4()
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        request = produce_request(a_batch())
        other = produce_request(a_batch(), topic="").topic_data[0]
        other.topic_id = unknown
        request.topic_data = [other, *request.topic_data]

        response = await client.request(request, 13)

        assert [topic.topic_id for topic in response.responses] == [unknown, id_of(broker)]
        assert [(each.error_code, each.base_offset) for each in produce_results(response)] == [
            (UNKNOWN_ID, -1),
            (0, 0),
        ]
