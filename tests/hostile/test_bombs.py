"""Requests whose few bytes claim or become very many cost the broker little, and others nothing."""

import struct
import time
from contextlib import ExitStack

import pytest

from harness import logs
from harness.attack import MIB, create_topic, undisturbed, unharmed
from harness.bombs import (
    COMPACT_COUNTS,
    COUNTS,
    REFUSED_COUNT,
    ArrayFrames,
    a_batch,
    array_paths,
    bombs,
    header_of,
    is_numeric,
    produce_error_code,
    send_raw,
    smallest,
    uvarint,
)
from harness.daemon import Daemon, peak_mib
from harness.logs import NOW
from harness.raw_batches import raw_batch
from harness.wire import (
    BlockingWireClient,
    frame_of,
    framed,
    produce_request,
    produce_results,
)
from ottla.broker.requests.dispatch import SUPPORTED_APIS
from ottla.protocol.api.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.api.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from ottla.protocol.api.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.codec import encode_request
from ottla.protocol.compression import Compression, compress
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records import _varint as varint
from ottla.protocol.records import encode_records

#: The bombs take seconds. A stall of the event loop would take as long.
MAX_STALL_SECONDS = 0.5

FLEXIBLE_APIS = pytest.mark.parametrize(
    "api",
    [api for api in SUPPORTED_APIS.values() if api.versions.is_flexible(api.versions.last)],
    ids=lambda api: api.name,
)
APIS_WITH_ARRAYS = pytest.mark.parametrize(
    "api",
    [api for api in SUPPORTED_APIS.values() if any(array_paths(api.request, api.versions.last))],
    ids=lambda api: api.name,
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bombs")
    with Daemon(folder, "--set", "broker.max.partitions=200") as started:
        create_topic(started, "t")
        create_topic(started, "compacted", cleanup_policy="compact")
        yield started


# Counts.


@APIS_WITH_ARRAYS
def test_false_array_counts_in_every_api(broker, api):
    with unharmed(broker, growth_mib=16):
        for version in sorted({api.versions.first, api.versions.last}):
            for path in array_paths(api.request, version):
                array_frames = ArrayFrames(api, version, path)
                for count in COMPACT_COUNTS if array_frames.is_compact else COUNTS:
                    assert send_raw(broker, array_frames.counting(count, 5)) == b"", (version, path)


@APIS_WITH_ARRAYS
def test_huge_arrays_of_small_elements_in_every_api(broker, api):
    """An API may accept or refuse thousands of elements; far more close the connection."""
    with unharmed(broker, growth_mib=48), undisturbed(broker):
        for version in sorted({api.versions.first, api.versions.last}):
            for path in array_paths(api.request, version):
                array_frames = ArrayFrames(api, version, path)
                send_raw(broker, array_frames.of(3000))
                # Larger elements cost the client about as much as the broker.
                if array_frames.element_size <= 8 and not is_numeric(api.request, path):
                    assert send_raw(broker, array_frames.of(REFUSED_COUNT)) == b"", (version, path)


# Tagged fields.


@FLEXIBLE_APIS
def test_bombs_of_tagged_fields(broker, api):
    version = api.versions.last
    frame = b"".join(encode_request(smallest(api.request, version), version, 1, None))
    body = frame[4 + len(header_of(api, version)) + 1 :]
    assert body.endswith(b"\0")

    with unharmed(broker, growth_mib=16):
        for count, pairs in (
            (b"\xff\xff\xff\xff\x0f", 0),
            (b"\xff\xff\xff\xff\x0f", 1000),
            (b"\x80" * 10, 0),
            (uvarint(REFUSED_COUNT), REFUSED_COUNT),
        ):
            bomb = count + b"\x64\x00" * pairs
            assert send_raw(broker, framed(header_of(api, version) + bomb + body)) == b""
            assert (
                send_raw(broker, framed(header_of(api, version) + b"\0" + body[:-1] + bomb)) == b""
            )
        # A tag longer than the frame, and one with the longest varint.
        for tag in (b"\x01\x64\xff\xff\xff\xff\x0f", b"\x01\xff\xff\xff\xff\xff\x00"):
            assert send_raw(broker, framed(header_of(api, version) + tag + body)) == b""


def test_a_few_unknown_tagged_fields_are_accepted(broker):
    api = SUPPORTED_APIS[18]
    tags = uvarint(3) + b"\x64\x01x" + b"\x65\x00" + b"\x66\x02yz"
    body = b"\x02a\x021" + tags

    response = send_raw(broker, framed(header_of(api, 3) + tags + body))

    assert response[4:8] == struct.pack(">i", 1)


# Partitions.


def test_more_partitions_than_the_broker_allows_close_the_connection(broker):
    partitions = [FetchPartition(partition_max_bytes=1)] * 5_000
    fetch = FetchRequest(topics=[FetchTopic(topic="t", partitions=partitions)])
    data = [PartitionProduceData(records=b"")] * 10_000
    produce = ProduceRequest(
        acks=1, topic_data=[TopicProduceData(name=name, partition_data=data) for name in "tu"]
    )

    with unharmed(broker, growth_mib=8):
        for request, version in ((fetch, 4), (fetch, 12), (produce, 3), (produce, 11)):
            assert send_raw(broker, frame_of(request, version)) == b""


# Compression.


@pytest.mark.parametrize("topic", ["t", "compacted"])
def test_compression_bombs_are_rejected(broker, topic):
    before = peak_mib(broker)

    with unharmed(broker, growth_mib=48), undisturbed(broker):
        for name, codec, payload in bombs():
            batch = a_batch(codec, payload)
            assert len(batch) < MIB, name
            with BlockingWireClient(broker) as connection:
                code = produce_error_code(connection, topic, batch)
            assert code == ErrorCode.INVALID_RECORD, (name, code)

    # The limit on decompression once, plus overhead.
    assert peak_mib(broker) - before < 128 + 64


def test_very_many_records_for_a_compacted_topic(broker):
    """Records of seven bytes, which compress by a factor of a thousand."""
    before = peak_mib(broker)

    with (
        unharmed(broker, growth_mib=48),
        undisturbed(broker),
        BlockingWireClient(broker) as connection,
    ):
        for key, count, expected in (
            (b"", 2_000_000, ErrorCode.INVALID_RECORD),
            (b"", 500_000, ErrorCode.NONE),
            (None, 900_000, ErrorCode.INVALID_RECORD),
        ):
            records = encode_records([(n, 0, key, b"", ()) for n in range(count)], 0, 0)
            payload = bytes(compress(Compression.ZSTD, records))
            batch = a_batch(Compression.ZSTD, payload, count)
            assert produce_error_code(connection, "compacted", batch) == expected
        # A batch that only claims to have them.
        batch = a_batch(Compression.NONE, b"\0", 2**31 - 1)
        assert produce_error_code(connection, "t", batch) == ErrorCode.INVALID_RECORD

    assert peak_mib(broker) - before < 128 + 64


def test_very_many_records_without_keys_are_named_up_to_a_limit(broker):
    records = encode_records([(n, 0, None, b"", ()) for n in range(100_000)], 0, 0)
    batch = a_batch(Compression.NONE, records, 100_000)
    assert len(batch) < MIB

    with undisturbed(broker), BlockingWireClient(broker) as connection:
        response = connection.request(produce_request(batch, topic="compacted"), 9)

    (result,) = produce_results(response)
    assert result.error_code == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in result.record_errors] == list(range(10_000))
    assert "100000 records" in result.error_message


