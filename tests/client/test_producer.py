"""The producer against a real broker, read back with other people's consumers."""

import asyncio
import random
import time
from itertools import chain, pairwise

import aiokafka
import confluent_kafka
import kafka
import pytest
import uvloop

from harness.brokers import partition_of
from harness.requests import create_topic
from harness.scripted_broker import Stage
from harness.waiting import eventually
from harness.wire import connect
from ottla.broker import Broker, BrokerConfig
from ottla.client import Admin
from ottla.client.config import ClientConfig, RetryConfig, TimeoutConfig
from ottla.client.errors import (
    BufferFullError,
    ClosedError,
    ConnectionLostError,
    DeadlineError,
    ErrorCode,
    KafkaError,
    RecordTooLargeError,
    SerializationError,
)
from ottla.client.producer.partitioner import partition_of_key
from ottla.client.producer.producer import BatchConfig, OffsetRange, Producer, ProducerRecord
from ottla.client.serializers import serialize_json, serialize_str
from ottla.protocol.api.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from ottla.protocol.api.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.api.metadata import MetadataRequest
from ottla.protocol.api.produce import ProduceRequest
from ottla.protocol.batch import split_batches

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture
async def broker(tmp_path):
    config = BrokerConfig(
        log_dir=str(tmp_path), listeners="PLAINTEXT://127.0.0.1:0", num_partitions=3
    )
    async with Broker(config) as started:
        yield started


@pytest.fixture
async def topic(broker):
    """One partition, so that there is one order."""
    async with connect(broker.address) as client:
        await create_topic(client, "orders", 1)
    return "orders"


async def read(broker, topic, partitions=1):
    """Give all records of a topic, with their partitions, as they are on the wire."""
    found = []
    async with connect(broker.address) as client:
        for partition in range(partitions):
            offset, end = 0, 1
            while offset < end:
                wanted = FetchPartition(
                    partition=partition, fetch_offset=offset, partition_max_bytes=10_000_000
                )
                answer = await client.request(
                    FetchRequest(topics=[FetchTopic(topic=topic, partitions=[wanted])])
                )
                data = answer.responses[0].partitions[0]
                end = data.high_watermark
                for batch in split_batches(data.records):
                    found += [(partition, record) for record in batch.records()]
                    offset = batch.next_offset
                if not end:
                    break
    return found


async def values_in(broker, topic):
    return [record.value for _partition, record in await read(broker, topic)]


# Records.


async def test_a_record_is_written_as_it_was_sent(broker):
    async with Producer(broker.address) as producer:
        receipt = await producer.send(
            "orders",
            b"value",
            key=b"user-1",
            headers=[("trace", b"1"), ("trace", None)],
            timestamp=1_700_000_000_000,
        )

    ((partition, record),) = await read(broker, "orders", 3)
    assert receipt == ("orders", partition_of_key(b"user-1", 3), 0, 1_700_000_000_000)
    assert partition == receipt.partition
    assert record == (
        0,
        1_700_000_000_000,
        b"user-1",
        b"value",
        (("trace", b"1"), ("trace", None)),
    )


async def test_a_record_may_be_next_to_nothing(broker, topic):
    async with Producer(broker.address) as producer:
        before = time.time_ns() // 1_000_000
        receipts = [
            await producer.send(topic),
            await producer.send(topic, b""),
            await producer.send(topic, key=b"gone"),
        ]
        after = time.time_ns() // 1_000_000

    rows = [(record.key, record.value) for _, record in await read(broker, topic)]
    assert rows == [(None, None), (None, b""), (b"gone", None)]
    assert all(before <= receipt.timestamp <= after for receipt in receipts)


async def test_receipts_have_the_brokers_time_where_the_topic_wants_that(broker):
    async with connect(broker.address) as client:
        await create_topic(client, "stamped", 1, message_timestamp_type="LogAppendTime")
    async with Producer(broker.address) as producer:
        receipt = await producer.send("stamped", b"x", timestamp=5)

    assert receipt.timestamp > 1_700_000_000_000


