"""Transactions of the producer, over a real broker: commit, abort, fencing, both protocols."""

import asyncio
from functools import partial

import pyarrow as pa
import pytest

from harness.requests import create_topic
from harness.waiting import eventually
from harness.wire import connect
from ottla.broker import Broker, BrokerConfig
from ottla.broker.requests.handlers import api_versions
from ottla.client import (
    AbortableTransactionError,
    Admin,
    Consumer,
    ConsumerError,
    ErrorCode,
    GroupConfig,
    KafkaError,
    Producer,
    ProducerFencedError,
    ProducerRecord,
    TopicPartition,
    TransactionError,
    blocking,
)

PARTITIONS = 2


@pytest.fixture(params=[1, 2], ids=["TV1", "TV2"])
def version(request, monkeypatch):
    """The level of transaction.version that the broker has: clients choose the protocol by it."""
    monkeypatch.setitem(api_versions.FEATURES, "transaction.version", request.param)
    return request.param


@pytest.fixture
async def broker(tmp_path):
    config = BrokerConfig(
        log_dir=str(tmp_path), listeners="PLAINTEXT://127.0.0.1:0", num_partitions=PARTITIONS
    )
    async with Broker(config) as started:
        yield started


@pytest.fixture
async def topic(broker):
    async with connect(broker.address) as client:
        await create_topic(client, "orders", PARTITIONS)
    return "orders"


class OopsError(Exception):
    """Raised in a transaction."""


async def fail_in_transaction(producer, *sends, consumer=None):
    """Await some calls in a transaction, and raise at its end."""
    async with producer.transaction(consumer):
        for send in sends:
            await send()
        raise OopsError


async def read(broker, topic, *, isolation="read_committed"):
    """Return the values of a topic up to its end, sorted."""
    async with Consumer(broker.address, topic, isolation=isolation) as consumer:
        values = []
        while any((await consumer.lag()).values()):
            for records in (await consumer.getmany(timeout=0.2)).values():
                values += [record.value for record in records]
    return sorted(values)


async def test_records_are_visible_after_the_commit(broker, topic, version):
    async with Producer(broker.address, transactional_id="a") as producer:
        async with producer.transaction():
            await producer.send(topic, b"1", partition=0)
            await producer.send_many(topic, [ProducerRecord(b"2", partition=1), b"3"])
            await producer.send_arrow(topic, pa.table({"value": [b"4", b"5"]}))
            await producer.enqueue(topic, b"6")

            assert await read(broker, topic) == []
        assert await read(broker, topic) == [b"1", b"2", b"3", b"4", b"5", b"6"]
        async with producer.transaction():
            await producer.send(topic, b"7", partition=0)
    assert await read(broker, topic) == [b"1", b"2", b"3", b"4", b"5", b"6", b"7"]


async def test_an_exception_aborts(broker, topic, version):
    async with Producer(broker.address, transactional_id="a") as producer:
        for number in range(4):
            with pytest.raises(OopsError):
                await fail_in_transaction(
                    producer,
                    partial(producer.send, topic, b"%d" % number, partition=0),
                    partial(producer.enqueue, topic, b"%d" % number, partition=1),
                )
        async with producer.transaction():
            await producer.send_many(topic, [b"8", b"9"])
    assert await read(broker, topic) == [b"8", b"9"]
    assert len(await read(broker, topic, isolation="read_uncommitted")) >= 6


async def test_a_cancellation_aborts(broker, topic, version):
    async def never_ends(producer):
        async with producer.transaction():
            await producer.send(topic, b"1")
            sent.set()
            await asyncio.Event().wait()

    sent = asyncio.Event()
    async with Producer(broker.address, transactional_id="a") as producer:
        task = asyncio.create_task(never_ends(producer))
        await sent.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not producer.is_in_transaction
        async with producer.transaction():
            await producer.send(topic, b"2")
    assert await read(broker, topic) == [b"2"]


async def test_a_failed_record_fails_the_commit(broker, topic, version):
    async def send_too_much():
        async with producer.transaction():
            await producer.send(topic, b"1")
            # Larger than max.message.bytes; nobody looks at the future.
            await producer.enqueue(topic, b"2" * 3_000_000)

    async def send_nowhere():
        async with producer.transaction():
            with pytest.raises(KafkaError):
                await producer.send(topic, b"4", partition=PARTITIONS)
            with pytest.raises(AbortableTransactionError):
                await producer.send(topic, b"5")

    async with Producer(broker.address, transactional_id="a") as producer:
        with pytest.raises(AbortableTransactionError, match="larger than"):
            await send_too_much()
        async with producer.transaction():
            await producer.send(topic, b"3")
        with pytest.raises(AbortableTransactionError):
            await send_nowhere()
    assert await read(broker, topic) == [b"3"]


