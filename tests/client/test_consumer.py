"""The consumer without a group, against a real broker."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator

import pytest
from confluent_kafka import Producer

from harness.brokers import add_topic, partition_of
from harness.consumer_stage import (
    CLIENT,
    T0,
    T1,
    a_consumer,
    a_quick_broker,
    add_partitions,
    drain,
    fill,
    offsets_of,
    take,
)
from harness.daemon import Daemon
from harness.logs import NOW, a_batch
from harness.waiting import eventually
from ottla.broker import Broker
from ottla.client.config import ClientConfig, TimeoutConfig
from ottla.client.consumer.config import FetchConfig
from ottla.client.consumer.consumer import Consumer
from ottla.client.consumer.fetched_data import BadRecordError
from ottla.client.errors import (
    ClosedError,
    ConnectionLostError,
    ConsumerError,
    DeadlineError,
    ErrorCode,
    KafkaError,
    SerializationError,
)
from ottla.client.types import ConsumerRecord, OffsetAndTimestamp, TopicPartition
from ottla.protocol.batch import Record as StoredRecord
from ottla.protocol.batch import build_batch


@pytest.fixture
async def broker(tmp_path) -> AsyncIterator[Broker]:
    async with a_quick_broker(tmp_path, {"t": 2}) as started:
        yield started


async def test_records_are_read_in_partition_order(broker):
    await fill(broker, T0, *(a_batch(7) for _ in range(10)))
    await fill(broker, T1, *(a_batch(1) for _ in range(30)))

    async with a_consumer(broker, "t") as consumer:
        records = await take(consumer, 100)
        assert await consumer.getone(0.05) is None

    assert offsets_of(records, 0) == list(range(70))
    assert offsets_of(records, 1) == list(range(30))
    assert records[0] == ConsumerRecord("t", 0, 0, NOW, b"key 0", b"value", (), 0)


async def test_new_records_are_delivered_without_delay(broker):
    async with a_consumer(broker, "t", fetch=FetchConfig(max_wait=5)) as consumer:
        for number in range(3):
            reading = asyncio.create_task(consumer.getone())
            await fill(broker, T0, a_batch(1))
            async with asyncio.timeout(2):
                assert (await reading).offset == number


async def test_headers_nulls_and_timestamps_are_read(broker):
    stored = [
        StoredRecord(0, NOW, None, b"", (("h", b"1"), ("h", None))),
        StoredRecord(1, NOW + 5, b"", None, ()),
    ]
    await fill(broker, T0, build_batch(stored))

    async with a_consumer(broker, "t") as consumer:
        records = await take(consumer, 2)

    assert records == [
        ConsumerRecord("t", 0, 0, NOW, None, b"", (("h", b"1"), ("h", None)), 0),
        ConsumerRecord("t", 0, 1, NOW + 5, b"", None, (), 0),
    ]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_batches_compressed_by_confluent_are_read(broker, codec):
    producer = Producer({"bootstrap.servers": broker.address, "compression.type": codec})
    for number in range(300):
        producer.produce("t", b"%d " % number * 10, partition=0)
    await asyncio.to_thread(producer.flush, 10)

    async with a_consumer(broker, "t") as consumer:
        values = [record.value for record in await take(consumer, 300)]

    assert values == [b"%d " % number * 10 for number in range(300)]


# In other shapes.


async def test_batches_hold_one_partition_and_at_most_max_records(broker):
    await fill(broker, T0, a_batch(70))
    await fill(broker, T1, a_batch(25))

    seen = []
    async with a_consumer(broker, "t") as consumer:
        async for batch in consumer.batches(max_records=30):
            assert len({record.partition for record in batch}) == 1
            assert 0 < len(batch) <= 30
            seen += batch
            if len(seen) == 95:
                break

    assert offsets_of(seen, 0) == list(range(70))
    assert offsets_of(seen, 1) == list(range(25))


async def test_getmany_returns_buffered_records_up_to_max_records(broker):
    await fill(broker, T0, a_batch(10))
    await fill(broker, T1, a_batch(10))

    async with a_consumer(broker, "t") as consumer:
        await consumer.getone()
        await eventually(lambda: all(one.fetch_offset == 10 for one in consumer._positions))
        found = await consumer.getmany(timeout=1, max_records=15)
        rest = await consumer.getmany(timeout=1, max_records=15)
        nothing = await consumer.getmany(timeout=0)

    assert sum(map(len, found.values())) == 15
    assert sum(map(len, rest.values())) == 4
    assert nothing == {}
    assert offsets_of([*found.get(T0, []), *rest.get(T0, [])]) in ([*range(1, 10)], [*range(10)])


async def test_getmany_returns_records_before_raising_an_error(broker):
    await fill(broker, T0, a_batch(10))

    async with a_consumer(broker, "t") as consumer:
        await consumer.getone()
        take_more = consumer._delivery.take

        def fail_then(max_records: int) -> object:
            consumer._delivery.take = take_more
            taken = take_more(max_records)
            consumer._delivery.report(RuntimeError("no room"))
            return taken

        consumer._delivery.take = fail_then
        found = await consumer.getmany(timeout=1)
        with pytest.raises(RuntimeError, match="no room"):
            await consumer.getmany(timeout=1)

    assert offsets_of(found[T0]) == list(range(1, 10))


async def test_max_records_must_be_at_least_1(broker):
    async with a_consumer(broker, "t") as consumer:
        with pytest.raises(ValueError, match="Invalid max_records 0"):
            await consumer.getmany(max_records=0)
        with pytest.raises(ValueError, match="Invalid max_records 0"):
            consumer.batches(max_records=0)


async def test_iteration_getone_getmany_and_batches_can_be_mixed(broker):
    await fill(broker, T0, a_batch(20))

    async with a_consumer(broker, "t") as consumer:
        first = await anext(consumer)
        second = await consumer.getone()
        third = await anext(consumer.batches(max_records=3))
        fourth = await consumer.getmany(max_records=5)
        rest = await drain(consumer, 10)

    assert offsets_of([first, second, *third, *fourth[T0], *rest]) == list(range(20))


async def test_a_poll_with_timeout_0_returns_buffered_records(broker):
    await fill(broker, T0, a_batch(1200))

    async with a_consumer(broker, "t") as consumer:
        await consumer.getone()
        seen = 1
        while await consumer.getone(0) is not None:
            seen += 1

    assert seen == 1200


async def test_other_tasks_run_while_records_are_buffered(broker):
    await fill(broker, T0, *(a_batch(1000) for _ in range(40)))
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with a_consumer(broker, "t") as consumer:
        await asyncio.sleep(0.3)
        task = asyncio.create_task(count())
        async for record in consumer:
            time.sleep(0.00001)  # a slow application
            if turns > 5 or record.offset == 39_999:
                break
        task.cancel()

    assert turns > 5


# Where it starts, and goes on.


async def test_auto_offset_reset_is_earliest_by_default(broker):
    await fill(broker, T0, a_batch(3))

    async with a_consumer(broker, "t") as consumer:
        assert (await consumer.getone()).offset == 0


async def test_latest_is_the_log_end_at_the_start_of_the_consumer(broker):
    await fill(broker, T0, a_batch(3))

    async with a_consumer(broker, "t", auto_offset_reset="latest") as consumer:
        await fill(broker, T0, a_batch(2))
        assert offsets_of(await take(consumer, 2)) == [3, 4]


async def test_auto_offset_reset_none_requires_a_seek(broker):
    await fill(broker, T0, a_batch(3))

    async with a_consumer(broker, auto_offset_reset="none") as consumer:
        consumer.assign([T0])
        with pytest.raises(ConsumerError, match="t-0: there is no position to start at"):
            await consumer.getone(5)
        consumer.seek(T0, 1)
        assert (await consumer.getone(5)).offset == 1


@pytest.mark.parametrize(("reset", "expected"), [("earliest", 0), ("latest", 5)])
async def test_an_offset_out_of_range_resets_the_position(broker, reset, expected):
    await fill(broker, T0, a_batch(5))

    async with a_consumer(broker, "t", auto_offset_reset=reset) as consumer:
        consumer.seek(T0, 1_000)
        if reset == "latest":
            await eventually(lambda: next(iter(consumer._positions)).fetch_offset == expected)
            assert await consumer.getone(0.1) is None
            await fill(broker, T0, a_batch(1))
        assert (await consumer.getone(5)).offset == expected


async def test_an_offset_out_of_range_raises_without_a_reset_policy(broker):
    await fill(broker, T0, a_batch(5))

    async with a_consumer(broker, auto_offset_reset="none") as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 1_000)
        with pytest.raises(KafkaError, match="t-0 at offset 1000") as error:
            await consumer.getone(5)
        assert error.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        consumer.seek(T0, 4)
        assert (await consumer.getone(5)).offset == 4


async def test_records_deleted_while_reading_are_skipped(broker):
    await fill(broker, T0, *(a_batch(10) for _ in range(10)))

    async with a_consumer(broker) as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 5)
        partition_of(broker).log.delete_records_before(50)
        records = await take(consumer, 50)

    assert offsets_of(records) == list(range(50, 100))


async def test_seek_moves_the_position(broker):
    await fill(broker, T0, a_batch(1000))

    async with a_consumer(broker) as consumer:
        consumer.assign([T0])
        assert await consumer.position(T0) == 0
        assert offsets_of(await take(consumer, 3)) == [0, 1, 2]
        assert await consumer.position(T0) == 3

        consumer.seek(T0, 500)
        assert await consumer.position(T0) == 500
        assert offsets_of(await take(consumer, 2)) == [500, 501]

        consumer.seek_to_beginning(T0)
        assert await consumer.position(T0) == 0
        assert offsets_of(await take(consumer, 2)) == [0, 1]

        consumer.seek_to_end(T0)
        assert await consumer.position(T0) == 1000
        assert await consumer.getone(0.2) is None

        with pytest.raises(ValueError, match="Invalid offset -1 for t-0"):
            consumer.seek(T0, -1)
        with pytest.raises(ConsumerError, match="t-1 is not assigned"):
            consumer.seek(T1, 0)


async def test_paused_partitions_deliver_nothing_and_lose_nothing(broker):
    await fill(broker, T0, a_batch(10))
    await fill(broker, T1, a_batch(10))

    async with a_consumer(broker, "t") as consumer:
        first = await take(consumer, 3)
        paused = TopicPartition("t", first[0].partition)
        consumer.pause(paused)
        assert consumer.paused == {paused}
        other = await drain(consumer, 10)
        consumer.resume(paused)
        rest = await drain(consumer, 7)

    assert {record.partition for record in other} == {1 - paused.partition}
    assert offsets_of(other) == list(range(10))
    assert offsets_of([*first, *rest]) == list(range(10))


async def test_repeated_pauses_neither_lose_nor_repeat_records(broker):
    await fill(broker, T0, *(a_batch(50) for _ in range(10)))
    await fill(broker, T1, *(a_batch(50) for _ in range(10)))
    chance = random.Random(7)

    seen = []
    async with a_consumer(broker, "t", fetch=FetchConfig(prefetch_bytes=4096)) as consumer:
        async with asyncio.timeout(20):
            while len(seen) < 1000:
                tp = chance.choice([T0, T1])
                chance.choice([consumer.pause, consumer.resume])(tp)
                record = await consumer.getone(0.001)
                if record is not None:
                    seen.append(record)

    assert offsets_of(seen, 0) == list(range(500))
    assert offsets_of(seen, 1) == list(range(500))


# Looking around.


async def test_log_offsets_can_be_looked_up(broker):
    await fill(broker, T0, a_batch(5, time=1000), a_batch(5, time=2000))

    async with a_consumer(broker, "t") as consumer:
        assert await consumer.beginning_offsets() == {T0: 0, T1: 0}
        assert await consumer.end_offsets(T0) == {T0: 10}
        assert await consumer.offsets_for_times({T0: 1500, T1: 0}) == {
            T0: OffsetAndTimestamp(5, 2000),
            T1: None,
        }
        await take(consumer, 4)
        assert await consumer.lag() == {T0: 6, T1: 0}
        with pytest.raises(ValueError, match="Invalid time -5 for t-0"):
            await consumer.offsets_for_times({T0: -5})


async def test_assigning_an_unknown_partition_raises(broker):
    missing = TopicPartition("t", 9)

    async with a_consumer(
        broker, "t", client=ClientConfig(timeouts=TimeoutConfig(operation=1))
    ) as consumer:
        with pytest.raises(DeadlineError, match="the topic has 2 partitions"):
            await consumer.end_offsets(missing)


# What it reads.


async def test_new_partitions_of_a_topic_are_discovered(broker):
    await add_topic(broker, "grows", 1)
    client = ClientConfig(metadata_max_age=0.1)

    async with a_consumer(broker, "grows", client=client) as consumer:
        assert consumer.assignment == {TopicPartition("grows", 0)}
        await add_partitions(broker, "grows", 3)
        await fill(broker, TopicPartition("grows", 2), a_batch(1))
        assert (await consumer.getone(5)).partition == 2
        assert len(consumer.assignment) == 3


async def test_a_pattern_matches_topics_that_are_created_later(broker):
    for name in ("logs-a", "logs-b", "my-logs-c"):
        await add_topic(broker, name)
        await fill(broker, TopicPartition(name, 0), a_batch(1))
    client = ClientConfig(metadata_max_age=0.1)

    async with a_consumer(broker, pattern=r"logs-.*", client=client) as consumer:
        assert consumer.topics == {"logs-a", "logs-b"}
        await take(consumer, 2)
        await add_topic(broker, "logs-z")
        await fill(broker, TopicPartition("logs-z", 0), a_batch(1))
        assert (await consumer.getone(5)).topic == "logs-z"


async def test_a_missing_topic_is_read_once_it_is_created(tmp_path):
    async with (
        a_quick_broker(tmp_path, {"t": 1}, auto_create_topics_enable=False) as broker,
        a_consumer(broker, "later") as consumer,
    ):
        assert await consumer.getone(0.1) is None
        await add_topic(broker, "later")
        await fill(broker, TopicPartition("later", 0), a_batch(1))
        assert (await consumer.getone(5)).topic == "later"


async def test_the_subscription_can_be_replaced(broker):
    await add_topic(broker, "u")
    await fill(broker, TopicPartition("u", 0), a_batch(1))

    async with a_consumer(broker, "t") as consumer:
        consumer.subscribe("u")
        assert (await consumer.getone(5)).topic == "u"
        assert consumer.assignment == {TopicPartition("u", 0)}


async def test_assign_and_subscribe_exclude_each_other(broker):
    async with a_consumer(broker) as consumer:
        with pytest.raises(ConsumerError, match="Nothing to read"):
            await consumer.getone()
        consumer.assign([T0])
        with pytest.raises(ConsumerError, match="Cannot subscribe"):
            consumer.subscribe("t")
        consumer.assign([T1])
        assert consumer.assignment == {T1}
    async with a_consumer(broker, "t") as consumer:
        with pytest.raises(ConsumerError, match="Cannot assign partitions"):
            consumer.assign([T0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"auto_offset_reset": "newest"}, "Invalid auto_offset_reset 'newest'"),
        ({"isolation": "dirty"}, "Invalid isolation 'dirty'"),
        ({"group": "g", "assignors": ["random"]}, "Invalid assignors 'random'"),
        ({"group": "g", "assignors": []}, "Invalid assignors: a group needs"),
        ({"instance_id": "i"}, "requires a group"),
        ({"pattern": "x", "topics": ["t"]}, "not both"),
    ],
)
def test_invalid_arguments_are_rejected(arguments, message):
    topics = arguments.pop("topics", [])
    with pytest.raises(ValueError, match=message):
        Consumer("localhost:9092", *topics, **arguments)


def test_invalid_fetch_configs_are_rejected():
    with pytest.raises(ValueError, match="Invalid prefetch_bytes 0"):
        FetchConfig(prefetch_bytes=0)
    with pytest.raises(ValueError, match="Invalid max_wait -1"):
        FetchConfig(max_wait=-1)


# What cannot be understood.


def number(data: bytes) -> int:
    return int(data)


async def test_a_bad_record_raises_and_iteration_continues_after_it(broker):
    values = [b"1", b"two", b"3"]
    await fill(
        broker, T0, build_batch([StoredRecord(n, NOW, b"k", v) for n, v in enumerate(values)])
    )

    async with a_consumer(broker, "t", value_deserializer=number) as consumer:
        assert (await anext(consumer)).value == 1
        with pytest.raises(BadRecordError, match="record of t-0 at offset 1") as error:
            await anext(consumer)
        assert error.value.record.value == b"two"
        assert isinstance(error.value, SerializationError)
        assert isinstance(error.value.__cause__, ValueError)
        assert await consumer.position(T0) == 2
        assert (await anext(consumer)).value == 3
        consumer.seek(T0, 1)
        with pytest.raises(BadRecordError):
            await anext(consumer)


@pytest.mark.parametrize("is_async", [False, True])
async def test_on_bad_record_is_called_with_bad_records(broker, is_async):
    values = [b"1", b"two", b"three", b"4", None, b"six"]
    stored = [StoredRecord(n, NOW, b"k", value) for n, value in enumerate(values)]
    await fill(broker, T0, build_batch(stored))
    bad = []

    def handle(record: ConsumerRecord, error: Exception) -> None:
        bad.append((record.offset, record.value, type(error)))

    async def handle_later(record: ConsumerRecord, error: Exception) -> None:
        await asyncio.sleep(0)
        handle(record, error)

    async with a_consumer(
        broker,
        "t",
        key_deserializer=bytes.decode,
        value_deserializer=number,
        on_bad_record=handle_later if is_async else handle,
    ) as consumer:
        records = await drain(consumer, 3)
        assert await consumer.position(T0) == 6

    assert [(record.key, record.value) for record in records] == [("k", 1), ("k", 4), ("k", None)]
    assert bad == [(1, b"two", ValueError), (2, b"three", ValueError), (5, b"six", ValueError)]


# Coming and going.


async def test_start_raises_when_no_broker_answers():
    client = ClientConfig(timeouts=TimeoutConfig(operation=0.3))
    with pytest.raises(DeadlineError, match="Cannot connect"):
        await Consumer("127.0.0.1:1", "t", client=client).start()


async def test_iteration_ends_when_the_consumer_is_closed(broker):
    consumer = a_consumer(broker, "t")
    await consumer.start()
    seen = []

    async def read() -> None:
        async for record in consumer:
            seen.append(record)  # noqa: PERF401  # inspected meanwhile

    reading = asyncio.create_task(read())
    await fill(broker, T0, a_batch(3))
    await eventually(lambda: len(seen) == 3)
    await consumer.close()
    await consumer.close()

    async with asyncio.timeout(2):
        await reading
    with pytest.raises(ClosedError):
        await consumer.getone()
    with pytest.raises(ClosedError):
        consumer.subscribe("u")


async def test_reading_requires_start(broker):
    consumer = a_consumer(broker, "t")
    with pytest.raises(ConsumerError, match="not started"):
        await consumer.getone()
    await consumer.close()


async def test_a_slow_reader_buffers_at_most_prefetch_bytes(broker):
    size = 10_000
    await fill(broker, T0, *(a_batch(10, value=bytes(size)) for _ in range(100)))
    await fill(broker, T1, *(a_batch(10, value=bytes(size)) for _ in range(100)))
    limit = 1_000_000
    fetch = FetchConfig(prefetch_bytes=limit, max_wait=0.1)

    async with a_consumer(broker, "t", fetch=fetch) as consumer:
        peak, count = 0, 0
        async for batch in consumer.batches():
            count += len(batch)
            await asyncio.sleep(0.002)
            held = sum(one.buffer.size_bytes for one in consumer._positions)
            peak = max(peak, held)
            if count == 2000:
                break

    assert 0.4 * limit < peak <= limit + 10 * size


async def test_paused_partitions_do_not_block_others(broker):
    await fill(broker, T0, *(a_batch(10, value=bytes(10_000)) for _ in range(30)))
    await fill(broker, T1, *(a_batch(10, value=bytes(10_000)) for _ in range(30)))
    fetch = FetchConfig(prefetch_bytes=400_000, max_wait=0.1)

    async with a_consumer(broker, "t", fetch=fetch) as consumer:
        await asyncio.sleep(0.1)
        consumer.pause(T0)
        records = await take(consumer, 300)
        consumer.resume(T0)
        records += await take(consumer, 300)

    assert offsets_of(records, 0) == list(range(300))
    assert offsets_of(records, 1) == list(range(300))


async def test_cancelled_reads_lose_no_records(broker):
    await fill(broker, T0, *(a_batch(20) for _ in range(20)))
    chance = random.Random(3)
    seen: list[ConsumerRecord] = []

    async with a_consumer(
        broker, "t", value_deserializer=bytes.decode, fetch=FetchConfig(prefetch_bytes=2000)
    ) as consumer:

        async def read() -> None:
            match chance.randrange(3):
                case 0:
                    seen.append(await anext(consumer))
                case 1:
                    seen.extend(await anext(consumer.batches(5)))
                case 2:
                    for records in (await consumer.getmany(1, 5)).values():
                        seen.extend(records)

        while len(seen) < 400:
            reading = asyncio.create_task(read())
            for _ in range(chance.randrange(6)):
                await asyncio.sleep(0)
            reading.cancel()
            await asyncio.wait([reading])
        assert await consumer.position(T0) == 400

    assert offsets_of(seen) == list(range(400))


async def test_a_consumer_can_be_used_and_closed_after_any_cancellation(broker):
    await fill(broker, T0, a_batch(10))

    for turns in range(12):
        consumer = a_consumer(broker, "t")
        starting = asyncio.create_task(consumer.start())
        for _ in range(turns * 3):
            await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait([starting])
        await consumer.close()

    async with a_consumer(broker, "t") as consumer:
        for turns in range(12):
            for work in (consumer.lag(), consumer.end_offsets(), consumer.position(T0)):
                task = asyncio.create_task(work)
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
        assert await consumer.end_offsets(T0) == {T0: 10}
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
    assert not [task for task in asyncio.all_tasks() if "consumer" in task.get_name()]


async def test_reading_continues_after_a_broker_restart(tmp_path):
    with Daemon(tmp_path) as daemon:
        async with a_consumer(daemon.address, "t") as consumer:
            await fill(daemon.address, T0, a_batch(10))
            before = await take(consumer, 10)
            await asyncio.to_thread(daemon.kill)
            assert await consumer.getone(0.3) is None
            await asyncio.to_thread(daemon.start)
            await fill(daemon.address, T0, a_batch(10))
            after = await take(consumer, 10)

    assert offsets_of([*before, *after]) == list(range(20))


async def test_a_stopped_broker_raises_in_lookups(tmp_path):
    async with a_quick_broker(tmp_path) as broker:
        consumer = a_consumer(
            broker,
            "t",
            client=ClientConfig(timeouts=TimeoutConfig(operation=1), retry=CLIENT.retry),
        )
        await consumer.start()
        await consumer.getone(0.2)
    with pytest.raises((DeadlineError, ConnectionLostError)):
        await consumer.end_offsets()
    await consumer.close()