async def test_every_codec_is_read_by_everybody(broker):
    """A partition for each: a batch with all there is in a record, and one that is large."""
    rows = [(b"k%d" % number, b"v%d" % number, [("n", b"%d" % number)]) for number in range(50)]
    large = [b"%06d" % number * 20 for number in range(2500)]
    async with connect(broker.address) as client:
        await create_topic(client, "codecs", len(CODECS))
    for partition, codec in enumerate(CODECS):
        async with Producer(broker.address, compression=codec) as producer:
            for key, value, headers in rows:
                await producer.enqueue(
                    "codecs", value, key=key, headers=headers, partition=partition
                )
            await producer.flush()
            records = [ProducerRecord(value, partition=partition) for value in large]
            assert await producer.send_many("codecs", records) == [
                OffsetRange("codecs", partition, 50, 2500)
            ]

    expected = [*rows, *((None, value, []) for value in large)]
    for theirs in await asyncio.gather(
        read_with_aiokafka(broker.address),
        asyncio.to_thread(read_with_confluent, broker.address),
        asyncio.to_thread(read_with_kafka_python, broker.address),
    ):
        for found in theirs:
            assert found == expected
    sizes = [broker.topics.find("codecs", partition).log.size for partition in range(5)]
    assert max(sizes[1:]) < sizes[0] / 2


async def read_with_aiokafka(address):
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=address, auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign([aiokafka.TopicPartition("codecs", index) for index in range(5)])
        found = [[] for _ in range(5)]
        while sum(map(len, found)) < 5 * 2550:
            one = await asyncio.wait_for(consumer.getone(), 30)
            found[one.partition].append((one.key, one.value, list(one.headers)))
    finally:
        await consumer.stop()
    return found


def read_with_kafka_python(address):
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=address, auto_offset_reset="earliest", consumer_timeout_ms=30_000
    )
    consumer.assign([kafka.TopicPartition("codecs", index) for index in range(5)])
    found = [[] for _ in range(5)]
    for one in consumer:
        found[one.partition].append((one.key, one.value, list(one.headers)))
        if sum(map(len, found)) == 5 * 2550:
            break
    consumer.close()
    return found


def read_with_confluent(address):
    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": "g"})
    consumer.assign([confluent_kafka.TopicPartition("codecs", index, 0) for index in range(5)])
    found = [[] for _ in range(5)]
    while sum(map(len, found)) < 5 * 2550:
        batch = consumer.consume(min(1000, 5 * 2550 - sum(map(len, found))), 30)
        assert batch, "there should be more"
        for one in batch:
            row = (one.key(), one.value(), one.headers() or [])
            found[one.partition()].append(row)
    consumer.close()
    return found


@pytest.mark.parametrize("acks", ["all", 1, 0])
async def test_acks(broker, topic, acks):
    values = [b"%d" % number for number in range(2000)]
    async with Producer(broker.address, acks=acks) as producer:
        first = await producer.send(topic, b"first")
        written = await producer.send_many(topic, values)

    await eventually(lambda: partition_of(broker, topic).log.end_offset == 2001)
    assert first.offset == (-1 if acks == 0 else 0)
    assert written == [OffsetRange(topic, 0, -1 if acks == 0 else 1, 2000)]
    assert await values_in(broker, topic) == [b"first", *values]


# Partitions.


async def test_a_partition_may_be_named(broker):
    async with Producer(broker.address) as producer:
        for partition in (2, 0, 2):
            assert (await producer.send("orders", b"x", partition=partition)).partition == partition
        for wrong in (3, -1):
            with pytest.raises(KafkaError, match=f"orders-{wrong}: the topic has 3 partitions"):
                await producer.send("orders", b"x", partition=wrong)


