"""Metadata: what there is, and what comes to be by being asked for."""

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

NOT_ASKED = -(2**31)
NIL = UUID(int=0)


def by_name(*names):
    return [MetadataRequestTopic(name=name) for name in names]


def by_id(topic_id):
    return MetadataRequestTopic(topic_id=topic_id, name=None)


@pytest.mark.parametrize("version", [*METADATA.versions])
async def test_every_version_says_where_the_broker_is_and_who_leads(tmp_path, version):
    async with broker_and_client(tmp_path, {"broker.id": "7"}) as (broker, client):
        created = await create_topic(client, "t", 2)

        answer = await client.request(MetadataRequest(topics=by_name("t")), version)

        [node] = answer.brokers
        assert (node.node_id, f"{node.host}:{node.port}") == (7, broker.address)
        assert answer.controller_id == (7 if version >= 1 else -1)
        assert answer.cluster_id == (broker.cluster_id if version >= 2 else None)
        [topic] = answer.topics
        assert (topic.name, topic.error_code, topic.is_internal) == ("t", 0, False)
        assert topic.topic_id == (created.topic_id if version >= 10 else NIL)
        assert [
            (part.partition_index, part.leader_id, part.leader_epoch, part.replica_nodes)
            for part in topic.partitions
        ] == [(index, 7, 0 if version >= 7 else -1, (7,)) for index in range(2)]
        assert all(part.isr_nodes == (7,) for part in topic.partitions)
        assert all(part.offline_replicas == () for part in topic.partitions)


