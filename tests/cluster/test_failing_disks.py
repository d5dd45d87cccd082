"""The disks of some brokers fail, or are full: partitions are led where acks=all is possible."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cluster.test_replication import Replicas, produce
from harness.requests import produce_batch, produce_code
from harness.waiting import eventually
from ottla.broker import Broker
from ottla.protocol.errors import ErrorCode
from ottla.storage.disk import Buffer, Disk


class FailingDisk(Disk):
    """A disk that cannot be written for a while."""

    error = 0

    def write(self, fd: int, data: Buffer, position: int) -> int:
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        return super().write(fd, data, position)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Replicas]:
    async with asyncio.timeout(60):
        replicas = Replicas(tmp_path)
        replicas.disks = {broker_id: FailingDisk() for broker_id in range(3)}
        await replicas.start(0, 1, 2)
        await replicas.create("t", 3)
        yield replicas
        fail(replicas, 0, *replicas.brokers)
        await replicas.stop(*replicas.brokers)
        await asyncio.sleep(0.05)


def fail(cluster: Replicas, error: int, *broker_ids: int) -> None:
    for broker_id in broker_ids:
        disk = cluster.disks[broker_id]
        assert isinstance(disk, FailingDisk)
        disk.error = error


async def until_another_leads(cluster: Replicas, broker_id: int, index: int = 0) -> None:
    def leads(broker: Broker) -> bool:
        return index in broker.topics.led_partitions(broker.topics.image.topics["t"])

    others = [broker for broker in cluster.brokers.values() if broker.id != broker_id]
    await eventually(lambda: any(map(leads, others)))


async def test_a_leader_with_a_full_disk_gives_up(cluster: Replicas) -> None:
    # Another broker has to be the controller, too: this one cannot store metadata.
    full = cluster.any.cluster.controller_id
    index = next(one for one in range(3) if cluster.state("t", one).leader == full)
    await produce_batch(cluster.brokers[full], "t", partition=index)
    await cluster.until_in_sync("t", index)
    fail(cluster, errno.ENOSPC, full)
    assert await produce_code(cluster.brokers[full], "t", index) == ErrorCode.KAFKA_STORAGE_ERROR
    await until_another_leads(cluster, full, index)
    assert full not in cluster.state("t", index).isr
    # It is not waited for, and does not come back before it has space.
    assert await produce_batch(cluster.leader("t", index), "t", partition=index) == 1
    await asyncio.sleep(0.2)
    assert full not in cluster.state("t", index).isr

    fail(cluster, 0, full)
    await cluster.until_in_sync("t", index)


async def test_a_leader_stays_where_too_few_others_have_space(cluster: Replicas) -> None:
    await produce(cluster, "t")
    await cluster.until_in_sync("t")
    leader = cluster.state("t").leader
    follower = (leader + 1) % 3
    fail(cluster, errno.ENOSPC, leader, follower)
    # The third one alone is less than min.insync.replicas.
    await cluster.stop((leader + 2) % 3)
    await eventually(lambda: len(cluster.state("t").isr) == 2)
    assert await produce_code(cluster.brokers[leader], "t", 0) == ErrorCode.KAFKA_STORAGE_ERROR
    epoch = cluster.state("t").leader_epoch
    await asyncio.sleep(0.7)
    assert (cluster.state("t").leader, cluster.state("t").leader_epoch) == (leader, epoch)
    await cluster.start((leader + 2) % 3)


async def test_a_leader_whose_disk_fails_gives_up(cluster: Replicas) -> None:
    await produce(cluster, "t")
    await cluster.until_in_sync("t")
    failed = cluster.state("t").leader
    fail(cluster, errno.EIO, failed)
    assert await produce_code(cluster.brokers[failed], "t", 0) == ErrorCode.KAFKA_STORAGE_ERROR
    await until_another_leads(cluster, failed)
    assert await produce(cluster, "t") == 1
    assert failed not in cluster.state("t").isr