async def test_a_partition_that_is_new_is_found(broker, topic):
    async with Producer(broker.address) as producer:
        await producer.send(topic, b"x")
        async with connect(broker.address) as client:
            growth = CreatePartitionsTopic(name=topic, count=4, assignments=None)
            await client.request(CreatePartitionsRequest(topics=[growth], timeout_ms=5000))

        assert (await producer.send(topic, b"x", partition=3)).partition == 3
        key = next(b"%d" % n for n in range(99) if partition_of_key(b"%d" % n, 4) == 2)
        assert (await producer.send(topic, b"x", key=key)).partition == 2


async def test_keys_stay_together_and_in_order(broker):
    chance = random.Random(3)
    rows = [(b"user-%d" % chance.randrange(20), b"%d" % number) for number in range(3000)]
    async with Producer(broker.address) as producer:
        await producer.send_many("orders", [ProducerRecord(value, key) for key, value in rows])

    by_key = {}
    for partition, record in await read(broker, "orders", 3):
        by_key.setdefault(record.key, []).append((partition, record.value))
    for key, found in by_key.items():
        partition = partition_of_key(key, 3)
        assert found == [(partition, value) for one, value in rows if one == key]


async def test_without_a_key_a_batch_goes_to_one_partition_and_the_next_to_another(broker):
    batch = BatchConfig(batch_bytes=4000)
    async with Producer(broker.address, batch=batch) as producer:
        # Another one is chosen by chance: of a hundred batches some are in each.
        futures = [await producer.enqueue("orders", b"x" * 64) for _ in range(4000)]
        places = [receipt.partition for receipt in await asyncio.gather(*futures)]

    changes = sum(one != other for one, other in pairwise(places))
    assert set(places) == {0, 1, 2}
    assert changes < 400


async def test_round_robin(broker):
    async with Producer(broker.address, partitioner="round-robin") as producer:
        futures = [await producer.enqueue("orders", b"x") for _ in range(9)]
        places = [receipt.partition for receipt in await asyncio.gather(*futures)]
        keyed = await producer.send("orders", b"x", key=b"user-1")

    assert places == [0, 1, 2] * 3
    assert keyed.partition == partition_of_key(b"user-1", 3)


async def test_a_partitioner_of_ones_own(broker):
    asked = []

    def by_value(*question):
        asked.append(question)
        return int(question[2])

    async with Producer(broker.address, partitioner=by_value) as producer:
        assert (await producer.send("orders", b"2", key=b"k")).partition == 2
        assert (await producer.send("orders", b"0")).partition == 0
        with pytest.raises(ValueError, match="returned 3 for topic 'orders'"):
            await producer.send("orders", b"3")
        with pytest.raises(ValueError, match="invalid literal"):
            await producer.send("orders", b"x")
        assert (await producer.send("orders", b"1", partition=0)).partition == 0

    assert asked[:2] == [("orders", b"k", b"2", 3), ("orders", None, b"0", 3)]


# Many at a time.


async def test_pipelined_records_are_in_order(broker, topic):
    values = [b"%d" % number for number in range(5000)]
    async with Producer(broker.address) as producer:
        futures = [await producer.enqueue(topic, value) for value in values]
        receipts = await asyncio.gather(*futures)

    assert [receipt.offset for receipt in receipts] == list(range(5000))
    assert await values_in(broker, topic) == values


async def test_many_tasks_may_send_at_once(broker, topic):
    async with Producer(broker.address) as producer:

        async def work(number):
            return [await producer.send(topic, b"%d-%d" % (number, step)) for step in range(20)]

        receipts = await asyncio.gather(*(work(number) for number in range(20)))

    stored = await values_in(broker, topic)
    for number, row in enumerate(receipts):
        assert [stored[receipt.offset] for receipt in row] == [
            b"%d-%d" % (number, step) for step in range(20)
        ]


