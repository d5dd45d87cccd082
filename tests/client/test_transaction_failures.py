"""Transactions of the producer, while brokers, producers and group members are killed.

What a read_committed consumer of another library sees is compared with what was committed.
"""

import asyncio
import contextlib
import signal
import subprocess
import sys

import confluent_kafka
import pytest

from harness.daemon import Cluster, Daemon, shown_on_failure
from harness.waiting import eventually
from ottla.client import (
    AbortableTransactionError,
    Admin,
    ClientConfig,
    ClientError,
    Consumer,
    DeadlineError,
    GroupConfig,
    KafkaError,
    Producer,
    ProducerFencedError,
    RetryConfig,
    TimeoutConfig,
)

pytestmark = pytest.mark.real_time

PARTITIONS = 3
SECONDS = 60.0
QUICK = ClientConfig(
    retry=RetryConfig(backoff=0.01, max_backoff=0.1),
    timeouts=TimeoutConfig(connect=2, request=5, operation=30),
)
CONFIGS = (
    f"num.partitions={PARTITIONS}",
    "group.initial.rebalance.delay.ms=0",
    "group.min.session.timeout.ms=100",
    "transaction.state.log.num.partitions=3",
    "offsets.topic.num.partitions=3",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms=50",
)
FLAGS = [flag for config in CONFIGS for flag in ("--set", config)]


@pytest.fixture
def broker(tmp_path, request):
    with Daemon(tmp_path, *FLAGS) as started, shown_on_failure(request, [started]):
        yield started


@pytest.fixture
def cluster(tmp_path, request):
    with Cluster(tmp_path, 3, *FLAGS) as started, shown_on_failure(request, started.brokers):
        yield started


def a_producer(address, transactional_id="id", **more):
    return Producer(address, transactional_id=transactional_id, client=QUICK, **more)


