"""Three broker processes on a real etcd: the loss of the controller, of etcd, and of its data."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer as LibrdkafkaConsumer
from confluent_kafka import Producer as LibrdkafkaProducer
from confluent_kafka.admin import AdminClient, NewTopic

from harness.daemon import Daemon, shown_on_failure
from harness.etcd import EtcdCluster, StoreCluster
from harness.requests import OK, send_request, try_create_topic
from harness.waiting import eventually
from ottla.client import Consumer, Producer
from ottla.protocol.api.describe_cluster import DescribeClusterRequest

pytestmark = pytest.mark.real_time

SESSION = ("--set", "broker.session.timeout.ms=2000", "--set", "controller.wait.ms=500")


@pytest.fixture(scope="module")
def module_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path_factory.mktemp("etcd")) as started:
        yield started


@pytest.fixture(scope="module")
def module_cluster(
    tmp_path_factory: pytest.TempPathFactory, module_etcd: EtcdCluster
) -> Iterator[StoreCluster]:
    with StoreCluster(tmp_path_factory.mktemp("cluster"), module_etcd.url, 3, *SESSION) as started:
        yield started


@pytest.fixture
def etcd(module_etcd: EtcdCluster) -> EtcdCluster:
    """A single member."""
    for member in module_etcd:
        if not member.is_running:
            member.start()
    module_etcd.wait_until_writable()
    return module_etcd


@pytest.fixture
def cluster(
    request: pytest.FixtureRequest, module_cluster: StoreCluster, etcd: EtcdCluster
) -> Iterator[StoreCluster]:
    """Three brokers, whatever an earlier test left of them."""
    with shown_on_failure(request, module_cluster.brokers):
        module_cluster.start()
        asyncio.run(until_alive(module_cluster[0], 0, 1, 2))
        yield module_cluster


async def until_alive(broker: Daemon, *ids: int) -> None:
    """Wait until a broker considers exactly these brokers alive, and has a controller."""

    async def are_alive() -> bool:
        response = await send_request(broker, DescribeClusterRequest())
        return {node.broker_id for node in response.brokers} == set(ids)

    await eventually(are_alive)


async def read(bootstrap: str, topic: str, count: int) -> list[bytes]:
    """Read so many records of a topic from the start."""
    values = []
    async with asyncio.timeout(30), Consumer(bootstrap, topic) as consumer:
        while len(values) < count:
            record = await anext(aiter(consumer))
            assert record.value is not None
            values.append(bytes(record.value))
    return values


async def test_the_controller_is_killed(cluster: StoreCluster) -> None:
    controller = cluster.controller()
    others = [broker for broker in cluster if broker is not controller]
    assert await try_create_topic(others[0], "before", 3) == OK
    controller.kill()
    # The request waits until another broker is the controller.
    assert await try_create_topic(others[0], "after", 2) == OK
    assert cluster.controller() in others
    for broker in others:
        await until_alive(broker, *(cluster.brokers.index(other) for other in others))
    controller.start()
    await until_alive(others[1], 0, 1, 2)
    assert await try_create_topic(controller, "returned", 3) == OK


async def test_the_controller_is_paused_and_replaced(cluster: StoreCluster) -> None:
    controller = cluster.controller()
    others = [broker for broker in cluster if broker is not controller]
    controller.pause()
    try:
        # A broker that forwards to the paused one gets REQUEST_TIMED_OUT when it is replaced.
        for broker in others:
            await until_alive(broker, *(cluster.brokers.index(other) for other in others))
        assert await try_create_topic(others[1], "meanwhile", 2) == OK
    finally:
        controller.resume()
    await until_alive(others[0], 0, 1, 2)
    assert cluster.controller() in others
    assert await try_create_topic(controller, "afterwards", 3) == OK


def test_librdkafka_and_groups(cluster: StoreCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for future in admin.create_topics([NewTopic("librdkafka", 6, 1)]).values():
        future.result(30)
    producer = LibrdkafkaProducer(
        {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True}
    )
    for number in range(300):
        producer.produce("librdkafka", b"%d" % number)
    assert producer.flush(30) == 0
    cluster.controller().restart()
    consumer = LibrdkafkaConsumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["librdkafka"])
    values = set()
    while len(values) < 300:
        message = consumer.poll(30)
        assert message is not None
        if message.error() is None:
            values.add(message.value())
    consumer.commit(asynchronous=False)
    consumer.close()
    assert values == {b"%d" % number for number in range(300)}


async def test_etcd_is_away_and_returns(cluster: StoreCluster, etcd: EtcdCluster) -> None:
    assert await try_create_topic(cluster[0], "orders", 3) == OK
    async with Producer(cluster.bootstrap) as producer:
        await producer.send("orders", b"before")
        etcd[0].kill()
        # Nothing changes without the store: what is led is served.
        for number in range(30):
            await producer.send("orders", b"%d" % number)
        await producer.flush()
        code, message = await try_create_topic(cluster.controller(), "refused")
        assert (code, message) != OK
        assert "metadata store" in (message or "")
        # A broker restarts without it, with the metadata it has.
        cluster[2].kill()
        cluster[2].start()
        for number in range(30):
            await producer.send("orders", b"%d" % number)
        await producer.flush()
        assert len(await read(cluster.bootstrap, "orders", 61)) == 61
        etcd[0].start()
        etcd.wait_until_writable()
        await until_alive(cluster[1], 0, 1, 2)
        assert await try_create_topic(cluster[2], "accepted", 3) == OK


async def test_an_etcd_without_its_data_is_refused(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with (
        EtcdCluster(tmp_path / "etcd") as etcd,
        StoreCluster(tmp_path, etcd.url, 1, *SESSION) as cluster,
        shown_on_failure(request, cluster.brokers),
    ):
        (broker,) = cluster
        assert await try_create_topic(broker, "orders", 3) == OK
        etcd[0].kill()
        etcd[0].wipe()
        etcd.start()
        await eventually(lambda: "restored from a backup" in broker.log.read_text())
        async with Producer(cluster.bootstrap) as producer:
            for number in range(30):
                await producer.send("orders", b"%d" % number)
            await producer.flush()
        broker.restart()
        assert "not following the metadata store" in broker.log.read_text()
        assert len(await read(cluster.bootstrap, "orders", 30)) == 30
        # Nobody has written to it: /ottla/…
        everything = {"key": "L290dGxhLw==", "range_end": "L290dGxhMA=="}
        assert "kvs" not in etcd[0].post("/v3/kv/range", everything)


async def test_leases_survive_a_failover_of_etcd(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with (
        EtcdCluster(tmp_path / "etcd", 3) as etcd,
        StoreCluster(tmp_path, etcd.url, 2) as cluster,
        shown_on_failure(request, cluster.brokers),
    ):
        await until_alive(cluster[0], 0, 1)
        controller = cluster.controller()
        lost = etcd.leader()
        lost.pause()
        # Whichever members the brokers used: the request waits for the new leader of etcd.
        assert await try_create_topic(cluster[0], "meanwhile", 2) == OK
        lost.resume()
        etcd.wait_until_writable()
        assert await try_create_topic(cluster[1], "afterwards", 2) == OK
        assert cluster.controller() is controller
        for broker in cluster:
            assert broker.log.read_text().count("  registered  ") == 1
