"""Nothing that waits for the disk runs on the event loop's thread, except appends."""

import asyncio
import errno
import os
import threading
from collections import Counter
from contextlib import asynccontextmanager

import pytest

from harness.brokers import add_topic, partition_of
from harness.logs import NOW, a_batch
from harness.requests import create_topic, offset_for_time, produce_batch
from harness.waiting import eventually
from harness.wire import (
    batches_of,
    connect,
    error_codes,
    fetch_request,
    fetched_partitions,
    offsets_of,
)
from ottla.broker import Broker, BrokerConfig
from ottla.protocol.api.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.protocol.batch import RecordBatch
from ottla.protocol.errors import ErrorCode
from ottla.storage.disk import Disk
from ottla.storage.producer_states import ProducerStates

EARLIEST = -2
PAGE = 4096
READ_COMMITTED = 1


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


class PageCacheDisk(ThreadsDisk):
    """Also counts reads outside of the page cache, which is empty when `is_counting` is set."""

    def __init__(self):
        super().__init__()
        self._pages = set()

    def _range(self, fd, size, position):
        file = os.fstat(fd).st_ino
        return {(file, page) for page in range(position // PAGE, -(-(position + size) // PAGE))}

    def _load(self, fd, size, position):
        if self.is_counting:
            pages = self._range(fd, size, position)
            if pages - self._pages:
                self._count("read", position)
            self._pages |= pages

    def read(self, fd, size, position):
        self._load(fd, size, position)
        return super().read(fd, size, position)

    def read_into(self, fd, buffer, position):
        self._load(fd, len(buffer), position)
        return super().read_into(fd, buffer, position)

    def is_resident(self, fd, mapped, position):
        if self.is_counting and self._range(fd, len(mapped), position) - self._pages:
            return False
        return super().is_resident(fd, mapped, position)


@asynccontextmanager
async def a_broker(path, disk=None, **configs):
    disk = disk or ThreadsDisk()
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


async def test_rolls_write_indexes_and_snapshots_in_a_thread(tmp_path):
    async with a_broker(tmp_path) as (broker, client, disk):
        await create_topic(client, "t", segment_bytes="1024", index_interval_bytes="1")
        log = partition_of(broker).log

        await produce_batch(client, "t")
        disk.is_counting = True
        for number in range(6):
            await produce_batch(
                client, "t", value=bytes(700), producer_id=7, producer_epoch=0, base_sequence=number
            )
            # One that is being written stands for the next ones, too.
            await eventually(lambda: not log.has_unwritten)
        disk.is_counting = False

        assert not disk.calls
        assert [segment.base_offset for segment in log.segments] == [0, 2, 3, 4, 5, 6]
        for segment in log.segments[:-1]:
            assert segment.path(".index").exists()
            assert segment.path(".timeindex").stat().st_size > 0
        snapshots = sorted(int(path.stem) for path in log.directory.glob("*.snapshot"))
        assert snapshots == [5, 6]
        assert await read_all(client) == [0, 1, 2, 3, 4, 5, 6]


async def test_rolls_with_many_producers_do_not_stop_the_event_loop(tmp_path, monkeypatch):
    async with a_broker(tmp_path) as (broker, client, disk):
        await create_topic(client, "t", segment_bytes="1024")
        log = partition_of(broker).log
        for producer_id in range(2000):
            batch = RecordBatch(a_batch(producer_id=producer_id, producer_epoch=0, base_sequence=0))
            log.producer_states.update(batch, 0, NOW)
        await produce_batch(client, "t", value=bytes(700))
        entered, gate = threading.Event(), threading.Event()

        def wait_at_snapshot(path, content, *, durable=True):
            if path.suffix == ".snapshot":
                entered.set()
                assert gate.wait(20)
            Disk.replace_file(disk, path, content, durable=durable)

        monkeypatch.setattr(disk, "replace_file", wait_at_snapshot)
        sent = {"producer_id": 1, "producer_epoch": 0}
        await produce_batch(client, "t", value=bytes(700), **sent, base_sequence=1)
        assert await asyncio.to_thread(entered.wait, 20)
        # What is appended, and rolled, while the snapshot is being written is not in it.
        await produce_batch(client, "t", value=bytes(700), **sent, base_sequence=2)
        gate.set()
        await eventually(lambda: not log.has_unwritten)

        (snapshot,) = log.directory.glob("*.snapshot")
        states = ProducerStates.restore(snapshot.read_bytes(), NOW)
        assert int(snapshot.stem) == 1
        assert {state.last_sequence for state in states} == {0}
        assert len(states) == 2000
        assert [segment.base_offset for segment in log.segments] == [0, 1, 2]


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


# Reads of what is not in memory.

BATCHES = 60


async def fill_indexed_segments(client):
    """Fill sealed segments of some batches, with an index entry for each batch but the first."""
    configs = {"segment_bytes": "16384", "index_interval_bytes": "1"}
    await create_topic(client, "t", partitions=2, **configs)
    for number in range(BATCHES):
        await produce_batch(client, "t", value=bytes(700), time=NOW + number)
    await produce_batch(client, "t", partition=1)


@pytest.fixture
async def filled(tmp_path):
    """The path of a broker's data, after a clean shutdown: no index is in memory."""
    async with a_broker(tmp_path) as (broker, client, _disk):
        await fill_indexed_segments(client)
        assert len(partition_of(broker).log.segments) == 3
    return tmp_path


async def test_fetch_reads_indexes_in_a_thread(filled):
    async with a_broker(filled) as (_broker, client, disk):
        disk.is_counting = True
        found = await read_all(client)
        last = await read_all(client, 15)
        disk.is_counting = False

        assert found == list(range(BATCHES))
        assert last == list(range(15, BATCHES))
        assert not disk.calls


async def test_fetch_keeps_the_indexes_that_a_thread_has_read(filled, monkeypatch):
    async with a_broker(filled) as (_broker, client, disk):
        await read_all(client, 15)
        reads = []
        monkeypatch.setattr(disk, "read_file", lambda path, _position=0: reads.append(path) or b"")

        assert await read_all(client, 15) == list(range(15, BATCHES))

        assert reads == []


@pytest.mark.parametrize("damage", ["wrong", "missing"])
async def test_fetch_rebuilds_indexes_in_a_thread(filled, damage, monkeypatch, caplog):
    monkeypatch.setattr("ottla.storage.segment._MAX_UNINDEXED_BYTES", 4096)
    async with a_broker(filled) as (broker, client, disk):
        segment = partition_of(broker).log.segments[0]
        path = segment.path(".index")
        content = path.read_bytes()
        last = segment.next_offset - 1
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]) if damage == "wrong" else b"")

        disk.is_counting = True
        found = await read_all(client, last)
        disk.is_counting = False

        assert found == list(range(last, BATCHES))
        assert not disk.calls
        # Entries of a rebuilt index are as far apart as by default.
        assert 0 < len(path.read_bytes()) < len(content)
        caplog.clear()
        assert await read_all(client, last) == list(range(last, BATCHES))
        assert not [message for message in caplog.messages if "rebuilding" in message]


