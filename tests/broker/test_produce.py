"""Produce: appended and refused batches, idempotent producers, and acks."""

import asyncio
import struct
import threading
import time
from contextlib import AsyncExitStack, contextmanager
from random import Random

import pytest
from crc32c import crc32c

from harness.brokers import a_broker, add_topic, is_serving, partition_of
from harness.logs import NOW, a_batch
from harness.raw_batches import compressed, raw_batch, raw_record
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
from ottla.protocol.api.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.batch import Record, RecordBatch, build_batch
from ottla.protocol.codec import decode_response, encode_request
from ottla.protocol.compression import Compression
from ottla.protocol.errors import ErrorCode

NEWEST = 11
VERSIONS = pytest.mark.parametrize("version", range(3, NEWEST + 1))
ACKS = pytest.mark.parametrize("acks", [1, -1])


def flipped(batch, position):
    damaged = bytearray(batch)
    damaged[position] ^= 0x01
    return damaged


def with_attributes(batch, attributes):
    """Return the batch with other attributes and a matching CRC."""
    changed = bytearray(batch)
    struct.pack_into(">h", changed, 21, attributes)
    struct.pack_into(">I", changed, 17, crc32c(changed[21:]))
    return changed


async def stored(client, topic="t"):
    """Return all records of partition 0 as bytes."""
    return bytes(
        fetched_partitions(await client.request(fetch_request(0, topic=topic), 12))[0].records
    )


# Appended batches.


@VERSIONS
@ACKS
async def test_the_response_has_the_base_offset_of_the_batch(tmp_path, version, acks):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        first = await client.request(produce_request(a_batch(3), acks=acks), version)
        second = await client.request(produce_request(a_batch(2), acks=acks), version)

        assert [(r.index, r.error_code, r.base_offset) for r in produce_results(first)] == [
            (0, 0, 0)
        ]
        assert [(r.index, r.error_code, r.base_offset) for r in produce_results(second)] == [
            (0, 0, 3)
        ]
        assert produce_results(second)[0].log_append_time_ms == -1
        assert produce_results(second)[0].log_start_offset == (0 if version >= 5 else -1)
        assert partition_of(broker).log.end_offset == 5


