"""A normal start, use and stop of brokers: no warnings, and at INFO what an operator expects."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.daemon import Cluster, Daemon
from harness.etcd import EtcdCluster, StoreCluster
from harness.share_stage import CLIENT
from ottla.broker.observability.outage import Outage
from ottla.client import Admin, Consumer, Producer, ShareConsumer

RECORDS = [b"%d" % number for number in range(20)]


@pytest.fixture(params=["static", "replicated"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        if request.param == "static":
            started = Cluster(tmp_path, 3)
        else:
            etcd = stack.enter_context(EtcdCluster(tmp_path / "etcd"))
            started = StoreCluster(tmp_path, etcd.url)
        yield stack.enter_context(started)


async def use(address: str) -> None:
    """Produce, and consume with each kind of group."""
    async with Admin(address, client=CLIENT) as admin:
        await admin.create_topic("t", partitions=3)
        await admin.alter_group_configs("workers", {"share.auto.offset.reset": "earliest"})
        async with Producer(address, client=CLIENT) as producer:
            await producer.send_many("t", RECORDS)
        for protocol in ("classic", "consumer"):
            consumer = Consumer(
                address, "t", group=protocol, group_protocol=protocol, client=CLIENT
            )
            await take_all(consumer)
        await take_all(ShareConsumer(address, "t", group="workers", client=CLIENT))
        await admin.alter_topic_configs("t", {"retention.ms": "100000"})
        await admin.delete_topics("t")


async def take_all(consumer: Consumer | ShareConsumer) -> None:
    async with asyncio.timeout(30), consumer:
        for _ in RECORDS:
            assert await consumer.getone() is not None


def check_logs(*brokers: Daemon) -> None:
    lines = [line for broker in brokers for line in broker.log.read_text().splitlines()]
    assert [line for line in lines if not re.match(r"\S+ INFO ", line)] == []
    text = "\n".join(lines)
    for event in (
        "Topic created  topic=t partitions=3 ",
        'Topic configs altered  topic=t configs="retention.ms=100000"',
        "Topic deleted  topic=t\n",
        'Group rebalanced  group=classic protocol=classic reason="member ',
        'Group rebalanced  group=consumer protocol=consumer reason="member ',
        'Group rebalanced  group=workers protocol=share reason="member ',
    ):
        assert event in text, event


def test_a_normal_life_of_a_broker_prints_no_warning(tmp_path: Path) -> None:
    with Daemon(tmp_path) as broker:
        asyncio.run(use(broker.address))
        assert broker.stop() == 0
        check_logs(broker)


@pytest.mark.real_time  # A lease of the store may end on a busy machine.
def test_a_normal_life_of_a_cluster_prints_no_warning(cluster: Cluster) -> None:
    asyncio.run(use(cluster[0].address))
    cluster.stop()
    check_logs(*cluster)


def test_a_peer_that_stays_away_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    outage = Outage(logging.getLogger("test"), "leader is unreachable", grace_seconds=0)
    for _ in range(3):
        outage.failed(leader=1)
    outage.ended()
    outage.failed(leader=1)
    assert [one.levelname for one in caplog.records] == ["INFO", "WARNING", "DEBUG", "INFO"]
