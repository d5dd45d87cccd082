"""CreateTopics: created topics, and the error codes and messages of invalid ones."""

from uuid import UUID

import pytest

from harness.brokers import broker_and_client
from harness.requests import create_topic, topic_metadata
from ottla.protocol.api.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.registry import CREATE_TOPICS

NIL = UUID(int=0)


def a_topic(name, count=1, factor=1, *, configs=(), assignments=()):
    return CreatableTopic(
        name=name,
        num_partitions=count,
        replication_factor=factor,
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs],
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
            for index, brokers in assignments
        ],
    )


async def create_topics(client, *topics, version=7, validate_only=False):
    request = CreateTopicsRequest(topics=topics, validate_only=validate_only)
    return (await client.request(request, version)).topics


async def error_of(client, topic, **options):
    [result] = await create_topics(client, topic, **options)
    assert topic.name not in await topic_metadata(client)
    return result.error_code, result.error_message


@pytest.mark.parametrize("version", [*CREATE_TOPICS.versions])
async def test_topics_are_created_in_every_version(tmp_path, version):
    async with broker_and_client(tmp_path) as (_broker, client):
        one, two = await create_topics(
            client,
            a_topic("one"),
            a_topic("two", 3, -1, configs=[("retention.ms", "5")]),
            version=version,
        )

        assert (one.name, one.error_code, one.error_message) == ("one", 0, None)
        assert (two.name, two.error_code) == ("two", 0)
        topics = await topic_metadata(client)
        assert len(topics["two"].partitions) == 3
        if version >= 5:
            assert (two.num_partitions, two.replication_factor) == (3, 1)
        if version >= 7:
            assert two.topic_id == topics["two"].topic_id


async def test_the_response_has_all_configs_with_their_sources(tmp_path):
    async with broker_and_client(tmp_path, {"log.segment.bytes": "4096"}) as (_broker, client):
        created = await create_topic(client, "t", retention_ms=" 5 ")

        configs = {config.name: config for config in created.configs}
        assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("5", 1)
        assert (configs["segment.bytes"].value, configs["segment.bytes"].config_source) == (
            "4096",
            4,
        )
        assert (configs["cleanup.policy"].value, configs["cleanup.policy"].config_source) == (
            "delete",
            5,
        )
        assert not any(config.is_sensitive for config in created.configs)


async def test_minus_one_means_num_partitions_of_the_broker(tmp_path):
    async with broker_and_client(tmp_path, {"num.partitions": "4"}) as (_broker, client):
        for version in CREATE_TOPICS.versions:
            [result] = await create_topics(client, a_topic(f"t{version}", -1, -1), version=version)
            assert result.error_code == ErrorCode.NONE

        assert {len(topic.partitions) for topic in (await topic_metadata(client)).values()} == {4}