async def test_send_many_says_where_the_records_are(broker, topic):
    async with Producer(broker.address, batch=BatchConfig(batch_bytes=5000)) as producer:

        async def bulk(number):
            values = (b"%d-%05d" % (number, step) for step in range(1000))
            return await producer.send_many(topic, values)

        parts = await asyncio.gather(*(bulk(number) for number in range(3)))
        assert await producer.send_many(topic, []) == []

    stored = await values_in(broker, topic)
    assert len(stored) == 3000
    for number, written in enumerate(parts):
        ours = [stored[part.base_offset : part.base_offset + part.record_count] for part in written]
        assert list(chain(*ours)) == [b"%d-%05d" % (number, step) for step in range(1000)]


async def test_send_many_takes_values_and_records(broker):
    batch = BatchConfig(linger=30)
    async with Producer(broker.address, value_serializer=serialize_json, batch=batch) as producer:
        written = await producer.send_many(
            "orders",
            [
                ProducerRecord({"n": 1}, partition=1, timestamp=7, headers={"a": b"1"}),
                ProducerRecord([2], partition=1),
                ProducerRecord(None, key=b"k", partition=2),
                ProducerRecord("x", partition=1),
            ],
        )
        plain = await producer.send_many("orders", [{"n": 3}, "text", None])

    assert written == [OffsetRange("orders", 1, 0, 3), OffsetRange("orders", 2, 0, 1)]
    assert sum(part.record_count for part in plain) == 3
    found = await read(broker, "orders", 3)
    ours = [record.value for partition, record in found if partition == 1][:3]
    assert ours == [b'{"n":1}', b"[2]", b'"x"']


async def test_send_many_tells_of_a_record_that_cannot_be_sent(broker, topic):
    def source():
        yield b"one"
        yield b"two"
        raise RuntimeError("the source is dry")

    async with Producer(broker.address) as producer:
        with pytest.raises(RuntimeError, match="dry"):
            await producer.send_many(topic, source())
        with pytest.raises(SerializationError):
            await producer.send_many(topic, [b"three", 4, b"five"])

    assert await values_in(broker, topic) == [b"one", b"two", b"three"]


async def test_send_many_that_fails_does_not_linger(broker, topic):
    async with Producer(broker.address, batch=BatchConfig(linger=60)) as producer:
        async with asyncio.timeout(5):
            with pytest.raises(SerializationError):
                await producer.send_many(topic, [b"one", 2])

    assert await values_in(broker, topic) == [b"one"]


async def test_send_many_tells_what_the_broker_refused(broker):
    async with connect(broker.address) as client:
        await create_topic(client, "compacted", 1, cleanup_policy="compact")
    taken = []

    def source():
        for number in range(100_000):
            taken.append(number)
            yield b"without a key"

    # No more is taken than there is room for until the broker has said what it thinks of it.
    batch = BatchConfig(batch_bytes=5000, buffer_bytes=500_000)
    async with Producer(broker.address, batch=batch) as producer:
        with pytest.raises(KafkaError, match=r"record 0 of the batch: .* without a key") as one:
            await producer.send_many("compacted", source())
        await producer.send("compacted", b"x", key=b"k")

    assert one.value.code == ErrorCode.INVALID_RECORD
    assert len(taken) < 100_000
    assert await values_in(broker, "compacted") == [b"x"]


async def test_records_wait_for_company_as_long_as_they_may(broker, topic):
    async with Producer(broker.address, batch=BatchConfig(linger=0.1)) as producer:
        started = time.monotonic()
        futures = []
        for _ in range(5):
            futures.append(await producer.enqueue(topic, b"x"))
            await asyncio.sleep(0.005)
        await asyncio.gather(*futures)
        waited = time.monotonic() - started

    assert waited >= 0.1


async def test_flush_lets_nothing_linger(broker, topic):
    async with Producer(broker.address, batch=BatchConfig(linger=60)) as producer:
        futures = [await producer.enqueue(topic, b"x") for _ in range(5)]
        await asyncio.sleep(0.02)
        assert not any(future.done() for future in futures)

        await producer.flush()

        assert all(future.done() for future in futures)
        await producer.flush()