async def test_records_outside_of_a_transaction_are_rejected(broker, topic):
    async with Producer(broker.address, transactional_id="a") as producer:
        for send in (
            producer.send(topic, b"1"),
            producer.send_many(topic, [b"1"]),
            producer.send_arrow(topic, pa.table({"value": [b"1"]})),
        ):
            with pytest.raises(TransactionError, match="No transaction is open"):
                await send
        with pytest.raises(TransactionError, match="Cannot commit: no transaction is open"):
            await producer.commit_transaction()
        await producer.begin_transaction()
        with pytest.raises(TransactionError, match="a transaction is open"):
            await producer.begin_transaction()
        await producer.commit_transaction()
        with pytest.raises(TransactionError, match="No transaction is open"):
            await producer.send(topic, b"1")
    async with Producer(broker.address) as producer:
        with pytest.raises(TransactionError, match="no transactional_id"):
            producer.transaction()


async def test_a_newer_producer_fences_an_older_one(broker, topic, version):
    async with (
        Producer(broker.address, transactional_id="a") as first,
        Producer(broker.address, transactional_id="a") as second,
    ):
        await first.begin_transaction()
        await first.send(topic, b"1")
        await second.start()
        async with second.transaction():
            await second.send(topic, b"2")
        assert (second.producer_id, second.producer_epoch) > (first.producer_id, -1)

        with pytest.raises(ProducerFencedError):
            await first.commit_transaction()
        with pytest.raises(ProducerFencedError):
            await first.abort_transaction()
        with pytest.raises(ProducerFencedError):
            await first.begin_transaction()
        with pytest.raises(ProducerFencedError):
            await first.send(topic, b"3")
    assert await read(broker, topic) == [b"2"]


async def test_closing_aborts(broker, topic, version):
    async with Producer(broker.address, transactional_id="a") as producer:
        await producer.begin_transaction()
        await producer.send(topic, b"1")

    assert await read(broker, topic) == []
    async with Consumer(broker.address, topic, isolation="read_committed") as consumer:
        ends = await consumer.end_offsets()
    assert sum(ends.values()) == 2  # the record and the marker: nothing is open


@pytest.mark.parametrize("is_commit", [True, False])
async def test_a_detached_transaction_is_ended_by_an_admin(broker, topic, is_commit):
    async with Producer(broker.address, transactional_id="a") as producer:
        await producer.begin_transaction()
        await producer.send_many(topic, [b"1", b"2"])
        detached = await producer.detach()
        assert (detached.producer_id, detached.producer_epoch) == (
            producer.producer_id,
            producer.producer_epoch,
        )
        with pytest.raises(TransactionError):
            await producer.send(topic, b"3")
        with pytest.raises(TransactionError, match="was detached"):
            await producer.commit_transaction()
    transaction = detached[:3]
    assert not detached.is_empty
    assert await read(broker, topic) == []

    async with Admin(broker.address) as admin:
        for _ in range(2):
            await admin.end_transaction(*transaction, commit=is_commit)
        with pytest.raises(KafkaError) as opposite:
            await admin.end_transaction(*transaction, commit=not is_commit)
        assert opposite.value.code is ErrorCode.INVALID_TXN_STATE
        assert await read(broker, topic) == ([b"1", b"2"] if is_commit else [])
        async with Producer(broker.address, transactional_id="a") as newer:
            await newer.start()
            with pytest.raises(ProducerFencedError):
                await admin.end_transaction(*transaction, commit=is_commit)


async def test_a_detached_transaction_without_records_is_empty(broker, topic):
    async with Producer(broker.address, transactional_id="a") as producer:
        await producer.begin_transaction()
        assert (await producer.detach()).is_empty


