"""Consumers with isolation level read_committed: Fetch, ListOffsets, DescribeProducers."""

import asyncio

import pytest

from harness.brokers import a_broker, add_topic, partition_of
from harness.logs import NOW, a_batch
from harness.waiting import eventually
from harness.wire import connect, fetch_request, fetched_partitions, offsets_of
from ottla.protocol.api.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.protocol.api.describe_producers import DescribeProducersRequest, TopicRequest
from ottla.protocol.api.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from ottla.protocol.batch import RecordBatch

NEWEST = 18
LONG_MS = 9000


class Producer:
    """Appends transactional batches and markers to a partition, as the broker does."""

    def __init__(self, partition, producer_id=7):
        self.partition, self.id, self.sequence = partition, producer_id, 0

    def send(self, count=1, **batch):
        data = a_batch(
            count,
            producer_id=self.id,
            producer_epoch=3,
            base_sequence=self.sequence,
            transactional=True,
            **batch,
        )
        self.sequence += count
        batch = RecordBatch(memoryview(data))
        return self.partition.append_produced(batch, NOW, is_validated=True)

    def end(self, *, commit):
        return self.partition.append_marker(
            producer_id=self.id,
            producer_epoch=3,
            coordinator_epoch=5,
            is_commit=commit,
            transaction_version=1,
            now_ms=NOW,
        )


async def fetch(client, offset, *, isolation_level=1, **fields):
    request = fetch_request(offset, isolation_level=isolation_level, **fields)
    (data,) = fetched_partitions(await client.request(request, NEWEST))
    return data


def aborted_of(data):
    return [(entry.producer_id, entry.first_offset) for entry in data.aborted_transactions]


async def test_records_of_an_open_transaction_are_not_returned(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        partition = partition_of(broker)
        partition.append(a_batch(2), NOW)
        producer = Producer(partition)
        producer.send(3)

        committed = await fetch(client, 0)
        uncommitted = await fetch(client, 0, isolation_level=0)
        assert offsets_of(committed) == [0, 1]
        assert offsets_of(uncommitted) == [0, 1, 2, 3, 4]
        for data in (committed, uncommitted):
            assert (data.high_watermark, data.last_stable_offset) == (5, 2)
        assert (await fetch(client, 4)).records == b""

        producer.end(commit=True)
        data = await fetch(client, 2)
        assert offsets_of(data) == [2, 3, 4, 5]
        assert (data.high_watermark, data.last_stable_offset, aborted_of(data)) == (6, 6, [])


async def test_aborted_transactions_in_the_range_are_listed(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        producer = Producer(partition_of(broker))
        for _ in range(3):
            producer.send(2)  # 0, 3, 6
            producer.end(commit=False)

        assert aborted_of(await fetch(client, 0)) == [(7, 0), (7, 3), (7, 6)]
        assert aborted_of(await fetch(client, 1, partition_max_bytes=1)) == [(7, 0)]
        assert aborted_of(await fetch(client, 2, partition_max_bytes=1)) == [(7, 0)]
        assert aborted_of(await fetch(client, 3)) == [(7, 3), (7, 6)]
        assert aborted_of(await fetch(client, 9)) == []
        assert (await fetch(client, 0, isolation_level=0)).aborted_transactions is None


@pytest.mark.parametrize("durability", ["page-cache", "fsync"])
async def test_a_long_poll_wakes_when_the_last_stable_offset_moves(tmp_path, durability):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await add_topic(broker, "tx", durability=durability)
        partition = partition_of(broker, "tx")
        first, second = Producer(partition, 1), Producer(partition, 2)
        first.send()
        await eventually(lambda: partition.high_watermark == 1)
        poll = asyncio.create_task(fetch(client, 0, topic="tx", max_wait_ms=LONG_MS))
        await eventually(lambda: len(partition.waiters) == 1)

        second.send(5)
        first.send(5)
        await eventually(lambda: partition.high_watermark == 11)
        second.end(commit=True)
        await eventually(lambda: partition.high_watermark == 12)
        await asyncio.sleep(0.05)
        assert not poll.done()
        first.end(commit=True)

        data = await asyncio.wait_for(poll, 5)
        assert offsets_of(data) == list(range(13))


async def test_min_bytes_counts_bytes_below_the_last_stable_offset(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        partition = partition_of(broker)
        first, second = Producer(partition, 1), Producer(partition, 2)
        first.send(value=b"x" * 300)
        second.send(value=b"x" * 5000)
        poll = asyncio.create_task(fetch(client, 0, min_bytes=3000, max_wait_ms=LONG_MS))
        await eventually(lambda: len(partition.waiters) == 1)

        first.end(commit=True)
        await asyncio.sleep(0.05)
        assert not poll.done()
        await eventually(lambda: len(partition.waiters) == 1)
        second.end(commit=True)

        assert len((await asyncio.wait_for(poll, 5)).records) > 5000


async def test_a_long_poll_at_the_last_stable_offset_ends_after_max_wait(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        producer = Producer(partition_of(broker))
        producer.send()

        data = await fetch(client, 0, max_wait_ms=100)

        assert (data.records, data.high_watermark, data.last_stable_offset) == (b"", 1, 0)
        assert not partition_of(broker).waiters


async def test_offsets_at_or_above_the_last_stable_offset_are_not_listed(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        partition = partition_of(broker)
        partition.append(a_batch(2, time=NOW), NOW)
        Producer(partition).send(2, time=NOW + 100)

        async def list_offset(timestamp, isolation_level):
            requested = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
            request = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=isolation_level,
                topics=[ListOffsetsTopic(name="t", partitions=[requested])],
            )
            return (await client.request(request, 7)).topics[0].partitions[0].offset

        assert [await list_offset(-1, level) for level in (0, 1)] == [4, 2]
        assert [await list_offset(NOW + 1, level) for level in (0, 1)] == [1, 1]
        assert [await list_offset(NOW + 50, level) for level in (0, 1)] == [2, -1]
        assert [await list_offset(-3, level) for level in (0, 1)] == [3, -1]


async def test_open_transactions_are_described(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        partition = partition_of(broker)
        Producer(partition, 1).send(2)
        ended = Producer(partition, 2)
        ended.send()
        ended.end(commit=False)

        request = DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0])])
        response = await client.request(request, 0)

        assert [
            (p.producer_id, p.producer_epoch, p.coordinator_epoch, p.current_txn_start_offset)
            for p in response.topics[0].partitions[0].active_producers
        ] == [(1, 3, -1, 0), (2, 3, 5, -1)]
        assert partition.has_open_transaction(1, 3)
        assert not partition.has_open_transaction(1, 4)
        assert not partition.has_open_transaction(2, 3)


async def test_records_of_an_open_transaction_may_be_deleted(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        partition = partition_of(broker)
        producer = Producer(partition)
        producer.send(4)
        requested = DeleteRecordsPartition(partition_index=0, offset=3)
        topic = DeleteRecordsTopic(name="t", partitions=[requested])
        response = await client.request(DeleteRecordsRequest(topics=[topic], timeout_ms=1000), 2)
        assert response.topics[0].partitions[0].low_watermark == 3

        data = await fetch(client, 3)
        assert (data.records, data.last_stable_offset, data.log_start_offset) == (b"", 3, 3)
        producer.end(commit=False)
        data = await fetch(client, 3)
        assert (aborted_of(data), data.last_stable_offset) == ([(7, 0)], 5)