async def test_a_full_batch_does_not_linger(broker, topic):
    batch = BatchConfig(linger=60, batch_bytes=1000)
    async with Producer(broker.address, batch=batch) as producer:
        futures = [await producer.enqueue(topic, b"x" * 100) for _ in range(20)]

        await asyncio.wait_for(futures[0], 10)

        assert not futures[-1].done()


async def test_close_sends_what_waits(broker, topic):
    async with Producer(broker.address, batch=BatchConfig(linger=60)) as producer:
        future = await producer.enqueue(topic, b"x")

    assert future.result().offset == 0


async def test_it_works_on_uvloop(broker, topic):
    def elsewhere():
        async def main():
            async with Producer(broker.address, compression="zstd") as producer:
                return await producer.send_many(topic, [b"x" * 100] * 20_000)

        return uvloop.run(main())

    assert await asyncio.to_thread(elsewhere) == [OffsetRange(topic, 0, 0, 20_000)]


# Serializers.


async def test_values_and_keys_are_serialized(broker, topic):
    async with Producer(
        broker.address, key_serializer=serialize_str, value_serializer=serialize_json
    ) as producer:
        await producer.send(topic, {"total": 3}, key="ä")
        await producer.send(topic, None, key="gone")

    rows = [(record.key, record.value) for _, record in await read(broker, topic)]
    assert rows == [("ä".encode(), b'{"total":3}'), (b"gone", None)]


@pytest.mark.parametrize(
    ("record", "kind"),
    [
        ({"value": "text"}, SerializationError),
        ({"value": b"", "key": 3}, SerializationError),
        ({"value": b"", "headers": {"a": "b"}}, SerializationError),
        ({"value": b"", "timestamp": -1}, ValueError),
        ({"value": b"", "timestamp": 2**63}, ValueError),
        ({"value": b"", "timestamp": 1.5}, ValueError),
        ({"value": b"", "timestamp": "now"}, ValueError),
        ({"value": b"x" * (9 * 1024 * 1024)}, RecordTooLargeError),
    ],
    ids=lambda one: str(one)[:40],
)
async def test_nothing_is_queued_of_a_record_that_cannot_be_sent(broker, topic, record, kind):
    async with Producer(broker.address) as producer:
        with pytest.raises(kind):
            await producer.send(topic, **record)
        await producer.send(topic, b"after")
        pool = producer._sender.pool

        assert pool.free == pool.limit
    assert await values_in(broker, topic) == [b"after"]


async def test_what_the_program_changes_later_is_not_sent(broker, topic):
    value, name = bytearray(b"before"), bytearray(b"before")
    async with Producer(broker.address, batch=BatchConfig(linger=60)) as producer:
        future = await producer.enqueue(topic, value, key=memoryview(name), headers={"a": value})
        value[:], name[:] = b"after!", b"after!"
        await producer.flush()
        await future

    ((_partition, record),) = await read(broker, topic)
    assert (record.value, record.key) == (b"before", b"before")
    assert record.headers == (("a", b"before"),)


async def test_a_record_that_is_too_large_for_the_topic(broker, topic):
    async with Producer(broker.address) as producer:
        with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
            await producer.send(topic, b"x" * 2_000_000)
        await producer.send(topic, b"small")

    assert await values_in(broker, topic) == [b"small"]


async def test_a_batch_that_is_too_large_for_the_topic_is_split(broker):
    async with connect(broker.address) as client:
        await create_topic(client, "narrow", 1, max_message_bytes="2000")
    values = [b"%04d" % number * 10 for number in range(1000)]
    async with Producer(broker.address) as producer:
        written = await producer.send_many("narrow", values)
        futures = [await producer.enqueue("narrow", value) for value in values]
        receipts = await asyncio.gather(*futures)

    assert written == [OffsetRange("narrow", 0, 0, 1000)]
    assert [receipt.offset for receipt in receipts] == list(range(1000, 2000))
    assert await values_in(broker, "narrow") == values * 2


# Room.


