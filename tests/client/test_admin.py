"""The admin client against a real broker."""

import asyncio
import time
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from harness.daemon import Daemon, free_port
from ottla.client import (
    Admin,
    ClientConfig,
    ConnectionLostError,
    Consumer,
    DeadlineError,
    ErrorCode,
    KafkaError,
    OffsetAndMetadata,
    PartialError,
    Producer,
    ProducerRecord,
    TimeoutConfig,
    TopicPartition,
)
from ottla.client.admin import ConfigSource, NewTopic, PartitionLag


@pytest.fixture
def broker(ottla_session_broker):
    return ottla_session_broker


@pytest.fixture
async def admin(broker):
    async with Admin(broker.bootstrap) as made:
        yield made


@pytest.fixture
def name():
    return f"t-{uuid4().hex[:12]}"


@pytest.fixture
async def topic(admin, name):
    await admin.create_topic(name, partitions=2)
    return name


async def fill(broker, topic, *records):
    async with Producer(broker.bootstrap) as producer:
        await producer.send_many(topic, records)


async def error_of(coroutine):
    with pytest.raises(KafkaError) as caught:
        await coroutine
    return caught.value.code


async def test_topics_are_created_and_deleted(admin, name):
    made = await admin.create_topics(
        NewTopic(name, partitions=3, configs={"retention.ms": "1000"}),
        NewTopic(f"{name}-b", assignment=[[0], [0]]),
    )
    found = await admin.describe_topics(name, f"{name}-b")

    assert [one.partitions for one in made.values()] == [3, 2]
    assert found[name].id == made[name].id
    assert found[name].topic_partitions == tuple(
        TopicPartition(name, number) for number in range(3)
    )
    assert found[f"{name}-b"].replication_factor == 1
    assert [one.leader for one in found[name].partitions] == [0, 0, 0]
    assert found[name] in await admin.list_topics()

    await admin.delete_topics(name, f"{name}-b")
    assert not {name, f"{name}-b"} & {one.name for one in await admin.list_topics()}


async def test_describing_a_topic_does_not_create_it(admin, name):
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    started = time.monotonic()

    assert await error_of(admin.describe_topics(name)) is unknown
    assert await error_of(admin.end_offsets(name)) is unknown
    assert await error_of(admin.end_offsets(TopicPartition(name, 0))) is unknown
    assert await error_of(admin.describe_topic_configs(name)) is unknown
    assert await error_of(admin.delete_records({TopicPartition(name, 0): 0})) is unknown
    assert await error_of(admin.delete_topics(name)) is unknown

    assert name not in {one.name for one in await admin.list_topics()}
    assert time.monotonic() - started < 5  # unknown topics are not retried


