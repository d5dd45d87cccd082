"""The SDK and the command line against Apache Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from uuid import uuid4

import confluent_kafka
import pytest

from harness.apache_kafka import ApacheKafka
from harness.command import Command
from harness.waiting import eventually
from ottla.client import (
    AbortableTransactionError,
    Admin,
    BatchConfig,
    ClientConfig,
    Consumer,
    ErrorCode,
    GroupConfig,
    KafkaError,
    Producer,
    ProducerFencedError,
    ProducerRecord,
    RetryConfig,
    TopicPartition,
)
from ottla.client.config import TimeoutConfig

CLIENT = ClientConfig(
    retry=RetryConfig(backoff=0.02, max_backoff=0.2),
    timeouts=TimeoutConfig(connect=5, request=10, operation=60),
)
QUICK = GroupConfig(session_timeout=3.0, heartbeat_interval=0.1, rebalance_timeout=10.0)
TIMEOUT_SECONDS = 30


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    if reason := ApacheKafka.missing():
        pytest.skip(reason)
    with ApacheKafka(tmp_path_factory.mktemp("kafka")) as started:
        yield started


@pytest.fixture
async def admin(kafka: ApacheKafka) -> AsyncIterator[Admin]:
    async with Admin(kafka.address, client=CLIENT) as created:
        yield created


@pytest.fixture
async def topic(admin: Admin) -> str:
    """A topic with three partitions."""
    name = f"t-{uuid4().hex[:12]}"
    await admin.create_topic(name, partitions=3)
    await applied(lambda: is_known(admin, name, partitions=3))
    return name


async def applied(condition):
    """Wait until Kafka's broker has applied what its controller decided."""
    await eventually(condition, TIMEOUT_SECONDS)


async def is_known(admin, name, *, partitions):
    return [len(one.partitions) for one in await admin.list_topics() if one.name == name] == [
        partitions
    ]


async def is_gone(admin, name):
    return name not in {one.name for one in await admin.list_topics()}


async def has_retention(admin, name, milliseconds):
    return (await admin.describe_topic_configs(name))[name]["retention.ms"].value == milliseconds


def a_consumer(kafka, *topics, **configs):
    return Consumer(kafka.address, *topics, client=CLIENT, group_config=QUICK, **configs)


async def take(consumer, count):
    async with asyncio.timeout(TIMEOUT_SECONDS):
        return [await anext(consumer) for _ in range(count)]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_produced_records_are_consumed(kafka, topic, codec):
    async with Producer(kafka.address, client=CLIENT, compression=codec) as producer:
        metadata = await producer.send(topic, b"first", key=b"k", headers={"a": b"b", "null": None})
        records = [ProducerRecord(b"%d" % n, b"key %d" % (n % 50)) for n in range(5000)]
        written = await producer.send_many(topic, records)

    assert sum(part.record_count for part in written) == 5000
    async with a_consumer(kafka, topic) as consumer:
        consumed = await take(consumer, 5001)
    first = next(one for one in consumed if one.value == b"first")
    assert (first.partition, first.offset) == metadata[1:3]
    assert dict(first.headers) == {"a": b"b", "null": None}
    for key in {record.key for record in records}:
        mine = [one for one in consumed if one.key == key]
        assert [one.value for one in mine] == [one.value for one in records if one.key == key]
        assert len({one.partition for one in mine}) == 1


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "cooperative-sticky"])
async def test_a_group_shares_a_topic_and_resumes_at_its_commits(kafka, admin, topic, assignor):
    group, seen = f"g-{topic}", []

    async def read(consumer):
        async for record in consumer:
            seen.append((record.partition, record.offset))  # noqa: PERF401

    async with Producer(kafka.address, client=CLIENT) as producer:
        await producer.send_many(
            topic, [ProducerRecord(b"%d" % n, partition=n % 3) for n in range(300)]
        )
        first, second = (
            a_consumer(kafka, topic, group=group, assignors=[assignor], auto_commit=0.1)
            for _ in range(2)
        )
        await first.start()
        tasks = [asyncio.create_task(read(first))]
        await second.start()
        tasks.append(asyncio.create_task(read(second)))
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not (first.assignment and second.assignment and len(seen) >= 300):
                await asyncio.sleep(0.02)
            described = (await admin.describe_groups(group))[group]
            assert (described.state, described.assignor) == ("Stable", assignor)
            assert sorted(len(one.assignment) for one in described.members) == [1, 2]
            with pytest.raises(KafkaError) as error:
                await admin.alter_group_offsets(group, {TopicPartition(topic, 0): 0})
            assert error.value.code is ErrorCode.NON_EMPTY_GROUP
            await first.close()
            await producer.send_many(
                topic, [ProducerRecord(b"%d" % n, partition=n % 3) for n in range(30)]
            )
            while len(set(seen)) < 330:
                await asyncio.sleep(0.02)
        # Every record has been handled, and is committed by close().
        await asyncio.sleep(0.3)
        await second.close()
        await asyncio.gather(*tasks)

    assert set(seen) == {(number, at) for number in range(3) for at in range(110)}
    assert sum(one.lag or 0 for one in (await admin.group_lag(group)).values()) == 0