async def held_back(stage, count=100):
    """Let produce requests wait for a gate."""
    gate = asyncio.Event()

    async def hold(call):
        answer = call.serve()
        await gate.wait()
        return answer

    stage.script(ProduceRequest, *[hold] * count)
    return gate


TIGHT = BatchConfig(batch_bytes=500, buffer_bytes=1000)


async def test_whoever_sends_too_much_has_to_wait():
    async with Stage() as stage, Producer(stage.address, batch=TIGHT) as producer:
        gate = await held_back(stage)
        queued = 0

        async def work():
            nonlocal queued
            futures = []
            for number in range(50):
                futures.append(await producer.enqueue("orders", b"%064d" % number))
                queued += 1
            return await asyncio.gather(*futures)

        working = asyncio.ensure_future(work())
        await eventually(lambda: queued == 10)
        await asyncio.sleep(0.05)
        assert queued == 10
        gate.set()
        await working

        assert stage.ledger.values("orders") == [b"%064d" % number for number in range(50)]
        assert producer._sender.pool.free == 1000


async def test_what_lingers_makes_room_for_whoever_waits_for_it():
    batch = BatchConfig(batch_bytes=1000, buffer_bytes=3000, linger=60, buffer_timeout=5)
    async with Stage(topics={"orders": 5}) as stage:
        async with Producer(stage.address, batch=batch) as producer, asyncio.timeout(4):
            for number in range(100):
                await producer.enqueue("orders", b"%064d" % number, partition=number % 5)

        assert sum(len(stage.ledger.values("orders", number)) for number in range(5)) == 100


async def test_a_buffer_that_stays_full_is_an_error():
    batch = BatchConfig(batch_bytes=500, buffer_bytes=1000, buffer_timeout=0.1)
    async with Stage() as stage, Producer(stage.address, batch=batch) as producer:
        gate = await held_back(stage)
        futures = [await producer.enqueue("orders", b"x" * 64) for _ in range(10)]

        with pytest.raises(BufferFullError, match=r"No room for 100 bytes within 0.1 s: 1000 of"):
            await producer.send("orders", b"y" * 64)
        gate.set()
        await asyncio.gather(*futures)
        await producer.send("orders", b"z" * 64)

        assert stage.ledger.values("orders") == [b"x" * 64] * 10 + [b"z" * 64]
        assert producer._sender.pool.free == 1000


async def test_room_is_given_in_the_order_in_which_it_was_asked_for():
    async with Stage() as stage, Producer(stage.address, batch=TIGHT) as producer:
        gate = await held_back(stage)
        futures = [await producer.enqueue("orders", b"x" * 64) for _ in range(10)]
        done = []

        async def send(size):
            await producer.send("orders", b"x" * size)
            done.append(size)

        tasks = [asyncio.ensure_future(send(size)) for size in (300, 1, 2)]
        await asyncio.sleep(0.02)
        gate.set()
        await asyncio.gather(*futures, *tasks)

        stored = [len(value) for value in stage.ledger.values("orders")]
        assert stored[-3:] == [300, 1, 2]


async def test_a_record_larger_than_the_buffer_is_refused():
    async with Stage() as stage, Producer(stage.address, batch=TIGHT) as producer:
        with pytest.raises(RecordTooLargeError, match="1000 fit"):
            await producer.send("orders", b"x" * 1000)
        await producer.send("orders", b"x" * 900)


# Cancellation.


async def test_a_send_that_is_cancelled_while_it_waits_for_room():
    async with Stage() as stage, Producer(stage.address, batch=TIGHT) as producer:
        gate = await held_back(stage)
        futures = [await producer.enqueue("orders", b"x" * 64) for _ in range(10)]
        first = asyncio.ensure_future(producer.send("orders", b"a" * 500))
        second = asyncio.ensure_future(producer.send("orders", b"b"))
        await asyncio.sleep(0.02)

        first.cancel()
        gate.set()
        await asyncio.gather(*futures, second)

        assert first.cancelled()
        assert stage.ledger.values("orders") == [b"x" * 64] * 10 + [b"b"]
        assert producer._sender.pool.free == 1000


