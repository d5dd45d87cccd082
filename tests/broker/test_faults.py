"""Disk failures: producers get errors, nothing unwritten is acknowledged, other topics go on."""

import errno
import os
import threading
from contextlib import asynccontextmanager

import pytest

from harness.brokers import add_topic, broker_and_client, partition_of
from harness.logs import a_batch
from harness.requests import create_topic, produce_batch
from harness.waiting import eventually
from harness.wire import (
    connect,
    fetch_request,
    fetched_partitions,
    offsets_of,
    produce_request,
    produce_results,
)
from ottla.broker import Broker, BrokerConfig
from ottla.protocol.errors import ErrorCode
from ottla.storage.disk import Disk


class FaultyDisk(Disk):
    """Fails selected operations on the files of one topic."""

    def __init__(self):
        self.broken = set()
        self._names = {}

    def open(self, path, *, create=False, empty=False):
        fd = super().open(path, create=create, empty=empty)
        self._names[fd] = str(path)
        return fd

    def _check(self, call, fd):
        for broken, topic, number in self.broken:
            if broken == call and f"/{topic}-" in self._names.get(fd, ""):
                raise OSError(number, "injected")

    def write(self, fd, data, position):
        self._check("write", fd)
        return super().write(fd, data, position)

    def sync(self, fd, *, metadata=False):
        self._check("sync", fd)
        super().sync(fd, metadata=metadata)


@asynccontextmanager
async def a_broker_with(disk, tmp_path):
    config = BrokerConfig(log_dir=str(tmp_path), listeners="PLAINTEXT://127.0.0.1:0")
    async with Broker(config, disk=disk) as broker, connect(broker) as client:
        await add_topic(broker, "bad")
        await add_topic(broker, "good")
        yield broker, client


async def produced(client, topic, acks=1):
    (result,) = produce_results(
        await client.request(produce_request(a_batch(2), topic=topic, acks=acks), 9)
    )
    return result


async def fetched(client, topic):
    (data,) = fetched_partitions(await client.request(fetch_request(0, topic=topic), 12))
    return data


async def test_a_full_disk_fails_producers_until_there_is_space(tmp_path):
    disk = FaultyDisk()
    async with a_broker_with(disk, tmp_path) as (_broker, client):
        assert (await produced(client, "bad")).error_code == 0
        disk.broken = {("write", "bad", errno.ENOSPC)}

        refused = await produced(client, "bad")
        other = await produced(client, "good")
        read = await fetched(client, "bad")

        assert (refused.error_code, refused.base_offset) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
        assert other.error_code == 0
        assert (read.error_code, read.high_watermark) == (0, 2)
        disk.broken = set()
        assert (await produced(client, "bad")).base_offset == 2


async def test_a_failed_fsync_is_never_followed_by_an_ack(tmp_path):
    disk = FaultyDisk()
    async with a_broker_with(disk, tmp_path) as (_broker, client):
        disk.broken = {("sync", "bad", errno.EIO)}
        first = await produced(client, "bad", acks=-1)
        # The next fsync would succeed, but the kernel may have dropped the dirty pages.
        disk.broken = set()
        second = await produced(client, "bad", acks=-1)
        third = await produced(client, "bad", acks=1)
        other = await produced(client, "good", acks=-1)
        read = await fetched(client, "bad")

        codes = [answer.error_code for answer in (first, second, third)]
        assert codes == [ErrorCode.KAFKA_STORAGE_ERROR] * 3
        assert other.error_code == 0
        assert read.error_code == 0


async def test_deleting_large_files_does_not_block_requests(tmp_path):
    """Unlinking a file of one gigabyte takes half a second."""
    threads = []

    class SlowDisk(Disk):
        def unlink(self, path):
            if path.name.endswith(".log.deleted"):
                threads.append(threading.current_thread())
            super().unlink(path)

    config = BrokerConfig(
        log_dir=str(tmp_path),
        listeners="PLAINTEXT://127.0.0.1:0",
        log_retention_check_interval_ms=10,
    )
    async with Broker(config, disk=SlowDisk()) as broker, connect(broker) as client:
        await add_topic(broker, "t", segment_bytes="2000", retention_bytes="0", retention_ms="-1")
        for _ in range(100):
            assert (await produced(client, "t")).error_code == 0
        await eventually(lambda: len(threads) >= 1 and not list(tmp_path.glob("t-0/*.deleted")))

    assert threading.main_thread() not in threads


async def test_a_failed_log_prevents_the_clean_shutdown_marker(tmp_path):
    disk = FaultyDisk()
    async with a_broker_with(disk, tmp_path) as (_broker, client):
        disk.broken = {("sync", "bad", errno.EIO)}
        await produced(client, "bad", acks=-1)

    assert not (tmp_path / "clean-shutdown").exists()


@pytest.mark.parametrize("when", ["while it is mapped", "before it is opened"])
async def test_a_segment_whose_file_was_truncated_fails_its_partition_alone(tmp_path, when):
    async with broker_and_client(tmp_path) as (broker, client):
        await create_topic(client, "t", 2, segment_bytes="20000")
        for partition in (0, 1):
            for _ in range(12):
                await produce_batch(client, "t", value=bytes(3000), partition=partition)
        path = partition_of(broker).log.segments[0].path(".log")
        if when == "while it is mapped":
            assert fetched_partitions(await client.request(fetch_request(0, 0), 12))[0].records
        else:
            partition_of(broker).log.flush()
            partition_of(broker).log.segments.release_files()
        os.truncate(path, 7000)

        damaged, whole = fetched_partitions(await client.request(fetch_request(0, 0), 12))

        assert (damaged.error_code, len(damaged.records)) == (ErrorCode.KAFKA_STORAGE_ERROR, 0)
        assert (whole.error_code, offsets_of(whole)) == (ErrorCode.NONE, list(range(6)))
