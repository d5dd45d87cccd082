"""Transactional producers of other libraries: commit, abort, read_committed, and offsets.

Each client produces in transactions, and copies records from one topic to another in the way that
its library documents: consume, transform, produce, and commit the offsets in the transaction.
"""

from __future__ import annotations

import asyncio
import time

import aiokafka
import confluent_kafka
import kafka
import pytest
from aiokafka.structs import TopicPartition as AiokafkaPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as KafkaPythonPartition

TIMEOUT_SECONDS = 30.0
#: Transactions of each client; every second one is aborted.
TRANSACTIONS = 4
PARTITIONS = 2


@pytest.fixture
def topics(broker, topic):
    """Two topics: to produce to, and to copy into."""
    admin = AdminClient({"bootstrap.servers": broker.address})
    names = [f"{topic}-in", f"{topic}-out"]
    created = admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names])
    for future in created.values():
        future.result(TIMEOUT_SECONDS)
    return names


def committed_values(address, topic):
    """Read the committed values of a topic with librdkafka, and no more than these."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": f"reader-of-{topic}",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign(
        [confluent_kafka.TopicPartition(topic, index, 0) for index in range(PARTITIONS)]
    )
    values, ends = [], set()
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while len(ends) < PARTITIONS:
        assert time.monotonic() < deadline, values
        message = consumer.poll(0.5)
        if message is None:
            continue
        if message.error():
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
            ends.add(message.partition())
        else:
            values.append(message.value())
    consumer.close()
    return sorted(values)


def expected_values():
    return sorted(
        b"%d-%d" % (number, index)
        for number in range(0, TRANSACTIONS, 2)
        for index in range(PARTITIONS)
    )


def test_confluent(broker, topics):
    source, target = topics
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.address, "transactional.id": source}
    )
    producer.init_transactions(TIMEOUT_SECONDS)
    for number in range(TRANSACTIONS):
        producer.begin_transaction()
        for index in range(PARTITIONS):
            producer.produce(source, b"%d-%d" % (number, index), partition=index)
        if number % 2:
            producer.flush(TIMEOUT_SECONDS)
            producer.abort_transaction(TIMEOUT_SECONDS)
        else:
            producer.commit_transaction(TIMEOUT_SECONDS)
    assert committed_values(broker.address, source) == expected_values()

    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": source,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([source])
    for aborts in (True, False):
        copied = []
        producer.begin_transaction()
        while len(copied) < len(expected_values()):
            message = consumer.poll(TIMEOUT_SECONDS)
            assert message is not None
            assert message.error() is None
            copied.append(message)
            producer.produce(target, message.value(), partition=message.partition())
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()),
            consumer.consumer_group_metadata(),
            TIMEOUT_SECONDS,
        )
        if aborts:
            producer.flush(TIMEOUT_SECONDS)
            producer.abort_transaction(TIMEOUT_SECONDS)
            for tp in consumer.assignment():
                consumer.seek(confluent_kafka.TopicPartition(tp.topic, tp.partition, 0))
        else:
            producer.commit_transaction(TIMEOUT_SECONDS)
    assert committed_values(broker.address, target) == expected_values()
    committed = consumer.committed(consumer.assignment(), TIMEOUT_SECONDS)
    assert [tp.offset > 0 for tp in committed] == [True] * PARTITIONS
    consumer.close()


def test_confluent_fences_an_older_instance(broker, topics):
    source, _target = topics
    config = {"bootstrap.servers": broker.address, "transactional.id": f"{source}-fenced"}
    first, second = (confluent_kafka.Producer(config) for _ in range(2))
    first.init_transactions(TIMEOUT_SECONDS)
    first.begin_transaction()
    first.produce(source, b"first", partition=0)
    first.flush(TIMEOUT_SECONDS)

    second.init_transactions(TIMEOUT_SECONDS)
    second.begin_transaction()
    second.produce(source, b"second", partition=0)
    second.commit_transaction(TIMEOUT_SECONDS)

    with pytest.raises(confluent_kafka.KafkaException) as caught:
        first.commit_transaction(TIMEOUT_SECONDS)
    assert caught.value.args[0].fatal()
    assert committed_values(broker.address, source) == [b"second"]


async def test_aiokafka(broker, topics):
    source, target = topics
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=broker.address, transactional_id=f"{source}-aiokafka"
    )
    await producer.start()
    consumer = aiokafka.AIOKafkaConsumer(
        source,
        bootstrap_servers=broker.address,
        group_id=source,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        enable_auto_commit=False,
    )
    await consumer.start()
    try:
        for number in range(TRANSACTIONS):
            await producer.begin_transaction()
            for index in range(PARTITIONS):
                await producer.send_and_wait(source, b"%d-%d" % (number, index), partition=index)
            await (producer.abort_transaction() if number % 2 else producer.commit_transaction())
        async with asyncio.timeout(TIMEOUT_SECONDS):
            messages = [await consumer.getone() for _ in expected_values()]
        assert sorted(message.value for message in messages) == expected_values()

        async with producer.transaction():
            for message in messages:
                await producer.send(target, message.value, partition=message.partition)
            offsets = {
                AiokafkaPartition(source, message.partition): message.offset + 1
                for message in messages
            }
            await producer.send_offsets_to_transaction(offsets, source)
        assert {tp: await consumer.committed(tp) for tp in offsets} == offsets
    finally:
        await consumer.stop()
        await producer.stop()
    values = await asyncio.to_thread(committed_values, broker.address, target)
    assert values == expected_values()


def test_kafka_python(broker, topics):
    source, target = topics
    producer = kafka.KafkaProducer(
        bootstrap_servers=broker.address, transactional_id=f"{source}-kafka-python"
    )
    producer.init_transactions()
    for number in range(TRANSACTIONS):
        producer.begin_transaction()
        for index in range(PARTITIONS):
            producer.send(source, b"%d-%d" % (number, index), partition=index)
        if number % 2:
            producer.flush()
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    consumer = kafka.KafkaConsumer(
        source,
        bootstrap_servers=broker.address,
        group_id=source,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        enable_auto_commit=False,
        consumer_timeout_ms=TIMEOUT_SECONDS * 1000,
    )
    messages = [next(consumer) for _ in expected_values()]
    assert sorted(message.value for message in messages) == expected_values()

    producer.begin_transaction()
    offsets = {}
    for message in messages:
        producer.send(target, message.value, partition=message.partition)
        tp = KafkaPythonPartition(source, message.partition)
        offsets[tp] = OffsetAndMetadata(message.offset + 1, "", -1)
    producer.send_offsets_to_transaction(offsets, source)
    producer.commit_transaction()
    assert {tp: consumer.committed(tp) for tp in offsets} == {
        tp: offset.offset for tp, offset in offsets.items()
    }
    consumer.close()
    producer.close()
    assert committed_values(broker.address, target) == expected_values()
