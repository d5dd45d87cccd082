"""Brokers of a cluster die and come back: the others serve on, and nothing that was acked is lost.

`TEST_KILLS=20 pytest tests/cluster/test_failures.py -s` kills more often, and says how long a
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
PATIENCE_SECONDS = 30
CLIENT = ClientConfig(retry=RetryConfig(backoff=0.02, max_backoff=0.2))


@pytest.fixture
def cluster(request, tmp_path):
    with Cluster(tmp_path, 3) as started, shown_on_failure(request, started.brokers):
        yield started


async def until(condition, what: str) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not await condition():
        assert time.monotonic() < deadline, f"in vain: {what}"
        await asyncio.sleep(0.02)


async def known_to(broker: Daemon) -> set[int]:
    """Say who is up, as a broker believes."""
    answer = await send_request(broker, DescribeClusterRequest())
    return {one.broker_id for one in answer.brokers}


async def knows(broker: Daemon, *ids: int) -> None:
    async def so() -> bool:
        return await known_to(broker) == set(ids)

    await until(so, f"{broker.address} knows {ids}")


@pytest.mark.parametrize("number", [0, 1, 2])
def test_nothing_acked_is_lost_when_a_broker_is_killed_and_the_others_serve_on(cluster, number):
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


async def test_what_a_broker_owned_is_unavailable_while_it_is_down_and_says_so(cluster):
    assert await try_create_topic(cluster[0], "orders", 3) == OK
    owned = (await leaders_of(cluster[0], "orders")).index(2)

    cluster[2].kill()

    for broker in (cluster[0], cluster[1]):
        await knows(broker, 0, 1)
        [topic] = (await metadata(broker, "orders")).topics
        [partition] = (one for one in topic.partitions if one.partition_index == owned)
        assert partition.error_code == ErrorCode.LEADER_NOT_AVAILABLE
        assert (partition.leader_id, partition.replica_nodes) == (-1, (2,))
        assert (partition.isr_nodes, partition.offline_replicas) == ((), (2,))
        assert {one.leader_id for one in topic.partitions} == {0, 1, -1}
    # What is new goes to those that are up.
    assert await try_create_topic(cluster[1], "later", 4) == OK
    assert set(await leaders_of(cluster[0], "later")) == {0, 1}

    cluster[2].start()

    for broker in cluster:
        await knows(broker, 0, 1, 2)
        assert set(await leaders_of(broker, "orders")) == {0, 1, 2}


async def test_with_the_controller_down_all_else_goes_on_and_changes_wait(cluster):
    assert await try_create_topic(cluster[0], "orders", leaders=[1, 2, 1, 2]) == OK
    # A group that a broker coordinates which stays.
    group = await group_of(cluster, 1)
    cluster[0].kill()
    others = [cluster[1], cluster[2]]
    for broker in others:
        await knows(broker, 1, 2)

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

    await until(created, "a topic is made")

    # Who has not found the controller again yet hears of it when he does.
    async def known() -> bool:
        return await leaders_of(cluster[1], "new") is not None

    await until(known, "the topic is known")
    assert len(await leaders_of(cluster[1], "new")) == 3


async def group_of(cluster: Cluster, number: int) -> str:
    """Give a group that a broker coordinates."""
    for candidate in map("group-{}".format, range(100)):
        request = FindCoordinatorRequest(coordinator_keys=[candidate])
        [found] = (await send_request(cluster[0], request)).coordinators
        if found.node_id == number:
            return candidate
    raise AssertionError(f"broker {number} coordinates no group")


async def test_a_broker_that_returns_has_caught_up_before_it_serves(cluster):
    for name in ("stays", "goes", "is-another", "grows"):
        assert await try_create_topic(cluster[0], name, leaders=[2]) == OK
        assert await produce_code(cluster[2], name, 0, b"old") == ErrorCode.NONE
    cluster[2].kill()
    await knows(cluster[0], 0, 1)

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

    assert "serves what it knew last" in cluster[1].last_words()
    assert await produce_code(cluster[1], "orders", 0) == ErrorCode.NONE
    assert (await fetch_partition(cluster[1], "orders", 0)).high_watermark == 2
    cluster[0].start()
    await knows(cluster[1], 0, 1, 2)
    assert await try_create_topic(cluster[1], "later", leaders=[1]) == OK
    assert await produce_code(cluster[1], "later", 0) == ErrorCode.NONE


async def test_all_of_them_can_be_killed_and_started_at_once(cluster):
    assert await try_create_topic(cluster[1], "orders", 6) == OK
    owners = await leaders_of(cluster[0], "orders")
    for index, owner in enumerate(owners):
        assert await produce_code(cluster[owner], "orders", index) == ErrorCode.NONE
    async with Admin(cluster.bootstrap) as admin:
        await admin.alter_group_offsets("billing", {TopicPartition("orders", 3): 1})

    for _ in range(3):
        cluster.kill()
        cluster.start()

    for broker in cluster:
        await knows(broker, 0, 1, 2)
        assert await leaders_of(broker, "orders") == owners
    for index, owner in enumerate(owners):
        assert (await fetch_partition(cluster[owner], "orders", index)).high_watermark == 1
    async with Admin(cluster.bootstrap) as admin:
        found = await admin.list_group_offsets("billing")
    assert found[TopicPartition("orders", 3)].offset == 1


async def test_a_broker_that_hangs_holds_up_changes_for_a_session_and_no_longer(cluster):

    cluster[2].send(signal.SIGSTOP)
    try:
        started = time.monotonic()
        assert await try_create_topic(cluster[1], "orders", leaders=[0, 1]) == OK
        took = time.monotonic() - started
        assert took < PATIENCE_SECONDS / 3
        assert await produce_code(cluster[1], "orders", 1) == ErrorCode.NONE
        await knows(cluster[1], 0, 1)
    finally:
        cluster[2].send(signal.SIGCONT)
    await knows(cluster[1], 0, 1, 2)
    assert await leaders_of(cluster[2], "orders") == [0, 1]


def exit_code_of(broker: Daemon) -> int:
    """Start a broker that ends by itself; one that does not is ended."""
    process = broker.spawn()
    try:
        return process.wait(PATIENCE_SECONDS)
    finally:
        process.kill()
        process.wait()


def test_a_data_directory_of_another_broker_is_refused(cluster):
    cluster[1].kill()
    cluster[2].kill()
    cluster[1].data.rename(cluster.folder / "elsewhere")
    cluster[2].data.rename(cluster[1].data)

    assert exit_code_of(cluster[1]) == 1
    assert "has broker id 2, not 1" in cluster[1].last_words()


def test_a_data_directory_of_another_cluster_is_refused(cluster, tmp_path):
    with Cluster(tmp_path / "other", 2) as other:
        cluster[1].kill()
        other[1].kill()
        cluster[1].data.rename(cluster.folder / "elsewhere")
        other[1].data.rename(cluster[1].data)

    assert exit_code_of(cluster[1]) == 1
    assert "error: The data directory belongs to cluster" in cluster[1].last_words()


async def test_a_controller_that_has_lost_its_metadata_is_not_followed(tmp_path, request):
    settings = ("--set", "cluster.id=paper-trail")
    with Cluster(tmp_path, 2, *settings) as cluster, shown_on_failure(request, cluster.brokers):
        assert await try_create_topic(cluster[0], "orders", leaders=[1]) == OK
        assert await produce_code(cluster[1], "orders", 0) == ErrorCode.NONE
        cluster[0].kill()
        cluster[0].data.rename(cluster.folder / "lost")
        cluster[0].start()

        async def refused() -> bool:
            return "not following the controller" in cluster[1].last_words()

        await until(refused, "not following the controller")
        assert (await fetch_partition(cluster[1], "orders", 0)).high_watermark == 1
        cluster[1].kill()
        assert exit_code_of(cluster[1]) == 1
        assert "the controller has lost its data" in cluster[1].last_words()

        # With its data back all is well.
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
        deadline = time.monotonic() + PATIENCE_SECONDS
        while "waiting for the controller" not in cluster[1].last_words():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert not cluster[1].data.exists()

        cluster[0].start()

        cluster[1].wait_until_it_answers()
    finally:
        cluster.kill()


async def test_brokers_with_different_lists_are_found_out(tmp_path):
    # 1 takes 0 for the controller, which takes itself for the only one.
    cluster = Cluster(tmp_path, 2)
    alone = Daemon(tmp_path / "alone", port=cluster[0].port)
    try:
        cluster.file.write_text(cluster.describe())
        alone.start()
        cluster[1].launch("--set", "controller.wait.ms=200")
        cluster[1].wait_until_it_answers()
        said = f"{alone.address} does not know broker 1: cluster.brokers must be the same"

        async def is_said() -> bool:
            return said in cluster[1].last_words()

        await until(is_said, said)
    finally:
        alone.kill()
        cluster.kill()
