"""Real clients of three replicated brokers, whose leaders are killed and stopped under load.

Every client produces with idempotence, and consumes in a group of its own: no error may reach an
application, each record is there once, and the groups go on. With --failovers there are more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from golden.corpus import Record
from harness.checker import check
from harness.clients.base import Client
from harness.clients.registry import CLIENTS, AgentProcesses, Clients
from harness.daemon import Daemon, shown_on_failure
from harness.etcd import EtcdCluster, StoreCluster
from harness.group_members import (
    BROKER_FLAGS,
    GroupMembers,
    check_group,
    missing,
    remove_java_classes,
    settle,
)
from harness.history import Send, encoded
from harness.load import (
    PRODUCERS,
    Load,
    LoopThread,
    SendTracker,
    ThreadWorker,
    load_on,
    read_everything,
    silenced_client_logs,
)
from harness.replicas import isr_sizes, replica_anomalies
from harness.waiting import eventually, wait_until
from ottla.client import Consumer, LogTruncationError, Producer, TopicPartition
from ottla.client.blocking.admin import Admin

pytestmark = pytest.mark.real_time

PARTITIONS = 3
CONFIGS = (
    # Longer than the clients' start keeps both cores busy.
    *("--set", "broker.session.timeout.ms=4000", "--set", "controller.wait.ms=1000"),
    *("--set", "replica.lag.time.max.ms=1500", "--set", "offsets.topic.num.partitions=3"),
    *BROKER_FLAGS,
)
#: Clients that are called for each batch of records.
CALLED = ("kafka-python", "kafkajs", "java")
#: A group outlives its coordinator only with sessions longer than a failover.
SESSION_MS = 10_000
BATCH_RECORDS = 5


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path_factory.mktemp("etcd")) as started:
        yield started


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory, etcd: EtcdCluster) -> Iterator[StoreCluster]:
    with StoreCluster(tmp_path_factory.mktemp("brokers"), etcd.url, 3, *CONFIGS) as started:
        yield started


@pytest.fixture
def cluster(request: pytest.FixtureRequest, brokers: StoreCluster) -> Iterator[StoreCluster]:
    with shown_on_failure(request, brokers.brokers), silenced_client_logs():
        for broker in brokers:
            if not broker.is_running:
                broker.start()
        with Admin(brokers.bootstrap) as admin:
            wait_until(lambda: len(admin.describe_cluster().brokers) == 3, "three brokers")
        yield brokers


@pytest.fixture
def clients(cluster: StoreCluster, agent_processes: AgentProcesses) -> Iterator[Clients]:
    created = Clients(cluster.bootstrap, agent_processes)
    yield created
    created.close()
    remove_java_classes()


class CalledProducer(ThreadWorker):
    """Produces a batch per call, and waits for its result."""

    def __init__(
        self,
        client: Client,
        _loop_thread: LoopThread,
        _address: str,
        topic: str,
        tracker: SendTracker,
        _pause: float,
        load: Load,
    ) -> None:
        super().__init__(tracker.name, load.problems)
        self._client = client
        self._topic = topic
        self._tracker = tracker
        self._thread.start()

    def _run(self) -> None:
        partition = 0
        while not self._stopping.is_set():
            partition = (partition + 1) % PARTITIONS
            sends = list(self._sends_to(partition))
            records = [Record(None, encoded(send.value)) for send in sends]
            try:
                offsets = self._client.produce(
                    self._topic, records, idempotent=True, partition=partition
                )
            except Exception as error:  # noqa: BLE001  # what an application would see
                for send in sends:
                    self._tracker.fail(send, error)
            else:
                for send, offset in zip(sends, offsets, strict=True):
                    self._tracker.ack(send, offset)
            self._stopping.wait(0.1)

    def _sends_to(self, partition: int) -> Iterator[Send]:
        for _ in range(BATCH_RECORDS):
            send = self._tracker.next()
            assert send is not None
            send.partition = partition
            yield send


def leader_of(cluster: StoreCluster, topic: str, partition: int = 0) -> Daemon:
    address = next(broker.address for broker in cluster if broker.is_running)
    with Admin(address) as admin:
        described = admin.describe_topics(topic)[topic].partitions[partition]
        assert described.leader is not None
        return cluster[described.leader]


def wait_until_in_sync(cluster: StoreCluster, topic: str, count: int, replicas: int = 3) -> None:
    address = next(broker.address for broker in cluster if broker.is_running)
    wait_until(lambda: isr_sizes(address, topic) == [replicas] * count, "all replicas in sync")


def test_all_clients_go_on_when_leaders_are_killed_and_stopped(
    cluster: StoreCluster, clients: Clients, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    failovers = request.config.getoption("--failovers") or 1
    topic = "failovers"
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
    called = [name for name in CALLED if CLIENTS[name].missing() is None]
    kinds: dict[str, Any] = dict(PRODUCERS)
    kinds |= {name: partial(CalledProducer, clients[name]) for name in called}
    members_of = ["confluent", "aiokafka", "kafka-python", "ottla", "kafkajs", "java"]
    with ExitStack() as stack:
        load = stack.enter_context(
            load_on(
                cluster.bootstrap,
                topic,
                PARTITIONS,
                per_second=150,
                producers=[*PRODUCERS, *called],
                kinds=kinds,
            )
        )
        groups = []
        for client in members_of:
            if missing(client) is None:
                assignor = "RoundRobinAssigner" if client == "kafkajs" else "range"
                group = GroupMembers(
                    cluster.bootstrap, tmp_path, client, topic, assignors=[assignor]
                )
                stack.enter_context(group)
                group.start(client, client, session_ms=SESSION_MS)
                groups.append(group)
        for group in groups:
            group.wait_until_consuming()
        for _ in range(failovers):
            for end in (Daemon.kill, Daemon.stop):
                leader = leader_of(cluster, topic)
                end(leader)
                load.wait_for_acks()
                for group in groups:
                    group.wait_until_consuming()
                leader.start()
                wait_until_in_sync(cluster, topic, PARTITIONS)
        settle(*groups, load=load)
        for group in groups:
            group.stop()
            check_group(group, load)
    read_everything(cluster.bootstrap, topic, PARTITIONS, load.history)
    assert not check(load.history)
    wait_until(lambda: not replica_anomalies(cluster, topic, PARTITIONS), "equal replicas")


async def test_consumers_detect_an_unclean_election(cluster: StoreCluster) -> None:
    """The leader has ten records that the only other replica never got, and both are read."""
    topic, tp = "unclean", TopicPartition("unclean", 0)
    configs = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic(topic, replication_factor=2, configs=configs)
        (described,) = admin.describe_topics(topic)[topic].partitions
    leader = cluster[described.leader or 0]
    (follower,) = [cluster[one] for one in described.replicas if cluster[one] is not leader]
    strict = Consumer(cluster.bootstrap, auto_offset_reset="none")
    member = Consumer(cluster.bootstrap, topic, group="unclean", auto_commit=None)
    async with asyncio.timeout(60), Producer(cluster.bootstrap) as producer, strict:
        async with member:
            await write(producer, topic, 0, 10)
            assert await values(member, 10) == [*range(10)]
            follower.kill()
            await eventually(lambda: isr_sizes(leader.address, topic) == [1])
            await write(producer, topic, 10, 20)
            assert await values(member, 10) == [*range(10, 20)]
            await member.commit()
            committed = (await member.committed(tp))[tp]
            assert committed is not None
            assert (committed.offset, committed.leader_epoch >= 0) == (20, True)
        strict.assign([tp])
        strict.seek(tp, 0)
        assert await values(strict, 20) == [*range(20)]

        leader.kill()
        follower.start()
        await write(producer, topic, 100, 120)

        with pytest.raises(LogTruncationError) as raised:
            await values(strict, 1)
        assert (raised.value.position, raised.value.diverging_offset) == (20, 10)
        strict.seek(tp, 10)
        assert await values(strict, 20) == [*range(100, 120)]

        # The committed offset of the group is validated when it goes on, too.
        again = Consumer(cluster.bootstrap, topic, group="unclean")
        async with again:
            assert await values(again, 20) == [*range(100, 120)]
    leader.start()
    await eventually(lambda: isr_sizes(follower.address, topic) == [2])
    assert "truncating" in leader.log.read_text()


async def write(producer: Producer, topic: str, first: int, end: int) -> None:
    for number in range(first, end):
        await producer.send(topic, b"%d" % number, partition=0)


async def values(consumer: Consumer, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        record = await anext(aiter(consumer))
        found.append(int(record.value))
    return found