def test_large_batches_do_not_hold_up_small_ones(broker):
    """Ten clients send batches of 4 KB that decompress to 120 MiB, and are valid."""
    value = varint(120 * MIB) + bytes(120 * MIB)
    body = b"\0\0\0\x02k" + value + b"\0"
    payload = bytes(compress(Compression.ZSTD, varint(len(body)) + body))
    bomb = frame_of(produce_request(a_batch(Compression.ZSTD, payload, 1)), 9)
    small = logs.a_batch(compression=Compression.ZSTD)

    with unharmed(broker, growth_mib=48), ExitStack() as stack:
        hostile = [stack.enter_context(BlockingWireClient(broker)) for _ in range(10)]
        for connection in hostile:
            connection.send(bomb * 3)
        bystander = stack.enter_context(BlockingWireClient(broker))
        stack.enter_context(undisturbed(broker))
        longest = 0.0
        for _ in range(20):
            started = time.perf_counter()
            assert produce_error_code(bystander, "t", small) == 0
            longest = max(longest, time.perf_counter() - started)
        for connection in hostile:
            for _ in range(3):
                assert connection.frame()

    assert longest < MAX_STALL_SECONDS


def test_a_lookup_in_batches_with_false_headers_does_not_hold_up_others(tmp_path):
    """30 batches of 4 KB that decompress to 120 MiB, and promise timestamps they do not have."""
    value = varint(120 * MIB) + bytes(120 * MIB)
    body = b"\0\0\0\x02k" + value + b"\0"
    payload = bytes(compress(Compression.ZSTD, varint(len(body)) + body))
    bomb = raw_batch(payload, codec=Compression.ZSTD, base_timestamp=5, max_timestamp=NOW)

    with Daemon(tmp_path, "--set", "broker.validate.records=false") as broker:
        create_topic(broker, "t")
        with BlockingWireClient(broker) as connection:
            for _ in range(30):
                assert produce_error_code(connection, "t", bytes(bomb)) == 0
        with (
            unharmed(broker, growth_mib=48),
            undisturbed(broker),
            BlockingWireClient(broker) as connection,
        ):
            partition = ListOffsetsPartition(partition_index=0, timestamp=NOW - 1)
            topic = ListOffsetsTopic(name="t", partitions=[partition])
            response = connection.request(ListOffsetsRequest(topics=[topic]), 7)

    (result,) = response.topics[0].partitions
    # It stops after 16 of them, and returns the next batch that promises the timestamp.
    assert (result.error_code, result.offset) == (0, 16)
