"""Metadata: brokers, topics and leaders, and the auto-creation of topics."""

import asyncio
import shutil
from uuid import UUID, uuid4

import pytest

from harness.brokers import broker_and_client
from harness.requests import create_topic, topic_metadata
from harness.wire import connect
from ottla.protocol.api.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.errors import ErrorCode
from ottla.protocol.registry import METADATA

NOT_REQUESTED = -(2**31)
NIL = UUID(int=0)


def by_name(*names):
    return [MetadataRequestTopic(name=name) for name in names]


def by_id(topic_id):
    return MetadataRequestTopic(topic_id=topic_id, name=None)


@pytest.mark.parametrize("version", [*METADATA.versions])
async def test_brokers_and_leaders_in_every_version(tmp_path, version):
    async with broker_and_client(tmp_path, {"broker.id": "7"}) as (broker, client):
        created = await create_topic(client, "t", 2)

        response = await client.request(MetadataRequest(topics=by_name("t")), version)

        [node] = response.brokers
        assert (node.node_id, f"{node.host}:{node.port}") == (7, broker.address)
        assert response.controller_id == (7 if version >= 1 else -1)
        assert response.cluster_id == (broker.cluster_id if version >= 2 else None)
        [topic] = response.topics
        assert (topic.name, topic.error_code, topic.is_internal) == ("t", 0, False)
        assert topic.topic_id == (created.topic_id if version >= 10 else NIL)
        assert [
            (part.partition_index, part.leader_id, part.leader_epoch, part.replica_nodes)
            for part in topic.partitions
        ] == [(index, 7, 0 if version >= 7 else -1, (7,)) for index in range(2)]
        assert all(part.isr_nodes == (7,) for part in topic.partitions)
        assert all(part.offline_replicas == () for part in topic.partitions)


