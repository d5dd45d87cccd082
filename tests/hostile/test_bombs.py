"""Few bytes that promise, or become, very many: they cost the broker little, and others nothing."""

import struct

import pytest

from harness.daemon import Daemon
from harness.wire import BlockingWireClient, frame_of, framed
from hostile.attack import MIB, Bystander, make_topic, peak_mib, unharmed
from hostile.bombs import (
    COMPACT_COUNTS,
    COUNTS,
    REFUSED_COUNT,
    Crowd,
    a_batch,
    array_paths,
    bombs,
    ends,
    head_of,
    is_plain,
    produced,
    smallest,
    uvarint,
)
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
    folder = tmp_path_factory.mktemp("bombed")
    with Daemon(folder, "--set", "broker.max.partitions=200") as started:
        make_topic(started, "t")
        make_topic(started, "compacted", cleanup_policy="compact")
        yield started


# Counts.


@APIS_WITH_ARRAYS
def test_false_counts_in_every_array_of_every_api(broker, api):
    with unharmed(broker, growth_mib=16):
        for version in sorted({api.versions.first, api.versions.last}):
            for path in array_paths(api.request, version):
                crowd = Crowd(api, version, path)
                for count in COMPACT_COUNTS if crowd.is_compact else COUNTS:
                    assert ends(broker, crowd.counting(count, 5)) == b"", (version, path)


@APIS_WITH_ARRAYS
def test_crowds_of_smallest_elements_in_every_array_of_every_api(broker, api):
    """Some thousands are answered or not, as their api likes; more than that do not come in."""
    with unharmed(broker, growth_mib=48), Bystander(broker):
        for version in sorted({api.versions.first, api.versions.last}):
            for path in array_paths(api.request, version):
                crowd = Crowd(api, version, path)
                ends(broker, crowd.of(3000))
                # Those with more bytes in each element have paid for them.
                if crowd.element_size <= 8 and not is_plain(api.request, path):
                    assert ends(broker, crowd.of(REFUSED_COUNT)) == b"", (version, path)


# Tags.


@FLEXIBLE_APIS
def test_bombs_of_tagged_fields(broker, api):
    version = api.versions.last
    frame = b"".join(encode_request(smallest(api.request, version), version, 1, None))
    body = frame[4 + len(head_of(api, version)) + 1 :]
    assert body.endswith(b"\0")

    with unharmed(broker, growth_mib=16):
        for count, pairs in (
            (b"\xff\xff\xff\xff\x0f", 0),
            (b"\xff\xff\xff\xff\x0f", 1000),
            (b"\x80" * 10, 0),
            (uvarint(REFUSED_COUNT), REFUSED_COUNT),
        ):
            bomb = count + b"\x64\x00" * pairs
            assert ends(broker, framed(head_of(api, version) + bomb + body)) == b""
            assert ends(broker, framed(head_of(api, version) + b"\0" + body[:-1] + bomb)) == b""
        # A tag of more bytes than there are, and one that is as long as can be.
        for tag in (b"\x01\x64\xff\xff\xff\xff\x0f", b"\x01\xff\xff\xff\xff\xff\x00"):
            assert ends(broker, framed(head_of(api, version) + tag + body)) == b""


def test_a_few_tags_that_nobody_knows_are_no_bomb(broker):
    api = SUPPORTED_APIS[18]
    tags = uvarint(3) + b"\x64\x01x" + b"\x65\x00" + b"\x66\x02yz"
    body = b"\x02a\x021" + tags

    answer = ends(broker, framed(head_of(api, 3) + tags + body))

    assert answer[4:8] == struct.pack(">i", 1)


# Partitions.


def test_more_partitions_than_there_can_be_end_the_connection(broker):
    wanted = [FetchPartition(partition_max_bytes=1)] * 5_000
    fetch = FetchRequest(topics=[FetchTopic(topic="t", partitions=wanted)])
    data = [PartitionProduceData(records=b"")] * 10_000
    produce = ProduceRequest(
        acks=1, topic_data=[TopicProduceData(name=name, partition_data=data) for name in "tu"]
    )

    with unharmed(broker, growth_mib=8):
        for request, version in ((fetch, 4), (fetch, 12), (produce, 3), (produce, 11)):
            assert ends(broker, frame_of(request, version)) == b""


# Compression.


def test_compression_bombs_for_a_compacted_topic(broker):
    """The one kind of topic whose batches are looked into when they come."""
    before = peak_mib(broker)

    with unharmed(broker, growth_mib=48), Bystander(broker):
        for name, codec, payload in bombs():
            batch = a_batch(codec, payload)
            assert len(batch) < MIB, name
            with BlockingWireClient(broker) as connection:
                code = produced(connection, "compacted", batch)
            assert code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD), (name, code)

    # What a batch may become, once in the codec's buffer and once as bytes; and some air.
    assert peak_mib(broker) - before < 2 * 128 + 64


def test_very_many_records_for_a_compacted_topic(broker):
    """Records of seven bytes, a thousandth of that when compressed."""
    record = bytes.fromhex("0c 00 00 00 00 00 00")  # a key and a value of no bytes
    before = peak_mib(broker)

    with unharmed(broker, growth_mib=48), BlockingWireClient(broker) as connection:
        for count, expected in (
            (13_000_000, ErrorCode.INVALID_RECORD),
            (500_000, ErrorCode.NONE),
        ):
            payload = bytes(compress(Compression.ZSTD, record * count))
            batch = a_batch(Compression.ZSTD, payload, count)
            assert produced(connection, "compacted", batch) == expected
        # And one that only claims to have them.
        batch = a_batch(Compression.NONE, b"\0", 2**31 - 1)
        assert produced(connection, "t", batch) == ErrorCode.INVALID_RECORD

    assert peak_mib(broker) - before < 128 + 64


def test_other_topics_store_bombs_as_they_came(broker):
    payload = bytes(compress(Compression.ZSTD, bytes(140 * MIB), 1))
    before = peak_mib(broker)

    with unharmed(broker, growth_mib=8), BlockingWireClient(broker) as connection:
        assert produced(connection, "t", a_batch(Compression.ZSTD, payload)) == 0

    assert peak_mib(broker) - before < 16