async def test_fetch_reads_batch_headers_outside_of_the_page_cache_in_a_thread(filled):
    async with a_broker(filled, PageCacheDisk()) as (_broker, client, disk):
        disk.is_counting = True
        for offset in (0, 17, BATCHES - 10):  # The last one is in the active segment.
            request = fetch_request(offset, partition_max_bytes=3000)
            (data,) = fetched_partitions(await client.request(request, 12))
            assert offsets_of(data) == list(range(offset, offset + 3))
        disk.is_counting = False

        assert not disk.calls


async def test_fetch_reads_aborted_transactions_in_a_thread(tmp_path):
    async with a_broker(tmp_path) as (broker, client, _disk):
        await create_topic(client, "t", segment_bytes="4096")
        log = partition_of(broker).log
        for producer_id in range(8):
            batch = a_batch(
                value=bytes(700),
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=0,
                transactional=True,
            )
            log.append(batch, leader_epoch=0, now_ms=NOW)
            log.append_marker(
                producer_id=producer_id,
                producer_epoch=0,
                coordinator_epoch=0,
                is_commit=False,
                transaction_version=1,
                leader_epoch=0,
                now_ms=NOW,
            )
        assert len(log.segments) > 1
    async with a_broker(tmp_path) as (broker, client, disk):
        disk.is_counting = True
        request = fetch_request(2, isolation_level=READ_COMMITTED, partition_max_bytes=2000)
        (data,) = fetched_partitions(await client.request(request, 12))
        disk.is_counting = False

        aborted = [(found.producer_id, found.first_offset) for found in data.aborted_transactions]
        assert aborted == [(1, 2), (2, 4)]
        assert not disk.calls