async def test_aborted_records_are_not_read_with_read_committed(kafka, topic, tmp_path):
    run = Command(kafka.address, str(tmp_path))

    def write():
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": kafka.address, "transactional.id": topic}
        )
        producer.init_transactions(TIMEOUT_SECONDS)
        for number in range(6):
            producer.begin_transaction()
            for at in range(3):
                producer.produce(topic, b"%d:%d" % (number, at), partition=0)
            producer.flush(TIMEOUT_SECONDS)
            if number % 2:
                producer.abort_transaction(TIMEOUT_SECONDS)
            else:
                producer.commit_transaction(TIMEOUT_SECONDS)
        return producer

    def leave_open():
        opened.begin_transaction()
        opened.produce(topic, b"not yet", partition=0)
        opened.flush(TIMEOUT_SECONDS)

    opened = await asyncio.to_thread(write)

    async with a_consumer(kafka, topic, isolation="read_committed") as consumer:
        values = [record.value for record in await take(consumer, 9)]
        assert await consumer.getone(0.5) is None
        assert await consumer.lag() == {TopicPartition(topic, n): 0 for n in range(3)}
    async with a_consumer(kafka, topic) as consumer:
        assert len(await take(consumer, 18)) == 18

    assert values == [b"%d:%d" % (number, at) for number in (0, 2, 4) for at in range(3)]
    # The command stops at the last stable offset, before an open transaction.
    await asyncio.to_thread(leave_open)
    shown = await asyncio.to_thread(run, "consume", topic, "--committed")
    assert shown.encode().splitlines() == values
    await asyncio.to_thread(opened.abort_transaction, TIMEOUT_SECONDS)


async def test_records_are_consumed_as_arrow_tables(kafka, topic):
    pytest.importorskip("pyarrow")
    async with Producer(kafka.address, client=CLIENT, compression="zstd") as producer:
        await producer.send_many(topic, [ProducerRecord(b"%d" % n, b"k") for n in range(1000)])

    values = []
    async with a_consumer(kafka, topic) as consumer, asyncio.timeout(TIMEOUT_SECONDS):
        async for table in consumer.arrow_batches():
            assert set(table.column("key").to_pylist()) == {b"k"}
            values += table.column("value").to_pylist()
            if len(values) == 1000:
                break

    assert values == [b"%d" % number for number in range(1000)]