async def test_one_item_raises_its_error_and_several_raise_a_partial_error(admin, topic):
    assert await error_of(admin.create_topic(topic)) is ErrorCode.TOPIC_ALREADY_EXISTS

    with pytest.raises(PartialError) as caught:
        await admin.create_topics(NewTopic(topic), NewTopic(f"{topic}-b"), NewTopic("a/b"))

    assert {thing: error.code for thing, error in caught.value.failed.items()} == {
        topic: ErrorCode.TOPIC_ALREADY_EXISTS,
        "a/b": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
    assert caught.value.done[f"{topic}-b"].name == f"{topic}-b"
    assert not caught.value.retriable
    assert str(caught.value).startswith("2 of 3 failed: ")

    with pytest.raises(ValueError, match="Duplicate topic name"):
        await admin.create_topics(NewTopic("a"), NewTopic("a"))


async def test_empty_requests_return_empty_results(admin):
    assert await admin.describe_topics() == {}
    assert await admin.end_offsets() == {}
    await admin.delete_topics()


async def test_validate_only_changes_nothing(admin, name):
    made = await admin.create_topic(name, partitions=2, validate_only=True)

    assert made.partitions == 2
    assert await error_of(admin.describe_topics(name)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_partitions_are_added(admin, topic):
    await admin.create_partitions(topic, 4, validate_only=True)
    assert len((await admin.describe_topics(topic))[topic].partitions) == 2

    await admin.create_partitions(topic, 4)

    assert len(await admin.end_offsets(topic)) == 4
    assert await error_of(admin.create_partitions(topic, 3)) is ErrorCode.INVALID_PARTITIONS


async def test_topic_configs(admin, topic):
    await admin.alter_topic_configs(topic, {"retention.ms": "5", "cleanup.policy": "compact"})
    await admin.alter_topic_configs(
        topic, unset=["retention.ms"], append={"cleanup.policy": "delete"}
    )
    await admin.alter_topic_configs(topic, {"retention.ms": "7"}, validate_only=True)

    found = (await admin.describe_topic_configs(topic))[topic]
    assert found["cleanup.policy"].value == "compact,delete"
    assert found["cleanup.policy"].source is ConfigSource.DYNAMIC_TOPIC
    assert (found["retention.ms"].type, found["retention.ms"].is_default) == ("long", True)
    assert found["retention.ms"].documentation
    only = await admin.describe_topic_configs(topic, keys=["cleanup.policy"])
    assert set(only[topic]) == {"cleanup.policy"}
    refused = await error_of(admin.alter_topic_configs(topic, {"nonsense": "1"}))
    assert refused is ErrorCode.INVALID_CONFIG
    with pytest.raises(ValueError, match="No config changes"):
        await admin.alter_topic_configs(topic)


async def test_broker_configs(admin):
    await admin.alter_broker_configs(0, {"group.max.size": "77"})
    found = (await admin.describe_broker_configs(0))[0]
    assert (found["group.max.size"].value, found["group.max.size"].source) == (
        "77",
        ConfigSource.DYNAMIC_BROKER,
    )
    assert found["broker.id"].is_read_only

    await admin.alter_broker_configs(0, unset=["group.max.size"])
    found = (await admin.describe_broker_configs(0, keys=["group.max.size"]))[0]
    assert found["group.max.size"].is_default
    await admin.alter_broker_configs(None, {"group.max.size": "78"})
    assert (await admin.describe_configs_of_all_brokers())["group.max.size"].value == "78"
    await admin.alter_broker_configs(None, unset=["group.max.size"])
    assert await admin.describe_configs_of_all_brokers() == {}

    assert await error_of(admin.describe_broker_configs(9)) is ErrorCode.RESOURCE_NOT_FOUND
    assert await error_of(admin.alter_broker_configs(9, {"a": "b"})) is ErrorCode.RESOURCE_NOT_FOUND


async def test_beginning_end_and_timestamp_offsets(admin, broker, topic):
    await fill(
        broker,
        topic,
        *(ProducerRecord(b"x", partition=0, timestamp=number * 1000) for number in range(5)),
    )
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)

    assert await admin.end_offsets(topic) == {first: 5, second: 0}
    assert await admin.beginning_offsets(first, topic) == {first: 0, second: 0}
    moment = datetime.fromtimestamp(2.5, UTC)
    found = await admin.offsets_for_times({first: moment, second: 0})
    assert (found[first], found[second]) == ((3, 3000), None)
    assert await admin.offsets_for_times({first: 4001}) == {first: None}
    with pytest.raises(ValueError, match="before 1970"):
        await admin.offsets_for_times({first: -1})
    out = await error_of(admin.end_offsets(TopicPartition(topic, 7)))
    assert out is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_records_are_deleted(admin, broker, topic):
    await fill(broker, topic, *(ProducerRecord(b"x", partition=number % 2) for number in range(8)))
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)

    assert await admin.delete_records({first: 3, second: None}) == {first: 3, second: 4}

    assert await admin.beginning_offsets(topic) == {first: 3, second: 4}
    assert await error_of(admin.delete_records({first: 99})) is ErrorCode.OFFSET_OUT_OF_RANGE