async def test_acks_0_appends_without_a_response(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        client.writer.write(b"".join(frames_of(produce_request(a_batch(2), acks=0), times=3)))

        response = await client.request(fetch_request(0), 12)

        assert offsets_of(fetched_partitions(response)[0]) == [0, 1, 2, 3, 4, 5]


async def test_an_error_with_acks_0_closes_only_its_connection(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        client.writer.write(b"".join(frames_of(produce_request(a_batch(), acks=0))))
        client.writer.write(
            b"".join(frames_of(produce_request(a_batch(), topic="nowhere", acks=0)))
        )

        assert await client.is_closed()
        assert partition_of(broker).log.end_offset == 1
        assert await is_serving(broker)


def frames_of(request, times=1, version=9):
    for number in range(times):
        yield b"".join(encode_request(request, version, number, None))


async def test_many_topics_and_partitions_in_one_request(tmp_path):
    request = ProduceRequest(
        acks=-1,
        timeout_ms=5000,
        topic_data=[
            TopicProduceData(
                name=name,
                partition_data=[
                    PartitionProduceData(index=index, records=a_batch(index + 1))
                    for index in (2, 0, 1)
                ],
            )
            for name in ("one", "two")
        ],
    )
    async with (
        a_broker(tmp_path, {"one": 3, "two": 3}) as broker,
        connect(broker) as client,
    ):
        response = await client.request(request, NEWEST)

        assert [topic.name for topic in response.responses] == ["one", "two"]
        assert [r.index for r in produce_results(response)] == [2, 0, 1, 2, 0, 1]
        assert error_codes(response) == [0] * 6
        ends = [partition_of(broker, "two", index).log.end_offset for index in range(3)]
        assert ends == [1, 2, 3]


@pytest.mark.parametrize("codec", list(Compression), ids=lambda codec: codec.name)
async def test_compressed_batches_are_stored_byte_for_byte(tmp_path, codec):
    batch = a_batch(50, value=b"say it again " * 20, compression=codec)
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        response = await client.request(produce_request(batch), NEWEST)

        assert error_codes(response) == [0]
        # Except base offset and leader epoch, which the broker assigns.
        there = await stored(client)
        assert there[16:] == batch[16:]
        assert there[:16] == struct.pack(">qii", 0, len(batch) - 12, 0)


@pytest.mark.parametrize("stored_codec", list(Compression), ids=lambda codec: codec.name)
async def test_compression_type_recompresses_other_codecs(tmp_path, stored_codec):
    name = "uncompressed" if stored_codec is Compression.NONE else stored_codec.name.lower()
    sent = [
        a_batch(50, value=b"again " * 20, compression=codec, producer_id=9, producer_epoch=0)
        for codec in Compression
    ]
    for sequence, batch in enumerate(sent):
        struct.pack_into(">i", batch, 53, sequence * 50)
        struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await add_topic(broker, "packed", compression_type=name)
        for batch in sent:
            client.send(produce_request(batch, topic="packed"), NEWEST)
        for _ in sent:
            assert error_codes(await client.response()) == [0]

        stored_batches = batches_of(
            fetched_partitions(await client.request(fetch_request(0, topic="packed"), 12))[0]
        )

        for number, (batch, original) in enumerate(zip(stored_batches, sent, strict=True)):
            batch.validate()
            assert batch.compression is stored_codec
            assert batch.base_sequence == number * 50
            assert [(r.key, r.value, r.timestamp) for r in batch.records()] == [
                (r.key, r.value, r.timestamp) for r in RecordBatch(original).records()
            ]


async def test_a_batch_that_recompression_makes_too_large_is_refused(tmp_path):
    batch = a_batch(50, value=bytes(1000), compression=Compression.ZSTD)
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        limits = {"compression_type": "uncompressed", "max_message_bytes": "40000"}
        await add_topic(broker, "packed", **limits)

        response = await client.request(produce_request(batch, topic="packed"), NEWEST)

        assert error_codes(response) == [ErrorCode.MESSAGE_TOO_LARGE]
        assert partition_of(broker, "packed").log.end_offset == 0


async def test_records_are_recompressed_if_they_are_not_validated(tmp_path):
    async with a_broker(tmp_path, broker_validate_records=False) as broker:
        await add_topic(broker, "packed", compression_type="lz4")
        async with connect(broker) as client:
            response = await client.request(produce_request(a_batch(5), topic="packed"), NEWEST)

            assert error_codes(response) == [0]
            fetched = await client.request(fetch_request(0, topic="packed"), 12)
            (batch,) = batches_of(fetched_partitions(fetched)[0])
            assert batch.compression is Compression.LZ4


async def test_log_append_time_is_set_and_returned(tmp_path):
    before = int(time.time() * 1000)
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await add_topic(broker, "timed", message_timestamp_type="LogAppendTime")

        response = await client.request(produce_request(a_batch(3), topic="timed"), NEWEST)

        append_time_ms = produce_results(response)[0].log_append_time_ms
        assert before <= append_time_ms <= int(time.time() * 1000)
        (batch,) = batches_of(
            fetched_partitions(await client.request(fetch_request(0, topic="timed"), 12))[0]
        )
        batch.validate()
        assert [record.timestamp for record in batch.records()] == [append_time_ms] * 3


# Refused batches.


@pytest.mark.parametrize("acks", [-2, 2, 32767, -32768])
async def test_invalid_acks_are_refused_for_each_partition(tmp_path, acks):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        response = await client.request(produce_request(a_batch(), a_batch(), acks=acks), NEWEST)

        assert error_codes(response) == [ErrorCode.INVALID_REQUIRED_ACKS] * 2
        assert [r.base_offset for r in produce_results(response)] == [-1, -1]
        assert partition_of(broker).log.end_offset == 0


async def test_a_partition_is_looked_up_before_acks_are_checked(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        response = await client.request(produce_request(a_batch(), topic="missing", acks=2), 9)

        assert error_codes(response) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


@pytest.mark.parametrize(
    ("topic", "index"),
    [("nowhere", 0), ("t", 2), ("t", -1), ("t", 2**31 - 1), ("", 0), ("__cluster_metadata", 0)],
)
async def test_an_unknown_partition_is_refused(tmp_path, topic, index):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        response = await client.request(
            produce_request(a_batch(), topic=topic, partition=index), NEWEST
        )

        assert error_codes(response) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert produce_results(response)[0].index == index
        assert produce_results(response)[0].base_offset == -1
        assert produce_results(response)[0].log_start_offset == -1


GOOD = a_batch(3)
REFUSED = {
    "null": (None, 87),
    "empty": (b"", 87),
    "one byte": (b"\0", 87),
    "a header without its last byte": (bytes(60), 87),
    "zeros": (bytes(100), 87),
    "noise behind the head of a batch": (GOOD[:23] + Random(1).randbytes(len(GOOD) - 23), 2),
    "magic 0": (flipped(GOOD, 16)[:16] + b"\0" + GOOD[17:], 87),
    "magic 1": (GOOD[:16] + b"\1" + GOOD[17:], 87),
    "magic 3": (GOOD[:16] + b"\3" + GOOD[17:], 87),
    "a wrong CRC": (flipped(GOOD, 18), 2),
    "a flipped bit in the records": (flipped(GOOD, len(GOOD) - 2), 2),
    "cut short": (GOOD[:-1], 2),
    "a length that is negative": (GOOD[:8] + struct.pack(">i", -1) + GOOD[12:], 2),
    "a length that is too large": (GOOD[:8] + struct.pack(">i", 2**31 - 1) + GOOD[12:], 2),
    "a byte behind it": (GOOD + b"\0", 87),
    "two batches": (GOOD + GOOD, 87),
    "a control batch": (a_batch(control=True), 87),
    "a delete horizon": (a_batch(delete_horizon=NOW), 87),
    "a transactional batch": (a_batch(transactional=True, producer_id=1, producer_epoch=0), 53),
    "a codec that there is not": (with_attributes(GOOD, 7), 76),
    "fewer records than offsets": (a_batch(3, last_offset=5), 87),
    "no record": (build_batch([], base_offset=0, last_offset=0), 87),
    "a producer without a sequence": (a_batch(producer_id=5, producer_epoch=0), 87),
    "garbage with a valid CRC": (raw_batch(b"garbage! garbage!"), 87),
    "fewer records than it declares": (raw_batch(raw_record(), 2), 87),
    "more records than it declares": (raw_batch(raw_record() + raw_record(0, 1), 1), 87),
    "offset deltas with a gap": (raw_batch(raw_record() + raw_record(0, 5), 2), 87),
    "garbage after a record": (raw_batch(raw_record(0, 0, b"k", bytes(300_000)) + b"garbage"), 87),
    "log append time": (with_attributes(GOOD, 8), 32),
    "a timestamp beyond 64 bits": (raw_batch(raw_record(2**63 - 1)), 32),
    **{
        f"garbage in {codec.name}": (raw_batch(payload, codec=codec), 87)
        for codec in list(Compression)[1:]
        for payload in (b"garbage! garbage!", compressed(codec, b"garbage! garbage!"))
    },
}


@pytest.mark.parametrize("name", REFUSED)
async def test_an_invalid_batch_is_refused_and_other_partitions_are_appended(tmp_path, name):
    records, code = REFUSED[name]
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        response = await client.request(produce_request(records, GOOD), NEWEST)

        assert error_codes(response) == [code, 0]
        assert produce_results(response)[0].base_offset == -1
        assert produce_results(response)[0].error_message
        assert partition_of(broker, "t", 0).log.end_offset == 0
        assert partition_of(broker, "t", 1).log.end_offset == 3


@pytest.mark.parametrize(("version", "code"), [(3, 76), (6, 76), (7, 0), (11, 0)])
async def test_zstd_requires_version_7(tmp_path, version, code):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        batch = a_batch(compression=Compression.ZSTD)

        assert error_codes(await client.request(produce_request(batch), version)) == [code]


async def test_a_batch_larger_than_max_message_bytes_is_refused(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        limit = len(a_batch(value=bytes(1000)))
        await add_topic(broker, "small", max_message_bytes=str(limit))

        at, over = [
            await client.request(produce_request(a_batch(value=bytes(size)), topic="small"), NEWEST)
            for size in (1000, 1001)
        ]

        assert (error_codes(at), error_codes(over)) == ([0], [ErrorCode.MESSAGE_TOO_LARGE])


async def test_a_batch_larger_than_a_segment_is_refused(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await add_topic(broker, "short", segment_bytes="1024")

        response = await client.request(
            produce_request(a_batch(value=bytes(1024)), topic="short"), NEWEST
        )

        assert error_codes(response) == [ErrorCode.MESSAGE_TOO_LARGE]


async def test_a_timestamp_outside_the_allowed_range_is_refused(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await add_topic(broker, "punctual", message_timestamp_before_max_ms="1000")
        now = int(time.time() * 1000)

        times = [now, now - 60_000, now + 7_200_000]
        answers = [
            error_codes(
                await client.request(
                    produce_request(a_batch(time=moment), topic="punctual"), NEWEST
                )
            )
            for moment in times
        ]

        assert answers == [[0], [ErrorCode.INVALID_TIMESTAMP], [ErrorCode.INVALID_TIMESTAMP]]


@pytest.mark.parametrize("codec", list(Compression), ids=lambda codec: codec.name)
async def test_a_compacted_topic_names_every_record_without_a_key(tmp_path, codec):
    rows = [Record(n, NOW, None if n in (0, 2, 3) else b"key", b"value") for n in range(5)]
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await add_topic(broker, "compacted", cleanup_policy="compact")
        without_key = produce_request(build_batch(rows, compression=codec), topic="compacted")

        refused = produce_results(await client.request(without_key, NEWEST))[0]
        accepted = await client.request(
            produce_request(a_batch(4, compression=codec), topic="compacted"), NEWEST
        )

        assert refused.error_code == ErrorCode.INVALID_RECORD
        assert [error.batch_index for error in refused.record_errors] == [0, 2, 3]
        assert all(error.batch_index_error_message for error in refused.record_errors)
        assert refused.error_message
        assert error_codes(accepted) == [0]
        assert broker.metrics.rejected_batches == {"INVALID_RECORD": 1}


async def test_every_timestamp_out_of_range_is_named(tmp_path):
    now = int(time.time() * 1000)
    rows = [Record(n, now + (n % 2) * 7_200_000, b"key", b"value") for n in range(4)]
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        refused = produce_results(await client.request(produce_request(build_batch(rows)), NEWEST))

        assert refused[0].error_code == ErrorCode.INVALID_TIMESTAMP
        assert [error.batch_index for error in refused[0].record_errors] == [1, 3]


async def test_records_are_not_validated_if_that_is_switched_off(tmp_path):
    garbage = raw_batch(b"garbage! garbage!", codec=Compression.ZSTD)
    async with (
        a_broker(tmp_path, broker_validate_records=False) as broker,
        connect(broker) as client,
    ):
        await add_topic(broker, "compacted", cleanup_policy="compact")
        batches = (garbage, a_batch(time=int(time.time() * 1000) + 7_200_000), a_batch())
        codes = [
            error_codes(await client.request(produce_request(batch, topic="compacted"), NEWEST))
            for batch in batches
        ]

        assert codes == [[0], [ErrorCode.INVALID_TIMESTAMP], [0]]
        assert partition_of(broker, "compacted").log.validated_from is None


# Validation in threads.


def all_kinds_of_batches():
    """Yield batches that are validated at once, in a thread, and as large ones."""
    for number in range(4):
        yield a_batch(value=b"small %d" % number)
        yield a_batch(value=b"compressed %d" % number, compression=Compression.GZIP)
        yield a_batch(value=bytes(1_200_000))
        yield a_batch(value=bytes(9 * 1024 * 1024), compression=Compression.ZSTD)


async def test_pipelined_batches_are_appended_in_order_wherever_they_are_validated(tmp_path):
    batches = list(all_kinds_of_batches())
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await add_topic(broker, "large", max_message_bytes="2000000")
        for batch in batches:
            client.send(produce_request(batch, topic="large"), NEWEST)
        client.send(fetch_request(0, topic="large"), 12)

        responses = [await client.response() for _ in batches]
        end = fetched_partitions(await client.response())[0].high_watermark

        assert [error_codes(response) for response in responses] == [[0]] * len(batches)
        offsets = [produce_results(response)[0].base_offset for response in responses]
        assert offsets == list(range(len(batches)))
        assert end == len(batches)


async def test_idempotent_batches_stay_in_sequence_wherever_they_are_validated(tmp_path):
    kinds = ({}, {"compression": Compression.LZ4}, {"value": bytes(1_200_000)})
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await add_topic(broker, "large", max_message_bytes="2000000")
        for sequence in range(30):
            batch = numbered(sequence, **kinds[sequence % 3])
            client.send(produce_request(batch, topic="large", acks=-1), NEWEST)

        codes = [error_codes(await client.response()) for _ in range(30)]

        assert codes == [[0]] * 30


async def test_a_frame_begun_when_a_batch_has_just_been_validated_is_handled(tmp_path):
    """The task of the first request is done, and its response still waits for the fsync."""
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await add_topic(broker, "large", max_message_bytes="2000000")
        batches = [numbered(0, compression=Compression.LZ4), numbered(1, value=bytes(1_200_000))]
        requests = [produce_request(batch, topic="large", acks=-1) for batch in batches]
        release = threading.Event()
        broker.batch_workers._small.submit(release.wait, 10)
        broker.batch_workers._small.submit(release.wait, 10)
        with hanging_fsync(broker):
            client.send(requests[0], NEWEST)
            await eventually(lambda: broker.batch_workers.queued_bytes)
            (connection,) = broker.server._connections
            in_flight = connection._pipeline.in_flight
            release.set()
            while not in_flight[0].future.done():
                await asyncio.sleep(0)

            frame = b"".join(encode_request(requests[1], NEWEST, 2, "wire"))
            begun = receive(connection, frame, 100_000)
            await asyncio.sleep(0)  # now the first request waits for the fsync
            while begun < len(frame):
                begun += receive(connection, frame[begun:])

        assert error_codes(await client.response()) == [0]
        _, second = decode_response(ProduceResponse, NEWEST, await client.frame())
        assert error_codes(second) == [0]


def receive(connection, data, max_bytes=None):
    """Let a connection of the broker read some bytes at once; return how many."""
    buffer = connection.get_buffer(-1)
    count = min(len(buffer), len(data), max_bytes or len(data))
    buffer[:count] = data[:count]
    connection.buffer_updated(count)
    return count


async def test_a_topic_may_be_deleted_while_a_batch_for_it_is_validated(tmp_path):
    async with a_broker(tmp_path, {"t": 1, "gone": 1}) as broker, connect(broker) as client:
        release = threading.Event()
        broker.batch_workers._small.submit(release.wait, 10)
        broker.batch_workers._small.submit(release.wait, 10)
        batch = a_batch(compression=Compression.ZSTD)
        client.send(produce_request(batch, topic="gone"), NEWEST)
        await eventually(lambda: broker.batch_workers.queued_bytes == len(batch))

        await broker.controller.delete_topic(broker.topics.image.topics["gone"])
        release.set()

        assert error_codes(await client.response()) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert broker.batch_workers.queued_bytes == 0


async def test_requests_that_wait_for_validation_are_limited(tmp_path):
    async with (
        a_broker(tmp_path, queued_max_request_bytes=1024, socket_request_max_bytes=1024) as broker,
        connect(broker) as first,
        connect(broker) as second,
    ):
        release = threading.Event()
        broker.batch_workers._small.submit(release.wait, 10)
        broker.batch_workers._small.submit(release.wait, 10)
        batch = a_batch(value=Random(1).randbytes(600), compression=Compression.ZSTD)
        first.send(produce_request(batch), NEWEST)
        await eventually(lambda: broker.batch_workers.queued_bytes > 0)

        refused = await second.request(produce_request(batch), NEWEST)
        release.set()

        assert error_codes(refused) == [ErrorCode.REQUEST_TIMED_OUT]
        assert error_codes(await first.response()) == [0]
        assert error_codes(await second.request(produce_request(batch), NEWEST)) == [0]


async def test_large_batches_that_wait_for_decompression_are_limited(tmp_path):
    batch = a_batch(value=bytes(9 * 1024 * 1024), compression=Compression.ZSTD)
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(a_broker(tmp_path))
        release = threading.Event()
        broker.batch_workers._large.submit(release.wait, 10)
        clients = [await stack.enter_async_context(connect(broker)) for _ in range(9)]
        for client in clients[:8]:
            client.send(produce_request(batch), NEWEST)
        await eventually(lambda: broker.batch_workers.large_batches == 8)

        refused = await clients[8].request(produce_request(batch), NEWEST)
        release.set()

        assert error_codes(refused) == [ErrorCode.REQUEST_TIMED_OUT]
        assert [error_codes(await client.response()) for client in clients[:8]] == [[0]] * 8


async def test_a_batch_above_the_limit_after_decompression_is_refused(tmp_path):
    async with (
        a_broker(tmp_path, broker_max_decompressed_bytes=100_000) as broker,
        connect(broker) as client,
    ):
        codes = [
            error_codes(
                await client.request(
                    produce_request(a_batch(value=bytes(size), compression=Compression.GZIP)),
                    NEWEST,
                )
            )
            for size in (90_000, 110_000)
        ]

        assert codes == [[0], [ErrorCode.INVALID_RECORD]]


async def test_record_errors_and_messages_need_version_8(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await add_topic(broker, "compacted", cleanup_policy="compact")
        keyless = build_batch([Record(0, NOW, None, b"value")])

        refused = produce_results(
            await client.request(produce_request(keyless, topic="compacted"), 7)
        )[0]

        assert refused.error_code == ErrorCode.INVALID_RECORD
        assert not refused.record_errors
        assert refused.error_message is None


# Idempotent producers.


def numbered(sequence, count=1, epoch=0, **more):
    return a_batch(count, producer_id=7, producer_epoch=epoch, base_sequence=sequence, **more)


async def test_a_duplicate_batch_returns_the_original_offset(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        for sequence in range(0, 10, 2):
            await client.request(produce_request(numbered(sequence, 2), acks=-1), NEWEST)

        again = [
            await client.request(produce_request(numbered(sequence, 2), acks=-1), NEWEST)
            for sequence in range(0, 10, 2)
        ]

        assert [(r.error_code, r.base_offset) for a in again for r in produce_results(a)] == [
            (0, 0),
            (0, 2),
            (0, 4),
            (0, 6),
            (0, 8),
        ]
        assert partition_of(broker).log.end_offset == 10


async def test_a_sequence_gap_and_a_stale_epoch_are_refused(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        answers = [
            error_codes(
                await client.request(produce_request(numbered(sequence, epoch=epoch)), NEWEST)
            )
            for sequence, epoch in [(0, 1), (2, 1), (1, 1), (0, 0), (5, 2), (0, 2)]
        ]

        out_of_order = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        stale = ErrorCode.INVALID_PRODUCER_EPOCH
        assert answers == [[0], [out_of_order], [0], [stale], [out_of_order], [0]]
        assert partition_of(broker).log.end_offset == 3


async def test_requests_in_flight_are_appended_in_order(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        for sequence in range(40):
            client.send(produce_request(numbered(sequence), acks=-1), NEWEST)

        answers = [produce_results(await client.response())[0] for _ in range(40)]

        assert [(r.error_code, r.base_offset) for r in answers] == [(0, n) for n in range(40)]


# Acks and fsync.


class HangingLog:
    """A log whose fsync hangs until it is released."""

    def __init__(self, gate):
        self.gate = gate
        self.entered = threading.Event()

    def flush(self):
        self.entered.set()
        assert self.gate.wait(20)
        return 0


@contextmanager
def hanging_fsync(broker):
    """Block all flusher threads of a broker, as a hanging device would."""
    gate = threading.Event()
    flusher = broker.logs.flusher
    try:
        # Only of this broker: the shared broker of other tests may run in the same process.
        for _thread in flusher._threads:
            stuck = HangingLog(gate)
            flusher.flush(stuck)
            assert stuck.entered.wait(20)
        yield gate.set
    finally:
        gate.set()


@pytest.mark.parametrize(
    ("durability", "acks", "waits_for_fsync"),
    [
        ("page-cache", 1, False),
        ("page-cache", -1, False),
        ("acks", 1, False),
        ("acks", -1, True),
        ("fsync", 1, True),
        ("fsync", -1, True),
    ],
)
async def test_acks_wait_for_fsync_according_to_durability(
    tmp_path, durability, acks, waits_for_fsync
):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await add_topic(broker, "d", durability=durability)
        with hanging_fsync(broker) as free:
            client.send(produce_request(a_batch(), topic="d", acks=acks), NEWEST)

            if waits_for_fsync:
                assert await client.receives_nothing()
                free()
            response = await client.response()

        assert [(r.error_code, r.base_offset) for r in produce_results(response)] == [(0, 0)]
        flushed = partition_of(broker, "d").log.recovery_point
        assert flushed == (1 if waits_for_fsync else 0)


async def test_unflushed_records_of_an_fsync_topic_are_not_visible(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await add_topic(broker, "safe", durability="fsync")
        await client.request(produce_request(a_batch(2), topic="safe"), NEWEST)
        async with connect(broker) as consumer:
            with hanging_fsync(broker) as free:
                client.send(produce_request(a_batch(), topic="safe"), NEWEST)
                await eventually(lambda: partition_of(broker, "safe").log.end_offset == 3)

                early = fetched_partitions(
                    await consumer.request(fetch_request(0, topic="safe"), 12)
                )[0]
                consumer.send(fetch_request(2, topic="safe", max_wait_ms=9000), 12)
                assert await consumer.receives_nothing()
                free()
                late = fetched_partitions(await consumer.response())[0]

        assert (offsets_of(early), early.high_watermark, early.last_stable_offset) == ([0, 1], 2, 2)
        assert (offsets_of(late), late.high_watermark, late.last_stable_offset) == ([2], 3, 3)


async def test_records_of_other_topics_are_visible_before_fsync(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        with hanging_fsync(broker):
            client.send(produce_request(a_batch(), acks=-1), NEWEST)
            async with connect(broker) as consumer:
                data = fetched_partitions(
                    await consumer.request(fetch_request(0, max_wait_ms=5000), 12)
                )[0]

        assert offsets_of(data) == [0]


async def test_a_slow_fsync_times_out_and_the_record_stays(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await add_topic(broker, "quick", durability="page-cache")
        with hanging_fsync(broker):
            request = ProduceRequest(
                acks=-1,
                timeout_ms=50,
                topic_data=[
                    TopicProduceData(
                        name=name,
                        partition_data=[PartitionProduceData(index=0, records=a_batch())],
                    )
                    for name in ("quick", "t", "nowhere")
                ],
            )

            response = await client.request(request, NEWEST)

            assert error_codes(response) == [0, ErrorCode.REQUEST_TIMED_OUT, 3]
            assert [r.base_offset for r in produce_results(response)] == [0, -1, -1]
        assert partition_of(broker).log.end_offset == 1


async def test_a_duplicate_batch_waits_for_fsync_too(tmp_path):
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        with hanging_fsync(broker) as free:
            client.send(produce_request(numbered(0), acks=-1), NEWEST)
            client.send(produce_request(numbered(0), acks=-1), NEWEST)
            assert await client.receives_nothing()
            free()

            answers = [produce_results(await client.response())[0] for _ in range(2)]

        assert [(r.error_code, r.base_offset) for r in answers] == [(0, 0), (0, 0)]


async def test_acks_0_leaves_no_timer(tmp_path):
    loop = asyncio.get_running_loop()
    async with a_broker(tmp_path) as broker, connect(broker) as client:
        await add_topic(broker, "safe", durability="fsync")
        request = produce_request(a_batch(), topic="safe", acks=0, timeout_ms=2**31 - 1)
        before = timers(loop)

        client.writer.write(b"".join(frames_of(request, times=50)))
        await eventually(lambda: partition_of(broker, "safe").log.recovery_point == 50)

        assert timers(loop) <= before + 5


def timers(loop):
    return sum(not handle.cancelled() for handle in loop._scheduled)


async def test_a_record_is_kept_when_its_producer_disconnects_before_fsync(tmp_path):
    async with a_broker(tmp_path) as broker:
        with hanging_fsync(broker) as free:
            async with connect(broker) as client:
                client.send(produce_request(a_batch(), acks=-1), NEWEST)
                await eventually(lambda: partition_of(broker).log.end_offset == 1)
            free()
        await eventually(lambda: partition_of(broker).log.recovery_point == 1)

        assert await is_serving(broker)
