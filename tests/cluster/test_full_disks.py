"""The disks of some brokers are full: partitions are led where acks=all is possible."""

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
from ottla.protocol.errors import ErrorCode
from ottla.storage.disk import Buffer, Disk


class FullDisk(Disk):
    """A disk that has no space for a while."""

    is_full = False

    def write(self, fd: int, data: Buffer, position: int) -> int:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(fd, data, position)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Replicas]:
    async with asyncio.timeout(60):
        replicas = Replicas(tmp_path)
        replicas.disks = {broker_id: FullDisk() for broker_id in range(3)}
        await replicas.start(0, 1, 2)
        await replicas.create("t", 3)
        yield replicas
        fill(replicas, *replicas.brokers, is_full=False)
        await replicas.stop(*replicas.brokers)
        await asyncio.sleep(0.05)


def fill(cluster: Replicas, *broker_ids: int, is_full: bool = True) -> None:
    for broker_id in broker_ids:
        disk = cluster.disks[broker_id]
        assert isinstance(disk, FullDisk)
        disk.is_full = is_full


async def test_a_leader_with_a_full_disk_gives_up(cluster: Replicas) -> None:
    # Another broker has to be the controller, too: this one cannot store metadata.
    full = cluster.any.cluster.controller_id
    index = next(one for one in range(3) if cluster.state("t", one).leader == full)
    await produce_batch(cluster.brokers[full], "t", partition=index)
    await cluster.until_in_sync("t", index)
    fill(cluster, full)
    assert await produce_code(cluster.brokers[full], "t", index) == ErrorCode.KAFKA_STORAGE_ERROR
    await eventually(lambda: cluster.state("t", index).leader not in (full, -1))
    assert full not in cluster.state("t", index).isr
    # It is not waited for, and does not come back before it has space.
    assert await produce_batch(cluster.leader("t", index), "t", partition=index) == 1
    await asyncio.sleep(0.2)
    assert full not in cluster.state("t", index).isr

    fill(cluster, full, is_full=False)
    await cluster.until_in_sync("t", index)


async def test_a_leader_stays_where_too_few_others_have_space(cluster: Replicas) -> None:
    await produce(cluster, "t")
    await cluster.until_in_sync("t")
    leader = cluster.state("t").leader
    follower = (leader + 1) % 3
    fill(cluster, leader, follower)
    # The third one alone is less than min.insync.replicas.
    await cluster.stop((leader + 2) % 3)
    await eventually(lambda: len(cluster.state("t").isr) == 2)
    assert await produce_code(cluster.brokers[leader], "t", 0) == ErrorCode.KAFKA_STORAGE_ERROR
    epoch = cluster.state("t").leader_epoch
    await asyncio.sleep(0.7)
    assert (cluster.state("t").leader, cluster.state("t").leader_epoch) == (leader, epoch)
    await cluster.start((leader + 2) % 3)
