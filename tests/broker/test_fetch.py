"""Fetch: the records returned, the size limits and the long polls."""

import asyncio
import os
from contextlib import contextmanager

import pytest

from harness.brokers import a_broker, add_topic, is_serving, partition_of
from harness.logs import NOW, a_batch
from harness.waiting import eventually
from harness.wire import (
    batches_of,
    connect,
    error_codes,
    fetch_request,
    fetched_partitions,
    offsets_of,
    produce_request,
    produce_results,
)
from ottla.protocol.api.fetch import LAST_VERSION_WITH_TOPIC_NAMES as WITH_NAMES
from ottla.protocol.api.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.errors import ErrorCode

NEWEST = 18
VERSIONS = pytest.mark.parametrize("version", range(4, NEWEST + 1))
LONG_MS = 9000


async def append(broker, *counts, topic="t", index=0, **batch):
    """Append one batch for each record count."""
    async with connect(broker) as client:
        for count in counts:
            request = produce_request(a_batch(count, **batch), topic=topic, partition=index)
            assert error_codes(await client.request(request, 9)) == [0]


def size_of(count=1, **batch):
    return len(a_batch(count, **batch))


def has_taken(started, seconds):
    """Whether at least `seconds` have passed, and not many more."""
    return seconds <= asyncio.get_running_loop().time() - started < seconds + 2


# Records.


@VERSIONS
async def test_fetch_from_offset_0_returns_all_records(tmp_path, version):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await append(broker, 2, 3)

        (data,) = fetched_partitions(await client.request(fetch_request(0), version))

        assert offsets_of(data) == [0, 1, 2, 3, 4]
        assert (data.high_watermark, data.last_stable_offset) == (5, 5)
        assert data.log_start_offset == (0 if version >= 5 else -1)
        assert data.preferred_read_replica == -1