async def test_a_send_that_is_cancelled_in_the_moment_when_it_gets_room():
    async with Stage() as stage, Producer(stage.address, batch=TIGHT) as producer:
        pool = producer._sender.pool
        await producer.send("orders", b"first")
        assert pool.try_allocate(1000)
        sending = asyncio.ensure_future(producer.send("orders", b"never"))
        await asyncio.sleep(0.01)

        pool.release(1000)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending

        assert pool.free == 1000
        assert stage.ledger.values("orders") == [b"first"]


async def test_a_send_that_is_cancelled_while_it_looks_up_the_topic():
    async with Stage() as stage, Producer(stage.address) as producer:
        gate = asyncio.Event()

        async def hold(call):
            await gate.wait()
            return call.serve()

        stage.script(MetadataRequest, hold)
        first = asyncio.ensure_future(producer.send("orders", b"a"))
        second = asyncio.ensure_future(producer.send("orders", b"b"))
        await eventually(lambda: stage.asked(MetadataRequest))
        first.cancel()
        gate.set()
        await second

        assert first.cancelled()
        assert stage.ledger.values("orders") == [b"b"]


async def test_a_send_that_is_cancelled_while_it_waits_for_its_ack():
    async with Stage() as stage, Producer(stage.address) as producer:
        gate = await held_back(stage)
        tasks = [asyncio.ensure_future(producer.send("orders", b"%d" % n)) for n in range(5)]
        await eventually(lambda: stage.asked(ProduceRequest))

        tasks[2].cancel()
        gate.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)

        assert [getattr(result, "offset", None) for result in results] == [0, 1, None, 3, 4]
        assert len(stage.ledger.values("orders")) == 5
        assert producer._sender.pool.free == producer._sender.pool.limit


async def test_any_send_may_be_cancelled_at_any_time(broker, topic):
    chance = random.Random(5)
    batch = BatchConfig(batch_bytes=1000, buffer_bytes=3000)
    async with Producer(broker.address, batch=batch) as producer:
        tasks = []
        for number in range(400):
            send = producer.send(topic, b"%d" % number)
            tasks.append(asyncio.ensure_future(send))
            if chance.random() < 0.3:
                await asyncio.sleep(chance.random() * 0.001)
            if chance.random() < 0.4:
                chance.choice(tasks).cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        await producer.flush()
        assert producer._sender.pool.free == 3000

    stored = await values_in(broker, topic)
    assert len(stored) == len(set(stored))
    for number, result in enumerate(results):
        if not isinstance(result, asyncio.CancelledError):
            assert stored[result.offset] == b"%d" % number


async def test_send_many_and_flush_may_be_cancelled(broker, topic):
    async with Producer(broker.address, batch=BatchConfig(batch_bytes=2000)) as producer:
        bulk = asyncio.ensure_future(producer.send_many(topic, [b"x" * 50] * 50_000))
        flushing = asyncio.ensure_future(producer.flush())
        await asyncio.sleep(0.05)
        bulk.cancel()
        flushing.cancel()
        await asyncio.wait([bulk, flushing])

        last = await producer.send(topic, b"last")
        await producer.flush()

        assert producer._sender.pool.free == producer._sender.pool.limit
    stored = await values_in(broker, topic)
    assert stored[-1] == b"last"
    assert len(stored) == last.offset + 1


# The end.


async def test_a_closed_producer_says_so(broker, topic):
    producer = Producer(broker.address)
    await producer.send(topic, b"x")
    await producer.close()
    await producer.close()

    for verb in (producer.send, producer.enqueue):
        with pytest.raises(ClosedError):
            await verb(topic, b"x")
    with pytest.raises(ClosedError):
        await producer.send_many(topic, [b"x"])


async def test_a_producer_that_was_never_used_closes():
    await Producer("127.0.0.1:1").close()