async def test_null_topics_means_all_and_an_empty_list_none(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        for name in ("a", "b"):
            await create_topic(client, name)

        for version in METADATA.versions:
            if version >= 1:
                all_topics = await client.request(MetadataRequest(topics=None), version)
                assert [topic.name for topic in all_topics.topics] == ["a", "b"]
            none = await client.request(MetadataRequest(topics=[]), version)
            expected = [] if version >= 1 else ["a", "b"]  # In version 0 an empty list means all.
            assert [topic.name for topic in none.topics] == expected
            assert none.brokers


async def test_topics_are_deduplicated_in_request_order(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "there")
        topics = by_name("missing", "there", "not a name", "..", "", "x" * 250, "there", "missing")

        response = await client.request(
            MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        )

        assert [(topic.name, topic.error_code) for topic in response.topics] == [
            ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("there", ErrorCode.NONE),
            ("not a name", ErrorCode.INVALID_TOPIC_EXCEPTION),
            ("..", ErrorCode.INVALID_TOPIC_EXCEPTION),
            ("", ErrorCode.INVALID_TOPIC_EXCEPTION),
            ("x" * 250, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ]


@pytest.mark.parametrize("version", [*METADATA.versions])
async def test_an_auto_created_topic_is_in_the_response(tmp_path, version):
    async with broker_and_client(tmp_path, {"num.partitions": "3"}) as (_broker, client):
        topic = (await topic_metadata(client, "new", version=version, create=True))["new"]

        assert topic.error_code == ErrorCode.NONE
        assert [part.leader_id for part in topic.partitions] == [0, 0, 0]
        assert list(await topic_metadata(client)) == ["new"]


async def test_auto_creation_needs_both_the_client_and_the_broker(tmp_path):
    async with broker_and_client(tmp_path / "a") as (_broker, client):
        topics = await topic_metadata(client, "new", create=False)
        assert topics["new"].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await topic_metadata(client) == {}

    configs = {"auto.create.topics.enable": "false"}
    async with broker_and_client(tmp_path / "b", configs) as (_broker, client):
        for version in METADATA.versions:
            topics = await topic_metadata(client, "new", version=version, create=True)
            assert topics["new"].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await topic_metadata(client) == {}


async def test_an_invalid_topic_name_is_not_auto_created_and_fails_alone(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "a.b")

        topics = await topic_metadata(client, "a_b", "c.d", "c_d", "e f", "good", create=True)

        assert {name: topic.error_code for name, topic in topics.items()} == {
            "a_b": ErrorCode.INVALID_TOPIC_EXCEPTION,  # Collides with a.b in metric names.
            "c.d": ErrorCode.NONE,
            "c_d": ErrorCode.INVALID_TOPIC_EXCEPTION,
            "e f": ErrorCode.INVALID_TOPIC_EXCEPTION,
            "good": ErrorCode.NONE,
        }
        assert sorted(await topic_metadata(client)) == ["a.b", "c.d", "good"]


async def test_internal_topics_are_not_auto_created(tmp_path):
    internal = ("__consumer_offsets", "__transaction_state", "__cluster_metadata")
    async with broker_and_client(tmp_path) as (broker, client):
        topics = await topic_metadata(client, *internal, create=True)
        assert {topic.error_code for topic in topics.values()} == {
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        }

        # The broker creates them when needed, as internal topics.
        await broker.controller.create_topics(
            [broker.controller.plan_topic("__consumer_offsets", 2, {})]
        )
        topics = await topic_metadata(client)
        assert list(topics) == ["__consumer_offsets"]
        assert topics["__consumer_offsets"].is_internal


async def test_auto_creation_respects_broker_max_partitions(tmp_path):
    configs = {"broker.max.partitions": "5", "num.partitions": "2"}
    async with broker_and_client(tmp_path, configs) as (_broker, client):
        topics = await topic_metadata(client, "a", "b", "c", create=True)

        codes = [topic.error_code for topic in topics.values()]
        assert codes == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.INVALID_PARTITIONS]


async def test_concurrent_auto_creation_creates_one_topic(tmp_path):
    async with (
        broker_and_client(tmp_path) as (broker, client),
        connect(broker.address) as other_client,
    ):
        answers = await asyncio.gather(
            topic_metadata(client, "new", "mine", create=True),
            topic_metadata(other_client, "new", "theirs", create=True),
        )

        first, second = (response["new"] for response in answers)
        assert first.error_code == second.error_code == ErrorCode.NONE
        assert first.topic_id == second.topic_id
        assert sorted(await topic_metadata(client)) == ["mine", "new", "theirs"]


async def test_a_topic_is_requested_by_its_id(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        created = await create_topic(client, "t")
        unknown = uuid4()

        topics = [by_id(created.topic_id), by_id(unknown), *by_name("t")]
        response = await client.request(MetadataRequest(topics=topics), 12)

        assert [(topic.error_code, topic.name, topic.topic_id) for topic in response.topics] == [
            (ErrorCode.NONE, "t", created.topic_id),
            (ErrorCode.UNKNOWN_TOPIC_ID, None, unknown),
            (ErrorCode.NONE, "t", created.topic_id),
        ]


async def test_topic_ids_are_invalid_before_version_12(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        created = await create_topic(client, "t")

        for version in (10, 11):
            topics = [by_id(created.topic_id), *by_name("t")]
            response = await client.request(MetadataRequest(topics=topics), version)
            assert [topic.error_code for topic in response.topics] == [ErrorCode.INVALID_REQUEST, 0]

        response = await client.request(
            MetadataRequest(topics=[by_id(NIL)]), 12
        )  # Neither name nor id.
        assert response.topics[0].error_code == ErrorCode.INVALID_REQUEST


async def test_authorized_operations_are_complete_on_request(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t")
        request = MetadataRequest(
            topics=by_name("t"),
            include_topic_authorized_operations=True,
            include_cluster_authorized_operations=True,
        )

        response = await client.request(request, 10)
        # Bits of Kafka's AclOperation; CLUSTER_ACTION is 9, IDEMPOTENT_WRITE 12.
        assert response.topics[0].topic_authorized_operations == sum(
            1 << bit for bit in (3, 4, 5, 6, 7, 8, 10, 11)
        )
        assert response.cluster_authorized_operations == sum(
            1 << bit for bit in (5, 7, 8, 9, 10, 11, 12)
        )

        response = await client.request(MetadataRequest(topics=by_name("t")), 10)
        assert response.topics[0].topic_authorized_operations == NOT_REQUESTED
        assert response.cluster_authorized_operations == NOT_REQUESTED


async def test_a_partition_with_an_offline_log_has_no_leader(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t", 2)
    log_file = tmp_path / "t-1" / f"{0:020d}.log"
    log_file.unlink()
    log_file.mkdir()

    async with broker_and_client(tmp_path) as (_broker, client):
        good, bad = (await topic_metadata(client, "t"))["t"].partitions

        assert (good.error_code, good.leader_id) == (ErrorCode.NONE, 0)
        assert (bad.error_code, bad.leader_id) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
        assert (bad.replica_nodes, bad.isr_nodes, bad.offline_replicas) == ((0,), (), (0,))
    shutil.rmtree(log_file)


async def test_the_advertised_listener_is_returned(tmp_path):
    configs = {"advertised.listeners": "PLAINTEXT://ottla.example:9999"}
    async with broker_and_client(tmp_path, configs) as (_broker, client):
        response = await client.request(MetadataRequest(topics=[]))

        assert [(node.host, node.port) for node in response.brokers] == [("ottla.example", 9999)]


async def test_many_topics_are_auto_created_by_one_request(tmp_path):
    names = [f"t{number}" for number in range(250)]
    configs = {"auto.create.topics.max.per.second": "250"}
    async with broker_and_client(tmp_path, configs) as (_broker, client):
        topics = await topic_metadata(client, *names, create=True)

        assert list(topics) == names
        assert {topic.error_code for topic in topics.values()} == {ErrorCode.NONE}