def committed_values(address, topic):
    """Read the committed values of a topic with librdkafka, and no more than these."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "unused",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "broker.address.family": "v4",
        }
    )
    consumer.assign(
        [confluent_kafka.TopicPartition(topic, index, 0) for index in range(PARTITIONS)]
    )
    values, ends = [], set()
    while len(ends) < PARTITIONS:
        message = consumer.poll(SECONDS)
        assert message is not None, f"{len(ends)} of {PARTITIONS} partitions end"
        if message.error():
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
            ends.add(message.partition())
        else:
            values.append(message.value())
    consumer.close()
    return sorted(values)


async def restart(broker):
    await asyncio.to_thread(broker.kill)
    await asyncio.to_thread(broker.start)


async def test_a_broker_is_killed_between_the_steps_of_a_transaction(broker):
    async with a_producer(broker.address) as producer:
        await producer.begin_transaction()
        await restart(broker)
        await producer.send_many("orders", [b"1", b"2"])
        await restart(broker)
        await producer.send("orders", b"3", key=b"3")
        await restart(broker)
        await producer.commit_transaction()
        await restart(broker)

        await producer.begin_transaction()
        await producer.send("orders", b"4")
        await restart(broker)
        await producer.abort_transaction()

        # While it is down: records and the commit wait for it.
        await producer.begin_transaction()
        await asyncio.to_thread(broker.kill)
        sent = await producer.enqueue("orders", b"5", partition=0)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(producer.commit_transaction())
            tasks.create_task(asyncio.to_thread(broker.start))
        assert (await sent).partition == 0
    assert await asyncio.to_thread(committed_values, broker.address, "orders") == [
        b"1",
        b"2",
        b"3",
        b"5",
    ]


IMPATIENT = ClientConfig(
    retry=QUICK.retry, timeouts=TimeoutConfig(connect=1, request=1, operation=1)
)


async def test_a_commit_that_comes_too_late_is_reported_by_the_next_transaction(broker):
    async with Producer(
        broker.address, transactional_id="id", transaction_timeout=0.2, client=IMPATIENT
    ) as producer:
        await producer.begin_transaction()
        await producer.send("orders", b"1")
        await asyncio.to_thread(broker.kill)
        with pytest.raises(DeadlineError, match="may or may not be committed"):
            await producer.commit_transaction()
        await asyncio.to_thread(broker.start)
        async with Admin(broker.address) as admin:
            await eventually(lambda: is_aborted(admin), SECONDS)
        with pytest.raises(AbortableTransactionError):
            await producer.begin_transaction()
        async with producer.transaction():
            await producer.send("orders", b"2")
    assert await asyncio.to_thread(committed_values, broker.address, "orders") == [b"2"]


async def is_aborted(admin):
    return (await admin.describe_transactions("id"))["id"].state == "CompleteAbort"


async def test_an_unknown_outcome_is_found_out_later(broker):
    async with Producer(broker.address, transactional_id="id", client=IMPATIENT) as producer:
        await producer.begin_transaction()
        await producer.send("orders", b"1")
        broker.pause()
        with pytest.raises(DeadlineError, match="may or may not be committed"):
            await producer.commit_transaction()
        assert not producer.is_in_transaction
        broker.resume()
        await eventually(lambda: asyncio.to_thread(broker.responds), SECONDS)
        # The next transaction completes the last one.
        async with producer.transaction():
            await producer.send("orders", b"2")
    assert await asyncio.to_thread(committed_values, broker.address, "orders") == [b"1", b"2"]


async def test_a_transaction_that_times_out_is_aborted_and_the_producer_goes_on(broker):
    async with (
        a_producer(broker.address, transaction_timeout=0.2) as producer,
        Admin(broker.address) as admin,
    ):
        for end in (producer.commit_transaction, lambda: producer.send("orders", b"late")):
            await producer.begin_transaction()
            await producer.send("orders", b"1")
            await eventually(lambda: is_aborted(admin), SECONDS)
            with pytest.raises((AbortableTransactionError, KafkaError)):
                await end()
            with pytest.raises(AbortableTransactionError):
                await producer.commit_transaction()
            await producer.abort_transaction()
        async with producer.transaction():
            await producer.send("orders", b"2")
    assert await asyncio.to_thread(committed_values, broker.address, "orders") == [b"2"]


CRASHING = """
import sys
from ottla.client.blocking import Producer
producer = Producer(sys.argv[1], transactional_id="id")
producer.begin_transaction()
producer.send_many("orders", [b"lost"] * 100)
print("sent", flush=True)
sys.stdin.read()
"""


async def test_a_producer_is_killed_in_its_transaction(broker):
    process = subprocess.Popen(
        [sys.executable, "-c", CRASHING, broker.address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert await asyncio.to_thread(process.stdout.readline) == b"sent\n"
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.communicate()
    async with a_producer(broker.address) as producer:
        async with producer.transaction():
            await producer.send("orders", b"1")
        assert await asyncio.to_thread(committed_values, broker.address, "orders") == [b"1"]


class Copier:
    """Copies `orders` to `copies`, exactly once, as docs/client.md shows."""

    def __init__(self, bootstrap, number):
        self.bootstrap = bootstrap
        self.number = number
        self.transactions = self.aborts = 0

    async def run(self):
        quick = GroupConfig(heartbeat_interval=0.1, session_timeout=3)
        async with (
            a_producer(self.bootstrap, f"copier-{self.number}") as producer,
            Consumer(
                self.bootstrap,
                "orders",
                group="copiers",
                auto_commit=None,
                isolation="read_committed",
                group_config=quick,
                client=QUICK,
            ) as consumer,
        ):
            while True:
                try:
                    async with producer.transaction(consumer):
                        polled = await consumer.getmany(timeout=0.05, max_records=20)
                        for records in polled.values():
                            for record in records:
                                await producer.enqueue("copies", record.value)
                    self.transactions += 1
                except (AbortableTransactionError, DeadlineError):
                    self.aborts += 1


async def copy_with(bootstrap, count, disturb):
    """Write orders and copy them with two members, while `disturb` runs; stop when all are read."""
    copiers = [Copier(bootstrap, number) for number in range(2)]
    async with Admin(bootstrap, client=QUICK) as admin, a_producer(bootstrap, "source") as source:
        for topic in ("orders", "copies"):
            await admin.create_topic(topic, partitions=PARTITIONS)
        tasks = [asyncio.create_task(copiers[0].run())]
        trouble = asyncio.create_task(disturb(tasks, copiers))
        for number in range(0, count, 20):
            values = [b"%d" % value for value in range(number, number + 20)]
            while True:
                try:
                    async with source.transaction():
                        await source.send_many("orders", values)
                    break
                except AbortableTransactionError:
                    continue
            await asyncio.sleep(0.01)
        await trouble

        async def is_done():
            for task in tasks:
                if task.done() and not task.cancelled():
                    task.result()  # raises
            lag = await admin.group_lag("copiers")
            ends = await admin.end_offsets("orders", isolation="read_committed")
            return all(tp in lag and lag[tp].committed == end for tp, end in ends.items() if end)

        try:
            await eventually(is_done, SECONDS)
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(one, asyncio.CancelledError) for one in ended), ended
    copies = await asyncio.to_thread(committed_values, bootstrap, "copies")
    assert copies == sorted(b"%d" % number for number in range(count))
    return copiers


async def test_a_copy_is_exact_over_restarts_and_rebalances(broker):
    async def disturb(tasks, copiers):
        await asyncio.sleep(0.3)
        tasks.append(asyncio.create_task(copiers[1].run()))
        await asyncio.sleep(0.3)
        await restart(broker)
        await asyncio.sleep(0.3)
        tasks[0].cancel()
        await asyncio.sleep(0.3)
        await restart(broker)

    copiers = await copy_with(broker.address, 600, disturb)
    assert all(copier.transactions for copier in copiers)


async def test_a_copy_is_exact_while_brokers_of_a_cluster_are_killed(cluster):
    async def disturb(tasks, copiers):
        tasks.append(asyncio.create_task(copiers[1].run()))
        for broker in (cluster[1], cluster[2], cluster[0]):
            await asyncio.sleep(0.3)
            await restart(broker)

    await copy_with(cluster.bootstrap, 400, disturb)


async def test_a_cluster_commits_on_all_brokers(cluster):
    async with a_producer(cluster.bootstrap) as producer:
        async with producer.transaction():
            for partition in range(PARTITIONS):
                await producer.send("orders", b"%d" % partition, partition=partition)
        with contextlib.suppress(ClientError):
            async with producer.transaction():
                for partition in range(PARTITIONS):
                    await producer.send("orders", b"aborted", partition=partition)
                raise ClientError
        async with a_producer(cluster.bootstrap) as newer:
            await newer.start()
            async with newer.transaction():
                await newer.send("orders", b"3")
            await producer.begin_transaction()
            with pytest.raises((ProducerFencedError, AbortableTransactionError, KafkaError)):
                await producer.send("orders", b"fenced")
            with pytest.raises(ProducerFencedError):
                await producer.abort_transaction()
    values = await asyncio.to_thread(committed_values, cluster.bootstrap, "orders")
    assert values == [b"0", b"1", b"2", b"3"]