async def test_validate_only_creates_nothing(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        good, bad = await create_topics(
            client, a_topic("good", 2), a_topic("bad", 0), validate_only=True
        )

        assert (good.error_code, good.num_partitions, good.topic_id) == (0, 2, NIL)
        assert good.configs
        assert bad.error_code == ErrorCode.INVALID_PARTITIONS
        assert await topic_metadata(client) == {}
        assert [path.name for path in tmp_path.glob("good*")] == []


async def test_an_invalid_topic_fails_alone(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "old")

        results = await create_topics(
            client,
            a_topic("old"),
            a_topic("no/name"),
            a_topic("new"),
            a_topic("twice"),
            a_topic("twice", 2),
            a_topic("new.er"),
            a_topic("new_er"),
        )

        assert [(result.name, result.error_code) for result in results] == [
            ("old", ErrorCode.TOPIC_ALREADY_EXISTS),
            ("no/name", ErrorCode.INVALID_TOPIC_EXCEPTION),
            ("new", ErrorCode.NONE),
            ("twice", ErrorCode.INVALID_REQUEST),
            ("new.er", ErrorCode.NONE),
            ("new_er", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ]
        assert all(result.error_message for result in results if result.error_code)
        assert sorted(await topic_metadata(client)) == ["new", "new.er", "old"]


async def test_internal_topics_cannot_be_created(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        for name in ("__consumer_offsets", "__transaction_state", "__cluster_metadata"):
            code, message = await error_of(client, a_topic(name))
            assert code == ErrorCode.INVALID_TOPIC_EXCEPTION
            assert message == f"{name} is an internal topic"


@pytest.mark.parametrize("count", [0, -2, 21, 2**31 - 1])
async def test_an_invalid_partition_count_is_refused(tmp_path, count):
    async with broker_and_client(tmp_path, {"broker.max.partitions": "20"}) as (_broker, client):
        code, message = await error_of(client, a_topic("t", count))

        assert code == ErrorCode.INVALID_PARTITIONS
        assert str(count) in message


async def test_broker_max_partitions_counts_all_topics_of_a_request(tmp_path):
    async with broker_and_client(tmp_path, {"broker.max.partitions": "20"}) as (_broker, client):
        results = await create_topics(client, a_topic("a", 15), a_topic("b", 15), a_topic("c", 5))

        codes = [result.error_code for result in results]
        assert codes == [0, ErrorCode.INVALID_PARTITIONS, 0]


@pytest.mark.parametrize(
    ("policy", "factor", "advice"),
    [
        ("reject", 2, "; replication.factor.policy=clamp creates the topic with 1"),
        ("reject", 0, ""),
        ("clamp", 0, ""),
        ("clamp", -2, ""),
    ],
)
async def test_rejected_replication_factors(tmp_path, policy, factor, advice):
    async with broker_and_client(tmp_path, {"replication.factor.policy": policy}) as (
        _broker,
        client,
    ):
        code, message = await error_of(client, a_topic("t", 1, factor))

        assert code == ErrorCode.INVALID_REPLICATION_FACTOR
        assert message == f"Invalid replication factor {factor}: only 1 is supported{advice}"


async def test_a_replication_factor_is_clamped_with_one_log_line(tmp_path, caplog):
    caplog.set_level("INFO")
    configs = {"replication.factor.policy": "clamp", "default.replication.factor": "2"}
    async with broker_and_client(tmp_path, configs) as (broker, client):
        results = await create_topics(client, a_topic("three", 2, 3), a_topic("default", 1, -1))
        await topic_metadata(client, "auto", create=True)
        code, _message = await error_of(client, a_topic("x", -1, -1, assignments=[(0, [0, 1, 2])]))

        factors = [(result.error_code, result.replication_factor) for result in results]
        assert factors == [(0, 1), (0, 1)]
        assert [len(replicas) for replicas in broker.topics.image.topics["three"].replicas] == [
            1,
            1,
        ]
        assert code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        lines = [line for line in caplog.records if line.message == "replication factor clamped"]
        logged = [(line.topic, line.requested, line.replication_factor) for line in lines]
        assert logged == [("three", 3, 1), ("default", 2, 1), ("auto", 2, 1)]


async def test_replica_assignments_to_the_only_broker(tmp_path):
    async with broker_and_client(tmp_path, {"broker.id": "3"}) as (_broker, client):
        topic = a_topic("t", -1, -1, assignments=[(1, [3]), (0, [3])])
        [result] = await create_topics(client, topic)

        assert (result.error_code, result.num_partitions) == (ErrorCode.NONE, 2)

        for assignments in (
            [(0, [1])],
            [(0, [3, 4])],
            [(0, [])],
            [(0, [3]), (2, [3])],
            [(1, [3])],
            [(0, [3]), (0, [3])],
        ):
            code, message = await error_of(client, a_topic("u", -1, -1, assignments=assignments))
            assert code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
            assert message
        for count, factor in ((1, -1), (-1, 1), (1, 1)):
            topic = a_topic("u", count, factor, assignments=[(0, [3])])
            assert (await error_of(client, topic))[0] == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("configs", "code", "text"),
    [
        ([("retention.mss", "1")], ErrorCode.INVALID_CONFIG, "did you mean retention.ms?"),
        ([("retention.ms", "soon")], ErrorCode.INVALID_CONFIG, "'soon'"),
        ([("retention.ms", "-2")], ErrorCode.INVALID_CONFIG, "the minimum is -1"),
        ([("cleanup.policy", "burn")], ErrorCode.INVALID_CONFIG, "compact"),
        ([("min.insync.replicas", "0")], ErrorCode.INVALID_CONFIG, "the minimum is 1"),
        ([("retention.ms", None)], ErrorCode.INVALID_CONFIG, "no value"),
        (
            [("retention.ms", "1"), ("retention.ms", "2")],
            ErrorCode.INVALID_REQUEST,
            "Duplicate config",
        ),
        ([("x" * 32_000, "1")], ErrorCode.INVALID_CONFIG, "Unknown config"),
    ],
)
@pytest.mark.parametrize("version", [4, 7])
async def test_an_invalid_config_is_refused_with_a_message(tmp_path, configs, code, text, version):
    async with broker_and_client(tmp_path) as (_broker, client):
        result = await error_of(client, a_topic("t", configs=configs), version=version)

        assert result[0] == code
        assert text in result[1]


async def test_many_topics_are_created_by_one_request(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        results = await create_topics(client, *(a_topic(f"t{number}") for number in range(250)))

        assert {result.error_code for result in results} == {ErrorCode.NONE}
        assert len({result.topic_id for result in results}) == 250
        assert len(await topic_metadata(client)) == 250


async def test_a_disk_error_fails_the_creation_and_it_can_be_retried(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        in_the_way = tmp_path / "t-1"
        in_the_way.mkdir()

        code, message = await error_of(client, a_topic("t", 2))
        assert code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "exists, left by a deletion" in message
        assert not (tmp_path / "t-0").exists()

        in_the_way.rmdir()
        await create_topic(client, "t", 2)