async def test_consume_transform_produce(broker, topic, version):
    async with Producer(broker.address) as plain:
        await plain.send_many(topic, [b"%d" % number for number in range(10)])

    async def copy():
        copied = [await consumer.getone() for _ in range(5)]
        await producer.send_many("copies", [record.value for record in copied])

    async with (
        Producer(broker.address, transactional_id="a") as producer,
        Consumer(broker.address, topic, group="g", auto_commit=None) as consumer,
    ):
        with pytest.raises(OopsError):
            await fail_in_transaction(producer, copy, consumer=consumer)
        assert not any((await consumer.committed()).values())
        async with producer.transaction() as transaction:
            await copy()
            await transaction.commit_offsets(consumer)
        async with producer.transaction() as transaction:
            copied = [await consumer.getone() for _ in range(5)]
            await producer.send_many("copies", [record.value for record in copied])
            offsets = {TopicPartition(r.topic, r.partition): r.offset + 1 for r in copied}
            await transaction.commit_offsets(offsets, consumer.group_metadata)
        committed = await consumer.committed()
    assert sum(one.offset for one in committed.values() if one) == 10
    assert await read(broker, "copies") == [b"%d" % number for number in range(10)]


async def test_offsets_of_a_consumer_that_commits_itself_are_rejected(broker, topic):
    async with (
        Producer(broker.address, transactional_id="a") as producer,
        Consumer(broker.address, topic, group="g") as consumer,
    ):
        await producer.begin_transaction()
        with pytest.raises(ConsumerError, match="auto_commit=None"):
            await producer.commit_offsets(consumer)


async def test_offsets_of_a_member_that_was_removed_are_rejected(broker, topic, version):
    async with Producer(broker.address, transactional_id="a") as producer:
        async with Consumer(broker.address, topic, group="g", auto_commit=None) as consumer:
            while not consumer.assignment:
                await asyncio.sleep(0.01)
            member = consumer.group_metadata
        await producer.begin_transaction()
        with pytest.raises(AbortableTransactionError) as failed:
            await producer.commit_offsets({TopicPartition(topic, 0): 1}, member)
        with pytest.raises(AbortableTransactionError):
            await producer.commit_transaction()
        await producer.abort_transaction()
        assert failed.value.__cause__.code in (
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.ILLEGAL_GENERATION,
        )
        async with producer.transaction() as transaction:
            await transaction.commit_offsets({TopicPartition(topic, 0): 1}, "g")
        async with Consumer(broker.address, group="g") as consumer:
            committed = await consumer.committed(TopicPartition(topic, 0))
    assert committed[TopicPartition(topic, 0)].offset == 1


async def test_a_rebalance_that_did_not_wait_fails_the_transaction(broker, topic):
    async with Producer(broker.address) as plain:
        await plain.send_many(topic, [ProducerRecord(b"1", partition=0)] * 5)
    options = {
        "group": "g",
        "auto_commit": None,
        "group_config": GroupConfig(processing_timeout=0, heartbeat_interval=0.05),
    }
    async with (
        Producer(broker.address, transactional_id="a") as producer,
        Consumer(broker.address, topic, **options) as first,
    ):
        await producer.begin_transaction()
        (records,) = (await first.getmany()).values()
        await producer.send_many("copies", [record.value for record in records])
        async with Consumer(broker.address, topic, **options) as second:
            await eventually(lambda: first.assignment and second.assignment, 30)
            # It is a member, and its generation is current; but another one reads the records.
            assert first.group_metadata.generation_id == second.group_metadata.generation_id
            with pytest.raises(AbortableTransactionError, match="was revoked after records"):
                await producer.commit_offsets(first)
            with pytest.raises(AbortableTransactionError):
                await producer.commit_transaction()
            await producer.abort_transaction()
            first.seek_to_committed()
            async with producer.transaction() as transaction:
                await transaction.commit_offsets(first)
    assert await read(broker, "copies") == []


def test_blocking_producer(ottla_session_broker):
    address, topic = ottla_session_broker.bootstrap, "blocking-transactions"
    with blocking.Admin(address) as admin:
        admin.create_topic(topic, partitions=2)
    with (
        blocking.Producer(address, transactional_id="blocking") as producer,
        blocking.Consumer(address, topic, group="blocking", auto_commit=None) as consumer,
    ):
        with producer.transaction():
            producer.send_many(topic, [b"1", b"2"])
            for _ in range(3):
                producer.enqueue(topic, b"3")
        with pytest.raises(KeyError), producer.transaction():
            producer.enqueue(topic, {}[producer])
        with pytest.raises(AbortableTransactionError), producer.transaction():
            producer.enqueue(topic, b"5", partition=7)
        with producer.transaction(consumer):
            values = []
            while len(values) < 5:
                for records in consumer.getmany(timeout=5).values():
                    values += [record.value for record in records]
        assert sum(one.offset for one in consumer.committed().values() if one) >= 5
        producer.begin_transaction()
        producer.send(topic, b"6")
        detached = producer.detach()
    with blocking.Admin(address) as admin:
        admin.end_transaction(*detached[:3], commit=True)
