"""Broker failures: the other brokers keep serving, and no acknowledged record is lost.

`TEST_KILLS=20 pytest tests/cluster/test_failures.py -s` kills more often, and prints how long a
broker took to serve again.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from harness.checker import check
from harness.daemon import Cluster, Daemon, partitions_on_disk, shown_on_failure
from harness.load import load_on, read_everything
from harness.requests import (
    OK,
    fetch_partition,
    leaders_of,
    metadata,
    produce_code,
    send_request,
    try_alter_configs,
    try_create_partitions,
    try_create_topic,
    try_delete_topic,
)
from ottla.client import (
    Admin,
    ClientConfig,
    Consumer,
    GroupConfig,
    Producer,
    RetryConfig,
    TopicPartition,
)
from ottla.protocol.api.describe_cluster import DescribeClusterRequest
from ottla.protocol.api.find_coordinator import FindCoordinatorRequest
from ottla.protocol.api.init_producer_id import InitProducerIdRequest
from ottla.protocol.errors import ErrorCode

pytestmark = pytest.mark.real_time

KILLS = int(os.environ.get("TEST_KILLS", "2"))
PARTITIONS = 6
TIMEOUT_SECONDS = 30
CLIENT = ClientConfig(retry=RetryConfig(backoff=0.02, max_backoff=0.2))


@pytest.fixture
def cluster(request, tmp_path):
    with Cluster(tmp_path, 3) as started, shown_on_failure(request, started.brokers):
        yield started


async def until(condition, description: str) -> None:
    """Wait until a condition is true."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not await condition():
        assert time.monotonic() < deadline, f"timed out: {description}"
        await asyncio.sleep(0.02)


async def alive_brokers(broker: Daemon) -> set[int]:
    """Return the brokers that a broker considers alive."""
    response = await send_request(broker, DescribeClusterRequest())
    return {node.broker_id for node in response.brokers}


async def wait_until_alive(broker: Daemon, *ids: int) -> None:
    """Wait until a broker considers exactly these brokers alive."""

    async def are_alive() -> bool:
        return await alive_brokers(broker) == set(ids)

    await until(are_alive, f"{broker.address} considers {ids} alive")


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_killed_broker_loses_no_acknowledged_record_and_the_others_keep_serving(cluster, number):
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic("orders", PARTITIONS, 1)])["orders"].result(20)
    others = [partition for partition in range(PARTITIONS) if partition % 3 != number]
    recoveries = []
    producers = ["librdkafka", "librdkafka"]
    with load_on(cluster.bootstrap, "orders", PARTITIONS, producers=producers) as load:
        for _ in range(KILLS):
            load.wait_for_acks()
            cluster[number].kill()
            load.wait_for_acks(1, others)
            started = time.monotonic()
            cluster[number].start()
            load.wait_for_acks(1)
            recoveries.append(time.monotonic() - started)
    read_everything(cluster.bootstrap, "orders", PARTITIONS, load.history)

    longest = max(recoveries)
    print(f"\nbroker {number}, {KILLS} kills: {load.acked} acked; recovery {longest:.2f} s at most")
    assert load.problems == []
    assert load.errors == []
    assert check(load.history) == []
    for offsets in load.history.received().values():
        assert offsets == list(range(len(offsets)))
    cluster.stop()


async def test_partitions_of_a_dead_leader_report_leader_not_available(cluster):
    assert await try_create_topic(cluster[0], "orders", 3) == OK
    led_by_2 = (await leaders_of(cluster[0], "orders")).index(2)

    cluster[2].kill()

    for broker in (cluster[0], cluster[1]):
        await wait_until_alive(broker, 0, 1)
        [topic] = (await metadata(broker, "orders")).topics
        [partition] = (data for data in topic.partitions if data.partition_index == led_by_2)
        assert partition.error_code == ErrorCode.LEADER_NOT_AVAILABLE
        assert (partition.leader_id, partition.replica_nodes) == (-1, (2,))
        assert (partition.isr_nodes, partition.offline_replicas) == ((), (2,))
        assert {data.leader_id for data in topic.partitions} == {0, 1, -1}
    # New partitions are assigned to live brokers.
    assert await try_create_topic(cluster[1], "later", 4) == OK
    assert set(await leaders_of(cluster[0], "later")) == {0, 1}

    cluster[2].start()

    for broker in cluster:
        await wait_until_alive(broker, 0, 1, 2)
        assert set(await leaders_of(broker, "orders")) == {0, 1, 2}