async def test_admin_manages_topics_configs_and_offsets(kafka, admin, topic):
    tp, group = TopicPartition(topic, 0), f"g-{topic}"
    cluster = await admin.describe_cluster()
    assert [f"{one.host}:{one.port}" for one in cluster.brokers] == [kafka.address]
    assert {one.name for one in await admin.api_versions() if one.used is not None} >= {
        "Produce",
        "Fetch",
        "JoinGroup",
        "OffsetDelete",
    }

    await admin.create_partitions(topic, 4)
    await applied(lambda: is_known(admin, topic, partitions=4))
    await admin.alter_topic_configs(topic, {"retention.ms": "123000"})
    await applied(lambda: has_retention(admin, topic, "123000"))
    await admin.alter_topic_configs(topic, unset=["retention.ms"])
    await applied(lambda: has_retention(admin, topic, "604800000"))
    assert (await admin.describe_topic_configs(topic))[topic]["retention.ms"].is_default
    assert "log.retention.ms" in (await admin.describe_broker_configs(0))[0]
    await admin.alter_broker_configs(0, {"log.cleaner.threads": "2"})

    async with Producer(kafka.address, client=CLIENT) as producer:
        await producer.send_many(
            topic, [ProducerRecord(b"x", partition=0, timestamp=1000 + n) for n in range(10)]
        )
    assert (await admin.end_offsets(topic))[tp] == 10
    assert (await admin.offsets_for_times({tp: 1004}))[tp].offset == 4
    assert await admin.delete_records({tp: 3}) == {tp: 3}
    assert (await admin.beginning_offsets(tp))[tp] == 3

    await admin.alter_group_offsets(group, {tp: 7})
    assert (await admin.group_lag(group))[tp].lag == 3
    assert group in {one.group_id for one in await admin.list_groups(states=["Empty"])}
    await admin.delete_group_offsets(group, tp)
    assert await admin.list_group_offsets(group) == {}
    await admin.alter_group_offsets(group, {tp: 7})
    await admin.delete_groups(group)
    with pytest.raises(KafkaError) as error:
        await admin.describe_groups(group)
    assert error.value.code is ErrorCode.GROUP_ID_NOT_FOUND

    with pytest.raises(KafkaError) as exists:
        await admin.create_topic(topic)
    assert exists.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
    await admin.delete_topics(topic)
    await applied(lambda: is_gone(admin, topic))


async def test_the_command_line(kafka, topic, tmp_path):
    run = Command(kafka.address, str(tmp_path))

    def run_commands():
        results = run.rows("produce", topic, "-K", ":", stdin="a:1\nb:2\na:3\n")
        assert len(results) == 3
        assert sorted(row["value"] for row in run.rows("consume", topic)) == ["1", "2", "3"]
        run("consume", topic, "--group", f"g-{topic}", "--exit-at-end")
        (group,) = run.json("group", "describe", f"g-{topic}")
        assert (group["lag"], group["state"]) == (0, "Empty")
        (described,) = run.json("topic", "describe", topic)
        assert [one["leader"] for one in described["partitions"]] == [0, 0, 0]
        run("config", "set", "topic", topic, "retention.ms=1000")
        assert run.json("cluster", "describe")["controller"] == 0

    def is_set():
        return "retention.ms" in run("config", "describe", "topic", topic)

    await asyncio.to_thread(run_commands)
    await applied(lambda: asyncio.to_thread(is_set))
    await asyncio.to_thread(run, "topic", "delete", topic, "--yes")


async def test_a_broker_crash_loses_duplicates_and_reorders_nothing(kafka, topic):
    sent = [b"%06d" % number for number in range(3000)]
    batch = BatchConfig(batch_bytes=2000)
    async with (
        Producer(kafka.address, client=CLIENT, batch=batch) as producer,
        a_consumer(kafka, topic) as consumer,
    ):
        await producer.send(topic, b"warm", partition=0)
        assert (await take(consumer, 1))[0].value == b"warm"
        futures = []
        for number, value in enumerate(sent):
            futures.append(await producer.enqueue(topic, value, partition=0))
            if number == 1000:
                await asyncio.sleep(0.02)
                await asyncio.to_thread(kafka.kill)
                starting = asyncio.create_task(asyncio.to_thread(kafka.start))
        await starting
        results = await asyncio.gather(*futures)
        consumed = await take(consumer, len(sent))

    assert [metadata.offset for metadata in results] == list(range(1, 3001))
    assert [record.value for record in consumed] == sent