async def test_an_offset_inside_a_batch_returns_the_whole_batch(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await append(broker, 3, 3)

        (data,) = fetched_partitions(await client.request(fetch_request(4), WITH_NAMES))

        assert offsets_of(data) == [3, 4, 5]


async def test_the_end_offset_returns_empty_records_not_null(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await append(broker, 3)

        (data,) = fetched_partitions(await client.request(fetch_request(3), WITH_NAMES))

        assert (data.error_code, data.records, data.high_watermark) == (0, b"", 3)


@pytest.mark.parametrize("offset", [4, -1, -2, -3, 2**63 - 1, -(2**63)])
async def test_an_offset_outside_the_log_is_out_of_range_without_waiting(tmp_path, offset):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await append(broker, 3)

        first, second = fetched_partitions(
            await client.request(fetch_request(offset, 0, max_wait_ms=LONG_MS), WITH_NAMES)
        )

        assert first.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (first.high_watermark, first.last_stable_offset, first.log_start_offset) == (-1,) * 3
        assert first.records == b""
        assert second.error_code == 0


async def test_offsets_below_the_log_start_are_out_of_range(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await append(broker, 1, 1, 1)
        partition_of(broker).log.delete_records_before(2)

        responses = [
            fetched_partitions(await client.request(fetch_request(offset), WITH_NAMES))[0]
            for offset in (1, 2)
        ]

        assert [data.error_code for data in responses] == [ErrorCode.OFFSET_OUT_OF_RANGE, 0]
        assert offsets_of(responses[1]) == [2]
        assert responses[1].log_start_offset == 2


async def test_an_unknown_partition_fails_alone_without_waiting(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await append(broker, 1)
        partitions = [FetchPartition(partition=n, partition_max_bytes=1000) for n in (0, 2, -1)]
        request = FetchRequest(
            max_wait_ms=LONG_MS,
            min_bytes=10**6,
            topics=[
                FetchTopic(topic="nowhere", partitions=partitions[:1]),
                FetchTopic(topic="t", partitions=partitions),
            ],
        )

        response = await client.request(request, WITH_NAMES)

        assert [topic.topic for topic in response.responses] == ["nowhere", "t"]
        assert error_codes(response) == [3, 0, 3, 3]
        aborted = [data.aborted_transactions for data in fetched_partitions(response)]
        assert [None if each is None else len(each) for each in aborted] == [0, None, 0, 0]
        assert offsets_of(fetched_partitions(response)[1]) == [0]


async def test_a_wrong_leader_epoch_is_fenced(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await append(broker, 1)

        responses = [
            error_codes(
                await client.request(fetch_request(0, epoch=epoch, max_wait_ms=LONG_MS), WITH_NAMES)
            )
            for epoch in (-1, 0, 1, 2**31 - 1, -2)
        ]

        unknown, fenced = ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.FENCED_LEADER_EPOCH
        assert responses == [[0], [0], [unknown], [unknown], [fenced]]


@pytest.mark.parametrize(("replica_id", "code"), [(-1, 0), (-2, 0), (0, 31), (5, 31)])
async def test_a_fetch_with_a_replica_id_is_refused(tmp_path, replica_id, code):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await append(broker, 1)

        response = await client.request(fetch_request(0, replica_id=replica_id), WITH_NAMES)

        assert error_codes(response) == [code]


async def test_aborted_transactions_are_null_unless_read_committed(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await append(broker, 2)

        (committed,) = fetched_partitions(
            await client.request(fetch_request(0, isolation_level=1), WITH_NAMES)
        )
        (uncommitted,) = fetched_partitions(
            await client.request(fetch_request(0, isolation_level=0), WITH_NAMES)
        )

        assert committed.aborted_transactions == []
        assert uncommitted.aborted_transactions is None
        assert committed.last_stable_offset == committed.high_watermark == 2
        assert offsets_of(committed) == offsets_of(uncommitted) == [0, 1]


# Size limits.


async def test_whole_batches_up_to_partition_max_bytes(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await append(broker, *[1] * 10)
        size = size_of()

        for max_bytes, count in [(3 * size, 3), (4 * size - 1, 3), (4 * size, 4), (99 * size, 10)]:
            (data,) = fetched_partitions(
                await client.request(fetch_request(0, partition_max_bytes=max_bytes), WITH_NAMES)
            )
            assert offsets_of(data) == list(range(count))


@pytest.mark.parametrize("max_bytes", [1, 0, -1, -(2**31)])
async def test_the_first_batch_is_returned_however_large_it_is(tmp_path, max_bytes):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await append(broker, 1, 1, value=bytes(5000))

        small_partition = fetch_request(0, partition_max_bytes=max_bytes)
        small_response = fetch_request(0, max_bytes=max_bytes)

        for request in (small_partition, small_response):
            assert offsets_of(fetched_partitions(await client.request(request, WITH_NAMES))[0]) == [
                0
            ]


async def test_limits_hold_after_the_first_partition_with_records(tmp_path):
    async with a_broker(tmp_path, {"t": 4}) as broker, connect(broker) as client:
        for index in (1, 2, 3):
            await append(broker, 1, 1, index=index)
        size = size_of()

        by_response = fetched_partitions(
            await client.request(fetch_request(0, 0, 0, 0, max_bytes=3 * size), WITH_NAMES)
        )
        tight = fetch_request(0, 0, 0, 0, partition_max_bytes=size - 1)
        by_partition = fetched_partitions(await client.request(tight, WITH_NAMES))

        assert [len(offsets_of(data)) for data in by_response] == [0, 2, 1, 0]
        assert [len(offsets_of(data)) for data in by_partition] == [0, 1, 0, 0]
        assert [data.high_watermark for data in by_partition] == [0, 2, 2, 2]


async def test_fetch_max_bytes_of_the_broker_limits_a_response(tmp_path):
    async with (
        a_broker(tmp_path, fetch_max_bytes=1024) as broker,
        connect(broker) as client,
    ):
        await append(broker, *[1] * 5, value=bytes(400))

        (data,) = fetched_partitions(
            await client.request(fetch_request(0, max_bytes=2**31 - 1), WITH_NAMES)
        )

        assert offsets_of(data) == [0, 1]


async def test_fetching_in_a_loop_returns_every_record_once(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await add_topic(broker, "many", segment_bytes="2000", index_interval_bytes="200")
        await append(broker, *[n % 5 + 1 for n in range(60)], topic="many")
        seen, offset = [], 0

        while offset < 180:
            (data,) = fetched_partitions(
                await client.request(
                    fetch_request(offset, topic="many", partition_max_bytes=700), WITH_NAMES
                )
            )
            seen += offsets_of(data)
            offset = batches_of(data)[-1].next_offset

        assert seen == list(range(180))


# Long polls.


async def test_a_long_poll_is_woken_by_an_append(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        started = asyncio.get_running_loop().time()
        client.send(fetch_request(0, max_wait_ms=LONG_MS), WITH_NAMES)
        assert await client.receives_nothing()

        await append(broker, 2)

        assert offsets_of(fetched_partitions(await client.response())[0]) == [0, 1]
        assert has_taken(started, 0.05)


async def test_a_long_poll_is_woken_by_any_of_its_partitions(tmp_path):
    async with a_broker(tmp_path, {"t": 3}) as broker, connect(broker) as client:
        client.send(fetch_request(0, 0, 0, max_wait_ms=LONG_MS), WITH_NAMES)
        assert await client.receives_nothing()

        await append(broker, 1, index=2)

        assert [offsets_of(data) for data in fetched_partitions(await client.response())] == [
            [],
            [],
            [0],
        ]


async def test_a_long_poll_waits_for_min_bytes(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await append(broker, 1)
        client.send(fetch_request(0, 0, min_bytes=3 * size_of(), max_wait_ms=LONG_MS), WITH_NAMES)
        assert await client.receives_nothing()
        await append(broker, 1, index=1)
        assert await client.receives_nothing()

        await append(broker, 1)

        assert [offsets_of(data) for data in fetched_partitions(await client.response())] == [
            [0, 1],
            [0],
        ]


async def test_a_long_poll_returns_what_there_is_after_max_wait(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await append(broker, 1)
        started = asyncio.get_running_loop().time()

        nothing = await client.request(fetch_request(1, max_wait_ms=100), WITH_NAMES)
        something = await client.request(
            fetch_request(0, min_bytes=10**6, max_wait_ms=100), WITH_NAMES
        )

        assert has_taken(started, 0.2)
        assert offsets_of(fetched_partitions(nothing)[0]) == []
        assert offsets_of(fetched_partitions(something)[0]) == [0]
        assert not partition_of(broker).waiters


@pytest.mark.parametrize(
    "request_",
    [
        fetch_request(0, max_wait_ms=0, min_bytes=1),
        fetch_request(0, max_wait_ms=-1, min_bytes=1),
        fetch_request(0, max_wait_ms=LONG_MS, min_bytes=0),
        fetch_request(0, max_wait_ms=LONG_MS, min_bytes=-1),
        fetch_request(max_wait_ms=LONG_MS, min_bytes=1),
    ],
    ids=["no wait", "a negative wait", "no bytes", "negative bytes", "no partitions"],
)
async def test_a_fetch_with_nothing_to_wait_for_returns_at_once(tmp_path, request_):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        started = asyncio.get_running_loop().time()

        response = await client.request(request_, WITH_NAMES)

        assert has_taken(started, 0)
        assert all(data.records == b"" for data in fetched_partitions(response))


async def test_an_append_while_other_partitions_are_read_ends_a_long_poll(tmp_path):
    """Partition 0 is read first, and then so many others that they are read in slices."""
    async with a_broker(tmp_path, {"t": 2}) as broker, connect(broker) as client:
        others = [FetchPartition(partition=1, partition_max_bytes=1024)] * 2500
        for offset in range(25):
            first = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1024)
            topics = [FetchTopic(topic="t", partitions=[first, *others])]
            client.send(FetchRequest(max_wait_ms=LONG_MS, min_bytes=1, topics=topics), WITH_NAMES)
            for _ in range(offset):
                await asyncio.sleep(0)
            partition_of(broker).append(a_batch(), NOW)

            async with asyncio.timeout(LONG_MS / 2000):
                response = await client.response()
            assert offsets_of(fetched_partitions(response)[0]) == [offset]


async def test_deleting_a_topic_ends_its_long_polls(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await append(broker, 1)
        client.send(fetch_request(1, max_wait_ms=LONG_MS), WITH_NAMES)
        assert await client.receives_nothing()

        await broker.controller.delete_topic(broker.topics.image.topics["t"])

        assert error_codes(await client.response()) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


async def test_closing_a_connection_removes_its_waiters(tmp_path):
    async with a_broker(tmp_path) as broker:
        async with connect(broker) as client:
            for _ in range(5):
                client.send(fetch_request(0, 0, max_wait_ms=2**31 - 1), WITH_NAMES)
            await eventually(lambda: len(partition_of(broker).waiters) == 5)

        await eventually(lambda: not partition_of(broker).waiters)
        assert not partition_of(broker, "t", 1).waiters
        await append(broker, 1)
        assert await is_serving(broker)


async def test_stopping_the_broker_completes_long_polls(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        client.send(fetch_request(0, max_wait_ms=LONG_MS), WITH_NAMES)
        assert await client.receives_nothing()

        await broker.server.stop(5)

        assert error_codes(await client.response()) == [0]
        assert await client.is_closed()


async def test_a_produce_behind_a_long_poll_is_appended_at_once_and_answered_after_it(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        client.send(fetch_request(0, max_wait_ms=LONG_MS), WITH_NAMES)
        client.send(produce_request(a_batch(3), partition=1), 9)
        client.send(produce_request(a_batch(2), topic="nowhere"), 9)

        await eventually(lambda: partition_of(broker, "t", 1).log.end_offset == 3)
        assert await client.receives_nothing()
        await append(broker, 1)

        assert offsets_of(fetched_partitions(await client.response())[0]) == [0]
        assert produce_results(await client.response())[0].base_offset == 0
        assert error_codes(await client.response()) == [3]


async def test_a_produce_wakes_the_long_poll_of_its_own_connection(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        client.send(fetch_request(0, max_wait_ms=LONG_MS), WITH_NAMES)
        client.send(produce_request(a_batch(3)), 9)

        assert offsets_of(fetched_partitions(await client.response())[0]) == [0, 1, 2]
        assert error_codes(await client.response()) == [0]


async def test_long_polls_of_one_connection_are_answered_in_request_order(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        client.send(fetch_request(0, max_wait_ms=300), WITH_NAMES)
        client.send(fetch_request(0, topic="nowhere", max_wait_ms=LONG_MS), WITH_NAMES)
        client.send(fetch_request(0, max_wait_ms=100), WITH_NAMES)

        responses = [error_codes(await client.response()) for _ in range(3)]

        assert responses == [[0], [3], [0]]


async def test_a_long_poll_holds_no_mapped_segment(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await append(broker, 2)
        client.send(fetch_request(0, min_bytes=10**6, max_wait_ms=LONG_MS), WITH_NAMES)
        await eventually(lambda: partition_of(broker).waiters)
        log = partition_of(broker).log

        log.roll()
        log.delete_records_before(2)

        assert log.purge_deleted_segments() == 0
        await append(broker, 1)


# Records that are not in the page cache.


@contextmanager
def cold(log):
    """Evict the pages of a log from the page cache, if the file system supports it."""
    log.flush()
    path = log.active_segment.path(".log")
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if log.files.disk.is_cached(fd, log.size // 2):
            pytest.skip("the pages stay in the cache here")
    finally:
        os.close(fd)
    yield path


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="requires posix_fadvise")
async def test_records_outside_the_page_cache_are_read_by_a_thread(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await append(broker, *[1] * 8, value=os.urandom(200_000))
        log = partition_of(broker).log
        with cold(log):
            client.send(fetch_request(0, partition_max_bytes=2**31 - 1), WITH_NAMES)
            client.send(fetch_request(0, topic="nowhere"), WITH_NAMES)

            (data,) = fetched_partitions(await client.response())

            assert error_codes(await client.response()) == [3]
        assert offsets_of(data) == list(range(8))
        for batch in batches_of(data):
            batch.validate()


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="requires posix_fadvise")
@pytest.mark.parametrize("wait_ms", [0, 50])
async def test_a_read_error_outside_the_page_cache_is_a_storage_error(tmp_path, wait_ms):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await append(broker, *[1] * 4, value=os.urandom(200_000))
        await append(broker, 1, index=1)
        log = partition_of(broker).log
        with cold(log) as path:
            path.rename(path.with_suffix(".gone"))
            path.mkdir()  # Opening it fails, as on a bad disk.

            request = fetch_request(
                0,
                0,
                partition_max_bytes=2**31 - 1,
                min_bytes=10**9 if wait_ms else 1,
                max_wait_ms=wait_ms,
            )
            response = await client.request(request, WITH_NAMES)

            path.rmdir()
            path.with_suffix(".gone").rename(path)
        assert error_codes(response) == [ErrorCode.KAFKA_STORAGE_ERROR, 0]
        assert offsets_of(fetched_partitions(response)[1]) == [0]