async def test_without_the_controller_clients_produce_and_consume_and_changes_fail(cluster):
    assert await try_create_topic(cluster[0], "orders", leaders=[1, 2, 1, 2]) == OK
    # A group whose coordinator stays up.
    group = await group_of(cluster, 1)
    cluster[0].kill()
    others = [cluster[1], cluster[2]]
    for broker in others:
        await wait_until_alive(broker, 1, 2)

    bootstrap = ",".join(broker.address for broker in others)
    async with Producer(bootstrap, client=CLIENT) as producer:
        for index in range(40):
            await producer.send("orders", b"%d" % index)
    quick = GroupConfig(session_timeout=6.0, heartbeat_interval=0.2)
    async with Consumer(
        bootstrap, "orders", group=group, group_config=quick, client=CLIENT
    ) as consumer:
        values = [(await consumer.getone()).value for _ in range(40)]
        await consumer.commit()
    assert sorted(map(int, values)) == list(range(40))
    for broker in others:
        for refused in (
            await try_create_topic(broker, "new", 3),
            await try_delete_topic(broker, "orders"),
            await try_create_partitions(broker, "orders", 9),
            await try_alter_configs(broker, 2, "orders", {"retention.ms": "1"}),
        ):
            code, message = refused
            assert code == ErrorCode.BROKER_NOT_AVAILABLE
            assert "The controller, broker 0, is not available" in message
        answer = await send_request(broker, InitProducerIdRequest(transactional_id=None))
        assert answer.error_code == ErrorCode.NONE
        [topic] = (await metadata(broker, "unheard-of", create=True)).topics
        assert topic.error_code == ErrorCode.LEADER_NOT_AVAILABLE

    cluster[0].start()

    async def created() -> bool:
        return (await try_create_topic(cluster[2], "new", 3))[0] == ErrorCode.NONE

    await until(created, "the topic is created")

    # A broker that has not reconnected to the controller yet learns of it later.
    async def known() -> bool:
        return await leaders_of(cluster[1], "new") is not None

    await until(known, "broker 1 has the topic")
    assert len(await leaders_of(cluster[1], "new")) == 3


async def group_of(cluster: Cluster, number: int) -> str:
    """Return a group that a broker coordinates."""
    for candidate in map("group-{}".format, range(100)):
        request = FindCoordinatorRequest(coordinator_keys=[candidate])
        [coordinator] = (await send_request(cluster[0], request)).coordinators
        if coordinator.node_id == number:
            return candidate
    raise AssertionError(f"broker {number} coordinates no group")


async def test_a_restarted_broker_catches_up_before_it_serves(cluster):
    for name in ("stays", "goes", "is-another", "grows"):
        assert await try_create_topic(cluster[0], name, leaders=[2]) == OK
        assert await produce_code(cluster[2], name, 0, b"old") == ErrorCode.NONE
    cluster[2].kill()
    await wait_until_alive(cluster[0], 0, 1)

    assert await try_delete_topic(cluster[1], "goes") == OK
    assert await try_delete_topic(cluster[1], "is-another") == OK
    assert await try_create_topic(cluster[1], "is-another", leaders=[2]) == OK
    assert await try_create_partitions(cluster[1], "grows", 2) == OK
    assert (
        await try_alter_configs(cluster[1], 4, "2", {"log.retention.check.interval.ms": "777"})
        == OK
    )
    assert await try_create_topic(cluster[1], "new", leaders=[2, 1]) == OK
    cluster[2].start()

    assert await leaders_of(cluster[2], "goes") is None
    assert partitions_on_disk(cluster[2], "goes") == set()
    assert (await fetch_partition(cluster[2], "stays", 0)).high_watermark == 1
    assert (await fetch_partition(cluster[2], "is-another", 0)).high_watermark == 0
    assert len(await leaders_of(cluster[2], "grows")) == 2
    assert await produce_code(cluster[2], "new", 0) == ErrorCode.NONE
    assert partitions_on_disk(cluster[2], "new") == {0}


async def test_a_broker_can_start_while_the_controller_is_down(cluster):
    assert await try_create_topic(cluster[0], "orders", leaders=[1, 2]) == OK
    assert await produce_code(cluster[1], "orders", 0) == ErrorCode.NONE
    cluster[0].kill()
    cluster[1].kill()

    cluster[1].start("--set", "controller.wait.ms=200")

    assert "serving the last known metadata" in cluster[1].log_tail()
    assert await produce_code(cluster[1], "orders", 0) == ErrorCode.NONE
    assert (await fetch_partition(cluster[1], "orders", 0)).high_watermark == 2
    cluster[0].start()
    await wait_until_alive(cluster[1], 0, 1, 2)
    assert await try_create_topic(cluster[1], "later", leaders=[1]) == OK
    assert await produce_code(cluster[1], "later", 0) == ErrorCode.NONE


