"""Requests whose few bytes claim or become very many cost the broker little, and others nothing."""

import struct

import pytest

from harness.attack import MIB, LatencyProbe, create_topic, unharmed
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
from harness.wire import BlockingWireClient, frame_of, framed
from ottla.broker.requests.dispatch import SUPPORTED_APIS
from ottla.protocol.api.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.api.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.codec import encode_request
from ottla.protocol.compression import Compression, compress
from ottla.protocol.errors import ErrorCode

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
    with unharmed(broker, growth_mib=48), LatencyProbe(broker):
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


def test_compression_bombs_for_a_compacted_topic(broker):
    """Only batches for compacted topics are decompressed by the broker."""
    before = peak_mib(broker)

    with unharmed(broker, growth_mib=48), LatencyProbe(broker):
        for name, codec, payload in bombs():
            batch = a_batch(codec, payload)
            assert len(batch) < MIB, name
            with BlockingWireClient(broker) as connection:
                code = produce_error_code(connection, "compacted", batch)
            assert code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD), (name, code)

    # The decompressed limit twice, in the codec and as bytes, plus overhead.
    assert peak_mib(broker) - before < 2 * 128 + 64


def test_very_many_records_for_a_compacted_topic(broker):
    """Records of seven bytes, which compress by a factor of a thousand."""
    record = bytes.fromhex("0c 00 00 00 00 00 00")  # Empty key and value.
    before = peak_mib(broker)

    with unharmed(broker, growth_mib=48), BlockingWireClient(broker) as connection:
        for count, expected in (
            (13_000_000, ErrorCode.INVALID_RECORD),
            (500_000, ErrorCode.NONE),
        ):
            payload = bytes(compress(Compression.ZSTD, record * count))
            batch = a_batch(Compression.ZSTD, payload, count)
            assert produce_error_code(connection, "compacted", batch) == expected
        # A batch that only claims to have them.
        batch = a_batch(Compression.NONE, b"\0", 2**31 - 1)
        assert produce_error_code(connection, "t", batch) == ErrorCode.INVALID_RECORD

    assert peak_mib(broker) - before < 128 + 64


def test_other_topics_store_compression_bombs_unchanged(broker):
    payload = bytes(compress(Compression.ZSTD, bytes(140 * MIB), 1))
    before = peak_mib(broker)

    with unharmed(broker, growth_mib=8), BlockingWireClient(broker) as connection:
        assert produce_error_code(connection, "t", a_batch(Compression.ZSTD, payload)) == 0

    assert peak_mib(broker) - before < 16