async def committed_values(kafka: ApacheKafka, *topics: str) -> list[bytes]:
    """Return what a read_committed consumer reads up to the last stable offset."""
    async with Consumer(
        kafka.address, *topics, isolation="read_committed", client=CLIENT
    ) as consumer:
        values = []
        while any((await consumer.lag()).values()):
            for records in (await consumer.getmany(timeout=0.2)).values():
                values += [record.value for record in records]
    return sorted(values)


async def test_transactions_commit_abort_and_fence(kafka, topic, admin):
    transactional_id = f"id-{topic}"
    async with (
        Producer(kafka.address, transactional_id=transactional_id, client=CLIENT) as producer,
        Producer(kafka.address, transactional_id=transactional_id, client=CLIENT) as newer,
        Consumer(
            kafka.address, topic, group=f"g-{topic}", auto_commit=None, client=CLIENT
        ) as consumer,
    ):
        epochs = []
        for number in range(3):
            async with producer.transaction():
                await producer.send_many(topic, [b"%d" % number] * 10)
            epochs.append(producer.producer_epoch)
        assert epochs[0] < epochs[1] < epochs[2]  # transaction.version 2
        for _ in range(2):
            await producer.begin_transaction()
            await producer.send(topic, b"aborted")
            await producer.abort_transaction()
        async with producer.transaction(consumer):
            values = []
            while len(values) < 30:
                for records in (await consumer.getmany(timeout=5)).values():
                    values += [record for record in records if record.value != b"aborted"]
            await producer.send(topic, b"copied")
        assert any((await consumer.committed()).values())

        await producer.begin_transaction()
        await producer.send(topic, b"fenced")
        await newer.start()
        with pytest.raises((ProducerFencedError, AbortableTransactionError)):
            await producer.commit_transaction()
        async with newer.transaction():
            await newer.send(topic, b"new")
        with pytest.raises(ProducerFencedError):
            await producer.abort_transaction()
        await newer.begin_transaction()
        await newer.send(topic, b"detached")
        detached = await newer.detach()
    for _ in range(2):
        await admin.end_transaction(*detached[:3], commit=True)
    expected = [b"%d" % number for number in range(3) for _ in range(10)]
    assert await committed_values(kafka, topic) == sorted(
        [*expected, b"copied", b"new", b"detached"]
    )


async def test_transactions_are_administered(kafka, topic, admin, tmp_path):
    transactional_id = f"id-{topic}"
    run = Command(kafka.address, str(tmp_path))
    async with Producer(
        kafka.address, transactional_id=transactional_id, client=CLIENT
    ) as open_one:
        await open_one.begin_transaction()
        await open_one.send(topic, b"open", partition=1)
        listed = await asyncio.to_thread(run.json, "txn", "list", "--state", "Ongoing")
        assert transactional_id in [row["transactional_id"] for row in listed]
        (row,) = await asyncio.to_thread(run.json, "txn", "describe", transactional_id)
        assert row["partitions"] == [{"topic": topic, "partition": 1}]
        (producer,) = (await admin.describe_producers(TopicPartition(topic, 1)))[
            TopicPartition(topic, 1)
        ]
        assert producer.producer_id == open_one.producer_id
        assert producer.transaction_start_offset == 0
        found = await asyncio.to_thread(run.json, "txn", "hanging", topic, "--older-than", "0s")
        assert found == []
        # A marker without the coordinator, as for a transaction that hangs.
        await admin.abort_transaction(TopicPartition(topic, 1), producer)
        (row,) = await asyncio.to_thread(run.json, "txn", "abort", transactional_id, "--yes")
        assert row["outcome"] == "aborted"
    assert await committed_values(kafka, topic) == []