async def test_all_brokers_can_be_killed_and_restarted_at_once(cluster):
    assert await try_create_topic(cluster[1], "orders", 6) == OK
    leaders = await leaders_of(cluster[0], "orders")
    for index, leader in enumerate(leaders):
        assert await produce_code(cluster[leader], "orders", index) == ErrorCode.NONE
    async with Admin(cluster.bootstrap) as admin:
        await admin.alter_group_offsets("billing", {TopicPartition("orders", 3): 1})

    for _ in range(3):
        cluster.kill()
        cluster.start()

    for broker in cluster:
        await wait_until_alive(broker, 0, 1, 2)
        assert await leaders_of(broker, "orders") == leaders
    for index, leader in enumerate(leaders):
        assert (await fetch_partition(cluster[leader], "orders", index)).high_watermark == 1
    async with Admin(cluster.bootstrap) as admin:
        offsets = await admin.list_group_offsets("billing")
    assert offsets[TopicPartition("orders", 3)].offset == 1


async def test_a_hanging_broker_delays_changes_for_at_most_one_session(cluster):
    cluster[2].send(signal.SIGSTOP)
    try:
        started = time.monotonic()
        assert await try_create_topic(cluster[1], "orders", leaders=[0, 1]) == OK
        assert time.monotonic() - started < TIMEOUT_SECONDS / 3
        assert await produce_code(cluster[1], "orders", 1) == ErrorCode.NONE
        await wait_until_alive(cluster[1], 0, 1)
    finally:
        cluster[2].send(signal.SIGCONT)
    await wait_until_alive(cluster[1], 0, 1, 2)
    assert await leaders_of(cluster[2], "orders") == [0, 1]


def exit_code_of(broker: Daemon) -> int:
    """Start a broker that is expected to exit; kill it if it does not."""
    process = broker.spawn()
    try:
        return process.wait(TIMEOUT_SECONDS)
    finally:
        process.kill()
        process.wait()


def test_a_broker_refuses_the_data_directory_of_another_broker(cluster):
    cluster[1].kill()
    cluster[2].kill()
    cluster[1].data.rename(cluster.folder / "elsewhere")
    cluster[2].data.rename(cluster[1].data)

    assert exit_code_of(cluster[1]) == 1
    assert "has broker id 2, not 1" in cluster[1].log_tail()


def test_a_broker_refuses_the_data_directory_of_another_cluster(cluster, tmp_path):
    with Cluster(tmp_path / "other", 2) as other:
        cluster[1].kill()
        other[1].kill()
        cluster[1].data.rename(cluster.folder / "elsewhere")
        other[1].data.rename(cluster[1].data)

    assert exit_code_of(cluster[1]) == 1
    assert "error: The data directory belongs to cluster" in cluster[1].log_tail()


async def test_a_controller_that_lost_its_metadata_log_is_not_followed(tmp_path, request):
    arguments = ("--set", "cluster.id=paper-trail")
    with Cluster(tmp_path, 2, *arguments) as cluster, shown_on_failure(request, cluster.brokers):
        assert await try_create_topic(cluster[0], "orders", leaders=[1]) == OK
        assert await produce_code(cluster[1], "orders", 0) == ErrorCode.NONE
        cluster[0].kill()
        cluster[0].data.rename(cluster.folder / "lost")
        cluster[0].start()

        async def refused() -> bool:
            return "not following the controller" in cluster[1].log_tail()

        await until(refused, "not following the controller")
        assert (await fetch_partition(cluster[1], "orders", 0)).high_watermark == 1
        assert "it has lost data" in cluster[1].log_tail()
        cluster[1].kill()
        cluster[1].start()
        assert (await fetch_partition(cluster[1], "orders", 0)).high_watermark == 1

        # Restore its data.
        cluster[0].kill()
        cluster[0].data.rename(cluster.folder / "empty")
        (cluster.folder / "lost").rename(cluster[0].data)
        cluster.start()
        assert await produce_code(cluster[1], "orders", 0) == ErrorCode.NONE


def test_a_new_broker_waits_for_the_controller(tmp_path):
    cluster = Cluster(tmp_path, 2)
    try:
        cluster.file.write_text(cluster.describe())
        cluster[1].launch()
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while "waiting for the controller" not in cluster[1].log_tail():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert not cluster[1].data.exists()

        cluster[0].start()

        cluster[1].wait_until_ready()
    finally:
        cluster.kill()


async def test_brokers_with_different_cluster_brokers_report_it(tmp_path):
    # Broker 1 considers broker 0 the controller, which is started as a single broker.
    cluster = Cluster(tmp_path, 2)
    alone = Daemon(tmp_path / "alone", port=cluster[0].port)
    try:
        cluster.file.write_text(cluster.describe())
        alone.start()
        cluster[1].launch("--set", "controller.wait.ms=200")
        cluster[1].wait_until_ready()
        message = f"{alone.address} does not know broker 1: cluster.brokers must be the same"

        async def is_logged() -> bool:
            return message in cluster[1].log_tail()

        await until(is_logged, message)
    finally:
        alone.kill()
        cluster.kill()