async def test_null_asks_for_all_topics_and_an_empty_list_for_none(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        for name in ("a", "b"):
            await create_topic(client, name)

        for version in METADATA.versions:
            if version >= 1:
                all_topics = await client.request(MetadataRequest(topics=None), version)
                assert [topic.name for topic in all_topics.topics] == ["a", "b"]
            none = await client.request(MetadataRequest(topics=[]), version)
            expected = [] if version >= 1 else ["a", "b"]  # version 0 has no null
            assert [topic.name for topic in none.topics] == expected
            assert none.brokers


async def test_each_topic_that_is_asked_for_is_answered_once_and_in_order(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "there")
        asked = by_name("missing", "there", "not a name", "..", "", "x" * 250, "there", "missing")

        answer = await client.request(
            MetadataRequest(topics=asked, allow_auto_topic_creation=False)
        )

        assert [(topic.name, topic.error_code) for topic in answer.topics] == [
            ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("there", ErrorCode.NONE),
            ("not a name", ErrorCode.INVALID_TOPIC_EXCEPTION),
            ("..", ErrorCode.INVALID_TOPIC_EXCEPTION),
            ("", ErrorCode.INVALID_TOPIC_EXCEPTION),
            ("x" * 250, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ]


@pytest.mark.parametrize("version", [*METADATA.versions])
async def test_a_missing_topic_is_created_and_answered_without_an_error(tmp_path, version):
    async with broker_and_client(tmp_path, {"num.partitions": "3"}) as (_broker, client):
        topic = (await topic_metadata(client, "new", version=version, create=True))["new"]

        assert topic.error_code == ErrorCode.NONE
        assert [part.leader_id for part in topic.partitions] == [0, 0, 0]
        assert list(await topic_metadata(client)) == ["new"]


async def test_nothing_is_created_if_the_client_or_the_broker_does_not_want_it(tmp_path):
    async with broker_and_client(tmp_path / "a") as (_broker, client):
        topics = await topic_metadata(client, "new", create=False)
        assert topics["new"].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await topic_metadata(client) == {}

    settings = {"auto.create.topics.enable": "false"}
    async with broker_and_client(tmp_path / "b", settings) as (_broker, client):
        for version in METADATA.versions:
            topics = await topic_metadata(client, "new", version=version, create=True)
            assert topics["new"].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await topic_metadata(client) == {}


async def test_names_that_cannot_be_are_not_created_and_harm_no_other(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "a.b")

        topics = await topic_metadata(client, "a_b", "c.d", "c_d", "e f", "good", create=True)

        assert {name: topic.error_code for name, topic in topics.items()} == {
            "a_b": ErrorCode.INVALID_TOPIC_EXCEPTION,  # it looks like a.b in metrics
            "c.d": ErrorCode.NONE,
            "c_d": ErrorCode.INVALID_TOPIC_EXCEPTION,
            "e f": ErrorCode.INVALID_TOPIC_EXCEPTION,
            "good": ErrorCode.NONE,
        }
        assert sorted(await topic_metadata(client)) == ["a.b", "c.d", "good"]


async def test_the_broker_s_own_topics_do_not_come_to_be_by_being_asked_for(tmp_path):
    own = ("__consumer_offsets", "__transaction_state", "__cluster_metadata")
    async with broker_and_client(tmp_path) as (broker, client):
        topics = await topic_metadata(client, *own, create=True)
        assert {topic.error_code for topic in topics.values()} == {
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        }

        # The broker makes them when there is need; then they are internal.
        await broker.controller.create_topics(
            [broker.controller.plan_topic("__consumer_offsets", 2, {})]
        )
        topics = await topic_metadata(client)
        assert list(topics) == ["__consumer_offsets"]
        assert topics["__consumer_offsets"].is_internal


async def test_no_more_topics_are_created_than_there_may_be_partitions(tmp_path):
    settings = {"broker.max.partitions": "5", "num.partitions": "2"}
    async with broker_and_client(tmp_path, settings) as (_broker, client):
        topics = await topic_metadata(client, "a", "b", "c", create=True)

        codes = [topic.error_code for topic in topics.values()]
        assert codes == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.INVALID_PARTITIONS]


async def test_clients_that_want_the_same_new_topic_at_once_get_the_same_one(tmp_path):
    async with broker_and_client(tmp_path) as (broker, one), connect(broker.address) as other:
        answers = await asyncio.gather(
            topic_metadata(one, "new", "mine", create=True),
            topic_metadata(other, "new", "theirs", create=True),
        )

        first, second = (answer["new"] for answer in answers)
        assert first.error_code == second.error_code == ErrorCode.NONE
        assert first.topic_id == second.topic_id
        assert sorted(await topic_metadata(one)) == ["mine", "new", "theirs"]


async def test_a_topic_is_found_by_its_id(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        created = await create_topic(client, "t")
        unknown = uuid4()

        asked = [by_id(created.topic_id), by_id(unknown), *by_name("t")]
        answer = await client.request(MetadataRequest(topics=asked), 12)

        assert [(topic.error_code, topic.name, topic.topic_id) for topic in answer.topics] == [
            (ErrorCode.NONE, "t", created.topic_id),
            (ErrorCode.UNKNOWN_TOPIC_ID, None, unknown),
            (ErrorCode.NONE, "t", created.topic_id),
        ]


async def test_before_version_12_there_is_no_asking_by_id(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        created = await create_topic(client, "t")

        for version in (10, 11):
            asked = [by_id(created.topic_id), *by_name("t")]
            answer = await client.request(MetadataRequest(topics=asked), version)
            assert [topic.error_code for topic in answer.topics] == [ErrorCode.INVALID_REQUEST, 0]

        answer = await client.request(MetadataRequest(topics=[by_id(NIL)]), 12)  # neither nor
        assert answer.topics[0].error_code == ErrorCode.INVALID_REQUEST


async def test_who_asks_what_is_allowed_is_told_that_all_is(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t")
        asking = MetadataRequest(
            topics=by_name("t"),
            include_topic_authorized_operations=True,
            include_cluster_authorized_operations=True,
        )

        answer = await client.request(asking, 10)
        # Kafka's numbers: read 3 … describe 8, cluster action 9, configs 10 and 11, idempotence 12.
        assert answer.topics[0].topic_authorized_operations == sum(
            1 << bit for bit in (3, 4, 5, 6, 7, 8, 10, 11)
        )
        assert answer.cluster_authorized_operations == sum(
            1 << bit for bit in (5, 7, 8, 9, 10, 11, 12)
        )

        answer = await client.request(MetadataRequest(topics=by_name("t")), 10)
        assert answer.topics[0].topic_authorized_operations == NOT_ASKED
        assert answer.cluster_authorized_operations == NOT_ASKED


async def test_a_partition_whose_log_cannot_be_opened_has_no_leader(tmp_path):
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


async def test_clients_are_told_the_advertised_address(tmp_path):
    settings = {"advertised.listeners": "PLAINTEXT://ottla.example:9999"}
    async with broker_and_client(tmp_path, settings) as (_broker, client):
        answer = await client.request(MetadataRequest(topics=[]))

        assert [(node.host, node.port) for node in answer.brokers] == [("ottla.example", 9999)]


async def test_many_topics_can_be_asked_for_and_created_at_once(tmp_path):
    names = [f"t{number}" for number in range(250)]
    async with broker_and_client(tmp_path) as (_broker, client):
        topics = await topic_metadata(client, *names, create=True)

        assert list(topics) == names
        assert {topic.error_code for topic in topics.values()} == {ErrorCode.NONE}
