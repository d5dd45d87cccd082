"""The producer against a real broker, read back with other clients."""

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
from harness.scripted_broker import ScriptedCluster
from harness.waiting import eventually
from harness.wire import connect
from ottla.broker import Broker, BrokerConfig
from ottla.client import Admin, Consumer, blocking
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
    """A topic with one partition, so that there is one order."""
    async with connect(broker.address) as client:
        await create_topic(client, "orders", 1)
    return "orders"


async def read(broker, topic, partitions=1):
    """Return all records of a topic with their partitions."""
    found = []
    async with connect(broker.address) as client:
        for partition in range(partitions):
            offset, end = 0, 1
            while offset < end:
                partition_request = FetchPartition(
                    partition=partition, fetch_offset=offset, partition_max_bytes=10_000_000
                )
                answer = await client.request(
                    FetchRequest(topics=[FetchTopic(topic=topic, partitions=[partition_request])])
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
        metadata = await producer.send(
            "orders",
            b"value",
            key=b"user-1",
            headers=[("trace", b"1"), ("trace", None)],
            timestamp=1_700_000_000_000,
        )

    ((partition, record),) = await read(broker, "orders", 3)
    assert metadata == ("orders", partition_of_key(b"user-1", 3), 0, 1_700_000_000_000)
    assert partition == metadata.partition
    assert record == (
        0,
        1_700_000_000_000,
        b"user-1",
        b"value",
        (("trace", b"1"), ("trace", None)),
    )


async def test_keys_and_values_may_be_null_or_empty(broker, topic):
    async with Producer(broker.address) as producer:
        before = time.time_ns() // 1_000_000
        results = [
            await producer.send(topic),
            await producer.send(topic, b""),
            await producer.send(topic, key=b"gone"),
        ]
        after = time.time_ns() // 1_000_000

    rows = [(record.key, record.value) for _, record in await read(broker, topic)]
    assert rows == [(None, None), (None, b""), (b"gone", None)]
    assert all(before <= metadata.timestamp <= after for metadata in results)


async def test_metadata_has_the_append_time_with_log_append_time(broker):
    async with connect(broker.address) as client:
        await create_topic(client, "stamped", 1, message_timestamp_type="LogAppendTime")
    async with Producer(broker.address) as producer:
        metadata = await producer.send("stamped", b"x", timestamp=5)

    assert metadata.timestamp > 1_700_000_000_000


async def test_other_clients_read_every_codec(broker):
    """One partition per codec: a batch of full records, and a large one."""
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
        assert batch, "there are more records"
        for one in batch:
            row = (one.key(), one.value(), one.headers() or [])
            found[one.partition()].append(row)
    consumer.close()
    return found


@pytest.mark.parametrize("acks", ["all", 1, 0])
async def test_offsets_are_returned_unless_acks_is_0(broker, topic, acks):
    values = [b"%d" % number for number in range(2000)]
    async with Producer(broker.address, acks=acks) as producer:
        first = await producer.send(topic, b"first")
        written = await producer.send_many(topic, values)

    await eventually(lambda: partition_of(broker, topic).log.end_offset == 2001)
    assert first.offset == (-1 if acks == 0 else 0)
    assert written == [OffsetRange(topic, 0, -1 if acks == 0 else 1, 2000)]
    assert await values_in(broker, topic) == [b"first", *values]


# Partitions.


async def test_a_record_may_name_its_partition(broker):
    async with Producer(broker.address) as producer:
        for partition in (2, 0, 2):
            assert (await producer.send("orders", b"x", partition=partition)).partition == partition
        for wrong in (3, -1):
            with pytest.raises(KafkaError, match=f"orders-{wrong}: the topic has 3 partitions"):
                await producer.send("orders", b"x", partition=wrong)


async def test_a_new_partition_is_found(broker, topic):
    async with Producer(broker.address) as producer:
        await producer.send(topic, b"x")
        async with connect(broker.address) as client:
            growth = CreatePartitionsTopic(name=topic, count=4, assignments=None)
            await client.request(CreatePartitionsRequest(topics=[growth], timeout_ms=5000))

        assert (await producer.send(topic, b"x", partition=3)).partition == 3
        key = next(b"%d" % n for n in range(99) if partition_of_key(b"%d" % n, 4) == 2)
        assert (await producer.send(topic, b"x", key=key)).partition == 2


async def test_records_of_a_key_are_in_one_partition_in_order(broker):
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


async def test_the_sticky_partitioner_fills_one_batch_after_the_other(broker):
    batch = BatchConfig(batch_bytes=4000)
    async with Producer(broker.address, batch=batch) as producer:
        # The next one is random: of a hundred batches, each partition gets some.
        futures = [await producer.enqueue("orders", b"x" * 64) for _ in range(4000)]
        partitions = [metadata.partition for metadata in await asyncio.gather(*futures)]

    changes = sum(one != other for one, other in pairwise(partitions))
    assert set(partitions) == {0, 1, 2}
    assert changes < 400


async def test_the_round_robin_partitioner_takes_turns_for_records_without_a_key(broker):
    async with Producer(broker.address, partitioner="round-robin") as producer:
        futures = [await producer.enqueue("orders", b"x") for _ in range(9)]
        partitions = [metadata.partition for metadata in await asyncio.gather(*futures)]
        keyed = await producer.send("orders", b"x", key=b"user-1")

    assert partitions == [0, 1, 2] * 3
    assert keyed.partition == partition_of_key(b"user-1", 3)


async def test_a_custom_partitioner_chooses_for_all_records(broker):
    calls = []

    def by_value(*arguments):
        calls.append(arguments)
        return int(arguments[2])

    async with Producer(broker.address, partitioner=by_value) as producer:
        assert (await producer.send("orders", b"2", key=b"k")).partition == 2
        assert (await producer.send("orders", b"0")).partition == 0
        with pytest.raises(ValueError, match="returned 3 for topic 'orders'"):
            await producer.send("orders", b"3")
        with pytest.raises(ValueError, match="invalid literal"):
            await producer.send("orders", b"x")
        assert (await producer.send("orders", b"1", partition=0)).partition == 0

    assert calls[:2] == [("orders", b"k", b"2", 3), ("orders", None, b"0", 3)]


# Pipelining and bulk.


async def test_pipelined_records_are_in_order(broker, topic):
    values = [b"%d" % number for number in range(5000)]
    async with Producer(broker.address) as producer:
        futures = [await producer.enqueue(topic, value) for value in values]
        results = await asyncio.gather(*futures)

    assert [metadata.offset for metadata in results] == list(range(5000))
    assert await values_in(broker, topic) == values


async def test_concurrent_tasks_keep_their_order(broker, topic):
    async with Producer(broker.address) as producer:

        async def work(number):
            return [await producer.send(topic, b"%d-%d" % (number, step)) for step in range(20)]

        results = await asyncio.gather(*(work(number) for number in range(20)))

    stored = await values_in(broker, topic)
    for number, row in enumerate(results):
        assert [stored[metadata.offset] for metadata in row] == [
            b"%d-%d" % (number, step) for step in range(20)
        ]


async def test_send_many_returns_offset_ranges(broker, topic):
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


async def test_send_many_accepts_values_and_producer_records(broker):
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


async def test_send_many_sends_all_kinds_of_records_in_order(broker, topic):
    kinds = (
        lambda number: b"%d" % number,
        lambda number: ProducerRecord(b"%d" % number, b"key %d" % (number % 7)),
        lambda number: ProducerRecord(b"%d" % number),
        lambda number: ProducerRecord(b"%d" % number, b"key", headers={"a": b"1"}),
        lambda number: bytearray(b"%d" % number),
    )
    shuffled = random.Random(5)
    # Runs of one kind, which are appended together, and mixtures.
    chosen = [kinds[number // 100 % 5] for number in range(1000)]
    chosen += [shuffled.choice(kinds) for _ in range(500)]
    records = [kind(number) for number, kind in enumerate(chosen)]

    async with Producer(broker.address, batch=BatchConfig(batch_bytes=5000)) as producer:
        (written,) = await producer.send_many(topic, records)

    assert written.record_count == 1500
    found = await read(broker, topic)
    assert [(record.key, bytes(record.value)) for _partition, record in found] == [
        (record.key, record.value) if isinstance(record, ProducerRecord) else (None, bytes(record))
        for record in records
    ]


async def test_send_many_raises_for_a_record_that_cannot_be_sent(broker, topic):
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


async def test_a_failed_send_many_does_not_linger(broker, topic):
    async with Producer(broker.address, batch=BatchConfig(linger=60)) as producer:
        async with asyncio.timeout(5):
            with pytest.raises(SerializationError):
                await producer.send_many(topic, [b"one", 2])

    assert await values_in(broker, topic) == [b"one"]


async def test_send_many_raises_the_record_errors_of_the_broker(broker):
    async with connect(broker.address) as client:
        await create_topic(client, "compacted", 1, cleanup_policy="compact")
    taken = []

    def source():
        for number in range(100_000):
            taken.append(number)
            yield b"without a key"

    # No more is taken from the source than fits the buffer before the broker responds.
    batch = BatchConfig(batch_bytes=5000, buffer_bytes=500_000)
    async with Producer(broker.address, batch=batch) as producer:
        with pytest.raises(KafkaError, match=r"record 0 of the batch: .* without a key") as one:
            await producer.send_many("compacted", source())
        await producer.send("compacted", b"x", key=b"k")

    assert one.value.code == ErrorCode.INVALID_RECORD
    assert len(taken) < 100_000
    assert await values_in(broker, "compacted") == [b"x"]


async def test_a_batch_lingers_for_more_records(broker, topic):
    async with Producer(broker.address, batch=BatchConfig(linger=0.1)) as producer:
        started = time.monotonic()
        futures = []
        for _ in range(5):
            futures.append(await producer.enqueue(topic, b"x"))
            await asyncio.sleep(0.005)
        await asyncio.gather(*futures)
        waited = time.monotonic() - started

    assert waited >= 0.1


async def test_flush_sends_lingering_batches(broker, topic):
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


async def test_close_sends_lingering_batches(broker, topic):
    async with Producer(broker.address, batch=BatchConfig(linger=60)) as producer:
        future = await producer.enqueue(topic, b"x")

    assert future.result().offset == 0


async def test_the_producer_works_on_uvloop(broker, topic):
    def elsewhere():
        async def main():
            async with Producer(broker.address, compression="zstd") as producer:
                return await producer.send_many(topic, [b"x" * 100] * 20_000)

        return uvloop.run(main())

    assert await asyncio.to_thread(elsewhere) == [OffsetRange(topic, 0, 0, 20_000)]


# Serializers.


async def test_keys_and_values_are_serialized(broker, topic):
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
async def test_an_invalid_record_takes_no_buffer_memory(broker, topic, record, kind):
    async with Producer(broker.address) as producer:
        with pytest.raises(kind):
            await producer.send(topic, **record)
        await producer.send(topic, b"after")
        pool = producer._sender.pool

        assert pool.free == pool.limit
    assert await values_in(broker, topic) == [b"after"]


async def test_mutable_buffers_are_copied(broker, topic):
    value, name = bytearray(b"before"), bytearray(b"before")
    async with Producer(broker.address, batch=BatchConfig(linger=60)) as producer:
        future = await producer.enqueue(topic, value, key=memoryview(name), headers={"a": value})
        value[:], name[:] = b"after!", b"after!"
        await producer.flush()
        await future

    ((_partition, record),) = await read(broker, topic)
    assert (record.value, record.key) == (b"before", b"before")
    assert record.headers == (("a", b"before"),)


async def test_a_record_larger_than_max_message_bytes_fails(broker, topic):
    async with Producer(broker.address) as producer:
        with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
            await producer.send(topic, b"x" * 2_000_000)
        await producer.send(topic, b"small")

    assert await values_in(broker, topic) == [b"small"]


async def test_a_batch_larger_than_max_message_bytes_is_split(broker):
    async with connect(broker.address) as client:
        await create_topic(client, "narrow", 1, max_message_bytes="2000")
    values = [b"%04d" % number * 10 for number in range(1000)]
    async with Producer(broker.address) as producer:
        written = await producer.send_many("narrow", values)
        futures = [await producer.enqueue("narrow", value) for value in values]
        results = await asyncio.gather(*futures)

    assert written == [OffsetRange("narrow", 0, 0, 1000)]
    assert [metadata.offset for metadata in results] == list(range(1000, 2000))
    assert await values_in(broker, "narrow") == values * 2


# Buffer memory.


async def hold_produce_requests(stage, count=100):
    """Delay the responses to Produce until the gate opens."""
    gate = asyncio.Event()

    async def hold(call):
        answer = call.serve()
        await gate.wait()
        return answer

    stage.script(ProduceRequest, *[hold] * count)
    return gate


TIGHT = BatchConfig(batch_bytes=500, buffer_bytes=1000)


async def test_sending_waits_while_the_buffer_is_full():
    async with ScriptedCluster() as stage, Producer(stage.address, batch=TIGHT) as producer:
        gate = await hold_produce_requests(stage)
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

        assert stage.written.values("orders") == [b"%064d" % number for number in range(50)]
        assert producer._sender.pool.free == 1000


async def test_lingering_batches_are_sent_when_the_buffer_is_full():
    batch = BatchConfig(batch_bytes=1000, buffer_bytes=3000, linger=60, buffer_timeout=5)
    async with ScriptedCluster(topics={"orders": 5}) as stage:
        async with Producer(stage.address, batch=batch) as producer, asyncio.timeout(4):
            for number in range(100):
                await producer.enqueue("orders", b"%064d" % number, partition=number % 5)

        assert sum(len(stage.written.values("orders", number)) for number in range(5)) == 100


async def test_a_buffer_that_stays_full_raises_buffer_full_error():
    batch = BatchConfig(batch_bytes=500, buffer_bytes=1000, buffer_timeout=0.1)
    async with ScriptedCluster() as stage, Producer(stage.address, batch=batch) as producer:
        gate = await hold_produce_requests(stage)
        futures = [await producer.enqueue("orders", b"x" * 64) for _ in range(10)]

        with pytest.raises(BufferFullError, match=r"No room for 100 bytes within 0.1 s: 1000 of"):
            await producer.send("orders", b"y" * 64)
        gate.set()
        await asyncio.gather(*futures)
        await producer.send("orders", b"z" * 64)

        assert stage.written.values("orders") == [b"x" * 64] * 10 + [b"z" * 64]
        assert producer._sender.pool.free == 1000


async def test_buffer_memory_is_granted_in_order():
    async with ScriptedCluster() as stage, Producer(stage.address, batch=TIGHT) as producer:
        gate = await hold_produce_requests(stage)
        futures = [await producer.enqueue("orders", b"x" * 64) for _ in range(10)]
        done = []

        async def send(size):
            await producer.send("orders", b"x" * size)
            done.append(size)

        tasks = [asyncio.ensure_future(send(size)) for size in (300, 1, 2)]
        await asyncio.sleep(0.02)
        gate.set()
        await asyncio.gather(*futures, *tasks)

        stored = [len(value) for value in stage.written.values("orders")]
        assert stored[-3:] == [300, 1, 2]


async def test_a_record_larger_than_the_buffer_is_rejected():
    async with ScriptedCluster() as stage, Producer(stage.address, batch=TIGHT) as producer:
        with pytest.raises(RecordTooLargeError, match="1000 fit"):
            await producer.send("orders", b"x" * 1000)
        await producer.send("orders", b"x" * 900)


# Cancellation.


async def test_cancelling_a_send_that_waits_for_memory():
    async with ScriptedCluster() as stage, Producer(stage.address, batch=TIGHT) as producer:
        gate = await hold_produce_requests(stage)
        futures = [await producer.enqueue("orders", b"x" * 64) for _ in range(10)]
        first = asyncio.ensure_future(producer.send("orders", b"a" * 500))
        second = asyncio.ensure_future(producer.send("orders", b"b"))
        await asyncio.sleep(0.02)

        first.cancel()
        gate.set()
        await asyncio.gather(*futures, second)

        assert first.cancelled()
        assert stage.written.values("orders") == [b"x" * 64] * 10 + [b"b"]
        assert producer._sender.pool.free == 1000


async def test_cancelling_a_send_at_the_moment_memory_is_granted():
    async with ScriptedCluster() as stage, Producer(stage.address, batch=TIGHT) as producer:
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
        assert stage.written.values("orders") == [b"first"]


async def test_cancelling_a_send_during_the_metadata_lookup():
    async with ScriptedCluster() as stage, Producer(stage.address) as producer:
        gate = asyncio.Event()

        async def hold(call):
            await gate.wait()
            return call.serve()

        stage.script(MetadataRequest, hold)
        first = asyncio.ensure_future(producer.send("orders", b"a"))
        second = asyncio.ensure_future(producer.send("orders", b"b"))
        await eventually(lambda: stage.requests_of(MetadataRequest))
        first.cancel()
        gate.set()
        await second

        assert first.cancelled()
        assert stage.written.values("orders") == [b"b"]


async def test_cancelling_a_send_that_waits_for_its_ack():
    async with ScriptedCluster() as stage, Producer(stage.address) as producer:
        gate = await hold_produce_requests(stage)
        tasks = [asyncio.ensure_future(producer.send("orders", b"%d" % n)) for n in range(5)]
        await eventually(lambda: stage.requests_of(ProduceRequest))

        tasks[2].cancel()
        gate.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)

        assert [getattr(result, "offset", None) for result in results] == [0, 1, None, 3, 4]
        assert len(stage.written.values("orders")) == 5
        assert producer._sender.pool.free == producer._sender.pool.limit


async def test_cancelling_random_sends_loses_no_other_record(broker, topic):
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


async def test_cancelling_send_many_and_flush(broker, topic):
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


# Close and errors.


async def test_a_closed_producer_raises_closed_error(broker, topic):
    producer = Producer(broker.address)
    await producer.send(topic, b"x")
    await producer.close()
    await producer.close()

    for verb in (producer.send, producer.enqueue):
        with pytest.raises(ClosedError):
            await verb(topic, b"x")
    with pytest.raises(ClosedError):
        await producer.send_many(topic, [b"x"])


async def test_an_unused_producer_can_be_closed():
    await Producer("127.0.0.1:1").close()


async def test_close_fails_sends_that_wait_for_memory():
    async with ScriptedCluster() as stage:
        producer = Producer(stage.address, batch=TIGHT)
        gate = await hold_produce_requests(stage)
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


async def test_a_cancelled_close_fails_pending_records():
    async with ScriptedCluster() as stage:
        producer = Producer(stage.address)
        await hold_produce_requests(stage)
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


async def test_start_connects_or_raises():
    client = ClientConfig(timeouts=TimeoutConfig(operation=0.3, connect=0.2))
    producer = Producer("127.0.0.1:1", client=client)

    with pytest.raises(DeadlineError, match="connecting did not succeed"):
        await producer.start()
    with pytest.raises(ClosedError):
        await producer.send("t", b"x")


async def test_an_unreachable_cluster_raises_deadline_error():
    quick = TimeoutConfig(connect=1, operation=1)
    config = ClientConfig(retry=RetryConfig(backoff=0.01), timeouts=quick)
    producer = Producer("127.0.0.1:1", client=config)
    try:
        with pytest.raises(DeadlineError, match="Metadata lookup of topic 'orders'") as caught:
            await producer.send("orders", b"x")
    finally:
        await producer.close()

    assert isinstance(caught.value.__cause__, ConnectionLostError)


@pytest.mark.parametrize("kind", [Producer, Consumer, blocking.Producer, blocking.Consumer])
async def test_producers_and_consumers_connect_when_they_are_entered(kind):
    quick = ClientConfig(timeouts=TimeoutConfig(connect=1, operation=0.3))

    async def enter():
        if kind in (Producer, Consumer):
            async with kind("127.0.0.1:1", client=quick):
                pass
        else:
            await asyncio.to_thread(kind, "127.0.0.1:1", client=quick)

    with pytest.raises(DeadlineError, match="connecting did not succeed"):
        await enter()


async def test_a_value_that_is_not_bytes_is_rejected_with_advice(broker):
    async with Producer(broker.address) as producer:
        with pytest.raises(SerializationError, match="value is int, not bytes: encode it,"):
            await producer.send("t", 5)


async def test_an_invalid_topic_name_is_rejected(broker):
    async with Producer(broker.address) as producer:
        with pytest.raises(KafkaError, match="INVALID_TOPIC_EXCEPTION"):
            await producer.send("no/topic", b"x")


async def test_a_missing_topic_is_not_created_without_allow_auto_create(broker):
    quick = TimeoutConfig(operation=1)
    config = ClientConfig(timeouts=quick, allow_auto_create=False)
    async with Producer(broker.address, client=config) as producer:
        with pytest.raises(DeadlineError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            await producer.send("unknown", b"x")


async def test_a_deleted_topic_is_created_again_by_a_write_and_not_by_a_metadata_refresh(broker):
    calls = []
    config = ClientConfig(
        metadata_max_age=0.02, on_request=lambda api, *_: calls.append(api == "Metadata")
    )
    async with Producer(broker.address, client=config) as producer, Admin(broker.address) as admin:
        await producer.send("short-lived", b"x")
        await admin.delete_topics("short-lived")
        before = sum(calls)
        await eventually(lambda: sum(calls) > before + 3)

        assert not await admin.list_topics()
        assert (await producer.send("short-lived", b"y")).offset == 0


async def test_a_bug_in_the_producer_fails_all_records(caplog):
    async with ScriptedCluster() as stage, Producer(stage.address) as producer:
        await producer.send("orders", b"x")
        batch = producer._sender.open_batch(producer._sender.queues["orders"][0])
        batch.count = 1  # without a record

        future = await producer.enqueue("orders", b"y")
        with pytest.raises(Exception, match="The producer failed"):
            await future
        with pytest.raises(Exception, match="The producer failed"):
            await producer.send("orders", b"z")

    assert "ottla producer: broker 0 failed" in caplog.text


@pytest.mark.parametrize(
    "configs",
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
def test_invalid_configs_are_rejected(configs):
    with pytest.raises(ValueError, match=next(iter(configs))):
        Producer("localhost", **configs)


@pytest.mark.parametrize(
    "configs",
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
def test_an_invalid_batch_config_is_rejected(configs):
    with pytest.raises(ValueError, match=r"\d"):
        BatchConfig(**configs)
