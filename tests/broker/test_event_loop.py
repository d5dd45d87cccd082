"""Nothing that waits for the disk runs on the event loop's thread, except appends and rolls."""

import asyncio
import threading
from collections import Counter
from contextlib import asynccontextmanager

import pytest

from harness.brokers import add_topic, partition_of
from harness.logs import NOW
from harness.requests import create_topic, offset_for_time, produce_batch
from harness.wire import batches_of, connect, fetch_request, fetched_partitions, offsets_of
from ottla.broker import Broker, BrokerConfig
from ottla.protocol.api.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.storage.disk import Disk

EARLIEST = -2


class ThreadsDisk(Disk):
    """Counts slow calls on the thread that created it, while `is_counting`."""

    def __init__(self):
        self.calls = Counter()
        self.is_counting = False
        self._thread = threading.get_ident()

    def _count(self, call, path):
        if self.is_counting and threading.get_ident() == self._thread:
            self.calls[call, str(path).rpartition("/")[2]] += 1

    def sync(self, fd, *, metadata=False):
        self._count("sync", fd)
        super().sync(fd, metadata=metadata)

    def sync_directory(self, path):
        self._count("sync_directory", path)
        super().sync_directory(path)

    def rename(self, source, target):
        self._count("rename", source)
        super().rename(source, target)

    def unlink(self, path):
        self._count("unlink", path)
        super().unlink(path)

    def read_file(self, path, position=0):
        self._count("read_file", path)
        return super().read_file(path, position)


@asynccontextmanager
async def a_broker(path, **configs):
    disk = ThreadsDisk()
    config = BrokerConfig(log_dir=str(path), listeners="PLAINTEXT://127.0.0.1:0", **configs)
    async with Broker(config, disk=disk) as broker, connect(broker) as client:
        yield broker, client, disk
        disk.is_counting = False


async def fill(client, topic="t", segments=6, **batch):
    for _ in range(segments):
        await produce_batch(client, topic, value=bytes(700), **batch)


async def read_all(client, offset=0):
    """Return the offsets of all records; each Fetch returns those of one segment."""
    found = []
    while True:
        (data,) = fetched_partitions(await client.request(fetch_request(offset), 12))
        assert data.error_code == 0
        if not (batches := batches_of(data)):
            return found
        found += offsets_of(data)
        offset = batches[-1].next_offset


async def test_records_are_deleted_by_a_thread(tmp_path):
    async with a_broker(tmp_path) as (broker, client, disk):
        await create_topic(client, "t", segment_bytes="1024")
        await fill(client)
        partition = DeleteRecordsPartition(partition_index=0, offset=4)
        topic = DeleteRecordsTopic(name="t", partitions=[partition])

        disk.is_counting = True
        response = await client.request(DeleteRecordsRequest(topics=[topic]), 2)
        disk.is_counting = False

        assert response.topics[0].partitions[0].low_watermark == 4
        assert not disk.calls
        log = partition_of(broker).log
        assert [segment.base_offset for segment in log.segments] == [4, 5]
        assert len(list(log.directory.glob("*.log.deleted"))) == 4
    async with a_broker(tmp_path) as (_broker, client, _disk):
        assert (await offset_for_time(client, "t", EARLIEST)).offset == 4


async def test_concurrent_deletions_leave_the_highest_offset(tmp_path):
    async with a_broker(tmp_path) as (broker, client, _disk):
        await create_topic(client, "t", segment_bytes="1024")
        await fill(client)

        async def delete(offset):
            partition = DeleteRecordsPartition(partition_index=0, offset=offset)
            topic = DeleteRecordsTopic(name="t", partitions=[partition])
            async with connect(broker) as other:
                await other.request(DeleteRecordsRequest(topics=[topic]), 2)

        await asyncio.gather(*map(delete, (5, 1, 3, 2, 4, 0)))
        assert partition_of(broker).log.start_offset == 5
    async with a_broker(tmp_path) as (_broker, client, _disk):
        assert (await offset_for_time(client, "t", EARLIEST)).offset == 5


async def test_retention_deletes_in_a_thread(tmp_path):
    async with a_broker(tmp_path) as (broker, client, _disk):
        await create_topic(client, "t", segment_bytes="1024", retention_ms="-1")
        await fill(client, time=NOW)
    async with a_broker(tmp_path) as (broker, client, disk):
        partition = partition_of(broker)
        partition.set_config(partition.log.config.with_overrides({"retention.bytes": "2000"}))

        disk.is_counting = True
        await broker.housekeeping.apply_retention()
        disk.is_counting = False

        assert not disk.calls
        assert partition.log.start_offset == 3
        assert not list(partition.log.directory.glob("*.deleted"))


async def test_compaction_is_committed_by_a_thread(tmp_path):
    async with a_broker(tmp_path) as (broker, client, disk):
        await create_topic(
            client,
            "t",
            segment_bytes="1024",
            cleanup_policy="compact",
            min_cleanable_dirty_ratio="0.01",
        )
        await fill(client, segments=8)

        disk.is_counting = True
        await broker.housekeeping.compact()
        disk.is_counting = False

        assert not disk.calls
        assert await read_all(client) == [6, 7]


async def test_fetches_during_a_commit_read_the_old_segment(tmp_path, monkeypatch):
    async with a_broker(tmp_path) as (broker, client, _disk):
        await add_topic(
            broker,
            "t",
            segment_bytes="1024",
            cleanup_policy="compact",
            min_cleanable_dirty_ratio="0.01",
        )
        await fill(client, segments=8)
        before = await read_all(client)
        disk = broker.logs.disk
        entered, gate = threading.Event(), threading.Event()

        def wait_after_rename(source, target):
            Disk.rename(disk, source, target)
            if source.name.endswith(".log.cleaned") and not entered.is_set():
                entered.set()
                assert gate.wait(20)

        monkeypatch.setattr(disk, "rename", wait_after_rename)
        compaction = asyncio.create_task(broker.housekeeping.compact())
        assert await asyncio.to_thread(entered.wait, 20)
        # The first segment has its new file, and neither index; the others are not replaced yet.
        log = partition_of(broker).log
        log.segments.release_files()
        during = await read_all(client)
        gate.set()
        await compaction

        assert during == before
        assert await read_all(client) == [6, 7]


@pytest.mark.parametrize("when", ["before", "during"])
async def test_a_segment_that_is_deleted_during_a_commit_stays_deleted(tmp_path, monkeypatch, when):
    async with a_broker(tmp_path) as (broker, client, _disk):
        await add_topic(
            broker,
            "t",
            segment_bytes="1024",
            cleanup_policy="compact,delete",
            min_cleanable_dirty_ratio="0.01",
            retention_ms="-1",
        )
        await fill(client, segments=8)
        log, disk = partition_of(broker).log, broker.logs.disk
        entered, gate = threading.Event(), threading.Event()

        def wait_at_rename(source, target):
            if when == "during":
                Disk.rename(disk, source, target)
            if source.name.endswith(".log.cleaned") and not entered.is_set():
                entered.set()
                assert gate.wait(20)
            if when == "before":
                Disk.rename(disk, source, target)

        monkeypatch.setattr(disk, "rename", wait_at_rename)
        compaction = asyncio.create_task(broker.housekeeping.compact())
        assert await asyncio.to_thread(entered.wait, 20)
        log.advance_start_offset(5)
        gate.set()
        await compaction
        await asyncio.to_thread(log.purge_deleted_segments)

        assert [int(path.stem) for path in sorted(log.directory.glob("*.log"))] == [
            segment.base_offset for segment in log.segments
        ]
        assert await read_all(client, 5) == [6, 7]