async def test_list_offsets_reads_indexes_in_a_thread(filled):
    async with a_broker(filled) as (_broker, client, disk):
        disk.is_counting = True
        found = [(await offset_for_time(client, "t", NOW + number)).offset for number in (5, 30)]
        disk.is_counting = False

        assert found == [5, 30]
        assert not disk.calls


async def test_a_long_poll_reads_indexes_in_a_thread_again(filled):
    async with a_broker(filled) as (broker, client, disk):
        disk.is_counting = True
        client.send(fetch_request(15, min_bytes=16_000, max_wait_ms=60_000), 12)
        await eventually(lambda: partition_of(broker).waiters)
        partition_of(broker).log.segments.release_files()
        async with connect(broker) as other:
            await produce_batch(other, "t", value=bytes(14_000))
        (data,) = fetched_partitions(await client.response())
        disk.is_counting = False

        assert offsets_of(data)[0] == 15
        assert not [call for call in disk.calls if call[0] == "read_file"]


async def test_a_fetch_that_waits_for_an_index_precedes_the_next_request(filled, monkeypatch):
    async with a_broker(filled) as (broker, client, disk):
        entered, gate = threading.Event(), threading.Event()

        def wait_at_index(path, position=0):
            if path.suffix == ".index":
                entered.set()
                assert gate.wait(20)
            return Disk.read_file(disk, path, position)

        monkeypatch.setattr(disk, "read_file", wait_at_index)
        partition = DeleteRecordsPartition(partition_index=0, offset=BATCHES)
        topic = DeleteRecordsTopic(name="t", partitions=[partition])
        client.send(fetch_request(15), 12)
        client.send(DeleteRecordsRequest(topics=[topic]), 2)
        assert await asyncio.to_thread(entered.wait, 20)
        async with connect(broker) as other:
            assert (await offset_for_time(other, "t", EARLIEST)).offset == 0
        gate.set()
        (data,) = fetched_partitions(await client.response())

        assert offsets_of(data)[0] == 15
        assert (await client.response()).topics[0].partitions[0].low_watermark == BATCHES


async def test_an_index_that_cannot_be_read_is_an_error_of_its_partition(filled, monkeypatch):
    async with a_broker(filled) as (_broker, client, disk):

        def fail_at_index(path, position=0):
            if path.suffix == ".index":
                raise OSError(errno.EIO, "Input/output error")
            return Disk.read_file(disk, path, position)

        with monkeypatch.context() as patch:
            patch.setattr(disk, "read_file", fail_at_index)
            response = await client.request(fetch_request(15, 0), 12)

        assert error_codes(response) == [ErrorCode.KAFKA_STORAGE_ERROR, 0]
        assert offsets_of(fetched_partitions(response)[1]) == [0]
        assert await read_all(client, 15) == list(range(15, BATCHES))


async def test_a_segment_that_is_deleted_while_its_index_is_read_is_out_of_range(
    filled, monkeypatch
):
    async with a_broker(filled) as (broker, client, disk):
        entered, gate = threading.Event(), threading.Event()

        def wait_at_index(path, position=0):
            if path.suffix == ".index":
                entered.set()
                assert gate.wait(20)
            return Disk.read_file(disk, path, position)

        monkeypatch.setattr(disk, "read_file", wait_at_index)
        client.send(fetch_request(15), 12)
        assert await asyncio.to_thread(entered.wait, 20)
        log = partition_of(broker).log
        log.advance_start_offset(BATCHES - 1)
        await asyncio.to_thread(log.purge_deleted_segments)
        gate.set()

        assert error_codes(await client.response()) == [ErrorCode.OFFSET_OUT_OF_RANGE]
