"""Transactions of the SDK beside those of other libraries, in the same partitions.

Each library reads the committed records of all producers, and nothing else.
"""

from __future__ import annotations

import asyncio

import aiokafka
import confluent_kafka
import pytest

from ottla.client import Admin, Consumer, Producer, TopicPartition

SECONDS = 30.0
#: Transactions of each producer; every second one is aborted.
ROUNDS = 4
PARTITIONS = 2
EXPECTED = sorted(
    b"%s-%d-%d" % (name, number, partition)
    for name in (b"sdk", b"confluent", b"aiokafka")
    for number in range(0, ROUNDS, 2)
    for partition in range(PARTITIONS)
)


@pytest.fixture
async def topic(broker, name):
    async with Admin(broker.address) as admin:
        await admin.create_topic(name, partitions=PARTITIONS)
    return name


async def write_all(address, topic):
    """Write with three producers, whose transactions are open at the same time."""
    confluent = confluent_kafka.Producer(
        {"bootstrap.servers": address, "transactional.id": f"{topic}-confluent"}
    )
    await asyncio.to_thread(confluent.init_transactions, SECONDS)
    async with (
        Producer(address, transactional_id=f"{topic}-sdk") as sdk,
        aiokafka.AIOKafkaProducer(
            bootstrap_servers=address, transactional_id=f"{topic}-aiokafka"
        ) as aio,
    ):
        for number in range(ROUNDS):
            await sdk.begin_transaction()
            confluent.begin_transaction()
            await aio.begin_transaction()
            for partition in range(PARTITIONS):
                suffix = b"-%d-%d" % (number, partition)
                await sdk.send(topic, b"sdk" + suffix, partition=partition)
                confluent.produce(topic, b"confluent" + suffix, partition=partition)
                await asyncio.to_thread(confluent.flush, SECONDS)
                await aio.send_and_wait(topic, b"aiokafka" + suffix, partition=partition)
            if number % 2:
                await aio.abort_transaction()
                await sdk.abort_transaction()
                await asyncio.to_thread(confluent.abort_transaction, SECONDS)
            else:
                await sdk.commit_transaction()
                await asyncio.to_thread(confluent.commit_transaction, SECONDS)
                await aio.commit_transaction()


async def read_with_sdk(address, topic):
    async with Consumer(address, topic, isolation="read_committed") as consumer:
        values = []
        while any((await consumer.lag()).values()):
            for records in (await consumer.getmany(timeout=0.2)).values():
                values += [record.value for record in records]
    return sorted(values)


async def read_with_aiokafka(address, topic):
    async with (
        aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=address,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            enable_auto_commit=False,
        ) as consumer,
        asyncio.timeout(SECONDS),
    ):
        return sorted([(await consumer.getone()).value for _ in EXPECTED])


def read_with_confluent(address, topic):
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    messages = [consumer.poll(SECONDS) for _ in EXPECTED]
    assert consumer.poll(0.5) is None
    consumer.close()
    return sorted(message.value() for message in messages)


async def test_each_library_reads_the_committed_records_of_all(broker, topic):
    await write_all(broker.address, topic)

    assert await read_with_sdk(broker.address, topic) == EXPECTED
    assert await read_with_aiokafka(broker.address, topic) == EXPECTED
    assert await asyncio.to_thread(read_with_confluent, broker.address, topic) == EXPECTED


async def test_other_libraries_see_offsets_that_the_sdk_has_committed(broker, topic):
    async with Producer(broker.address, transactional_id=f"{topic}-offsets") as producer:
        async with producer.transaction() as transaction:
            await transaction.commit_offsets({TopicPartition(topic, 0): 7}, f"{topic}-group")
        await producer.begin_transaction()
        await producer.commit_offsets({TopicPartition(topic, 0): 9}, f"{topic}-group")
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.address, "group.id": f"{topic}-group"}
    )
    committed = await asyncio.to_thread(
        consumer.committed, [confluent_kafka.TopicPartition(topic, 0)], SECONDS
    )
    consumer.close()
    assert committed[0].offset == 7