async def test_closing_sends_away_whoever_waits_for_room():
    async with Stage() as stage:
        producer = Producer(stage.address, batch=TIGHT)
        gate = await held_back(stage)
        futures = [await producer.enqueue("orders", b"x" * 64) for _ in range(10)]
        waiting = asyncio.ensure_future(producer.send("orders", b"late"))
        await asyncio.sleep(0.02)

        closing = asyncio.ensure_future(producer.close())
        await asyncio.sleep(0.02)
        gate.set()
        await closing

        with pytest.raises(ClosedError):
            await waiting
        assert all(future.result() for future in futures)


async def test_closing_that_is_cancelled_fails_what_waits():
    async with Stage() as stage:
        producer = Producer(stage.address)
        await held_back(stage)
        future = await producer.enqueue("orders", b"x")
        closing = asyncio.ensure_future(producer.close())
        await asyncio.sleep(0.05)

        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing

        with pytest.raises(ClosedError):
            await future
    names = {task.get_name() for task in asyncio.all_tasks()}
    assert not any(name.startswith("ottla") for name in names)


async def test_nobody_is_there():
    quick = TimeoutConfig(connect=1, operation=1)
    config = ClientConfig(retry=RetryConfig(backoff=0.01), timeouts=quick)
    async with Producer("127.0.0.1:1", client=config) as producer:
        with pytest.raises(DeadlineError, match="Metadata of topic 'orders'") as caught:
            await producer.send("orders", b"x")

    assert isinstance(caught.value.__cause__, ConnectionLostError)


async def test_a_topic_that_may_not_be(broker):
    async with Producer(broker.address) as producer:
        with pytest.raises(KafkaError, match="INVALID_TOPIC_EXCEPTION"):
            await producer.send("no/topic", b"x")


async def test_a_topic_that_is_not_to_be_made(broker):
    quick = TimeoutConfig(operation=1)
    config = ClientConfig(timeouts=quick, allow_auto_create=False)
    async with Producer(broker.address, client=config) as producer:
        with pytest.raises(DeadlineError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            await producer.send("unknown", b"x")


async def test_a_topic_that_was_deleted_is_made_again_when_it_is_written_to_and_not_before(broker):
    asked = []
    config = ClientConfig(
        metadata_max_age=0.02, on_request=lambda api, *_: asked.append(api == "Metadata")
    )
    async with Producer(broker.address, client=config) as producer, Admin(broker.address) as admin:
        await producer.send("short-lived", b"x")
        await admin.delete_topics("short-lived")
        before = sum(asked)
        await eventually(lambda: sum(asked) > before + 3)

        assert not await admin.list_topics()
        assert (await producer.send("short-lived", b"y")).offset == 0


async def test_a_bug_of_ours_is_told_to_everybody(caplog):
    async with Stage() as stage, Producer(stage.address) as producer:
        await producer.send("orders", b"x")
        batch = producer._sender.open_batch(producer._sender.queues["orders"][0])
        batch.count = 1  # and no record

        future = await producer.enqueue("orders", b"y")
        with pytest.raises(Exception, match="The producer failed"):
            await future
        with pytest.raises(Exception, match="The producer failed"):
            await producer.send("orders", b"z")

    assert "ottla producer: broker 0 failed" in caplog.text


@pytest.mark.parametrize(
    "settings",
    [
        {"acks": 2},
        {"acks": "some"},
        {"compression": "brotli"},
        {"partitioner": "random"},
        {"acks": 1, "idempotent": True},
        {"acks": 0, "idempotent": True},
    ],
    ids=str,
)
def test_settings_that_cannot_be(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        Producer("localhost", **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_bytes": 0},
        {"batch_bytes": 9 * 1024 * 1024},
        {"request_bytes": 2**30},
        {"buffer_bytes": 1000},
        {"linger": -1},
        {"buffer_timeout": -1},
    ],
    ids=str,
)
def test_batching_that_cannot_be(settings):
    with pytest.raises(ValueError, match=r"\d"):
        BatchConfig(**settings)