async def test_offsets_of_a_group_without_members(admin, broker, topic, name):
    group, first, second = f"g-{name}", TopicPartition(topic, 0), TopicPartition(topic, 1)
    await fill(broker, topic, *(ProducerRecord(b"x", partition=0) for _ in range(5)))

    await admin.alter_group_offsets(group, {first: 2, second: OffsetAndMetadata(0, "why")})

    assert await admin.list_group_offsets(group) == {
        first: OffsetAndMetadata(2),
        second: OffsetAndMetadata(0, "why"),
    }
    assert await admin.group_lag(group) == {
        first: PartitionLag(2, 5),
        second: PartitionLag(0, 0, "why"),
    }
    assert [one.lag for one in (await admin.group_lag(group)).values()] == [3, 0]
    (listed,) = [one for one in await admin.list_groups() if one.group_id == group]
    assert (listed.state, listed.coordinator) == ("Empty", 0)
    assert listed not in await admin.list_groups(states=["Stable"])

    await admin.delete_group_offsets(group, first)
    assert set(await admin.list_group_offsets(group)) == {second}
    await admin.delete_groups(group)
    assert await error_of(admin.describe_groups(group)) is ErrorCode.GROUP_ID_NOT_FOUND
    assert await error_of(admin.delete_groups(group)) is ErrorCode.GROUP_ID_NOT_FOUND
    assert await admin.list_group_offsets(group) == {}
    assert await admin.group_lag(group) == {}


async def test_lag_of_a_deleted_topic(admin, broker, topic, name):
    group, deleted = f"g-{name}", f"{name}-deleted"
    await admin.create_topic(deleted)
    tps = [TopicPartition(topic, 0), TopicPartition(topic, 9), TopicPartition(deleted, 0)]
    await admin.alter_group_offsets(group, {tps[0]: 0})

    ends = await admin._end_offsets_of_existing(tps[:2])
    assert ends == ({tps[0]: 0}, {})
    await admin.delete_topics(deleted)
    assert await admin._end_offsets_of_existing(tps[2:]) == ({}, {})


async def test_a_group_with_members_is_described_and_cannot_be_changed(admin, broker, topic, name):
    group = f"g-{name}"
    await fill(broker, topic, b"x")
    async with Consumer(broker.bootstrap, topic, group=group, instance_id="me") as consumer:
        await consumer.getone()

        found = (await admin.describe_groups(group))[group]
        (member,) = found.members
        assert (found.state, found.protocol_type, found.assignor) == ("Stable", "consumer", "range")
        assert (member.instance_id, member.host, member.topics) == ("me", "127.0.0.1", (topic,))
        assert member.assignment == (TopicPartition(topic, 0), TopicPartition(topic, 1))
        assert set(await admin.group_lag(group)) == set(member.assignment)

        tp = TopicPartition(topic, 0)
        for refused in (
            admin.alter_group_offsets(group, {tp: 0}),
            admin.delete_groups(group),
        ):
            with pytest.raises(KafkaError, match="has members: stop them first") as caught:
                await refused
            assert caught.value.code is ErrorCode.NON_EMPTY_GROUP


async def test_describe_cluster(admin, broker):
    found = await admin.describe_cluster()

    (one,) = found.brokers
    assert (f"{one.host}:{one.port}", one.id, one.is_controller) == (broker.bootstrap, 0, True)
    assert found.controller == 0
    versions = {one.name: one for one in await admin.api_versions()}
    assert versions["Metadata"].used == versions["Metadata"].last
    assert await admin.api_versions(0) == list(versions.values())
    assert await error_of(admin.api_versions(9)) is ErrorCode.RESOURCE_NOT_FOUND


async def test_the_admin_survives_a_broker_restart(tmp_path):
    with Daemon(tmp_path) as broker:
        async with Admin(broker.address) as admin:
            await admin.create_topic("orders")

            broker.kill()
            asking = asyncio.create_task(admin.end_offsets("orders"))
            await asyncio.sleep(0.2)
            await asyncio.to_thread(broker.start)

            assert await asking == {TopicPartition("orders", 0): 0}


async def test_an_unreachable_cluster_raises_one_error(name):
    patience = ClientConfig(timeouts=TimeoutConfig(operation=0.5))
    async with Admin(f"127.0.0.1:{free_port()}", client=patience) as admin:
        for coroutine in (
            admin.list_topics(),
            admin.describe_topics("a", "b"),
            admin.list_groups(),
        ):
            with pytest.raises(DeadlineError, match="Cannot connect") as caught:
                await coroutine
            assert isinstance(caught.value.__cause__, ConnectionLostError)
