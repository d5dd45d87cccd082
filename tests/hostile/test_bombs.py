"""Few bytes that promise, or become, very many: they cost the broker little, and others nothing."""

import struct
from collections.abc import Iterator

import cramjam
import pytest
from crc32c import crc32c

from daemon import Daemon
from hostile.attack import (
    MIB,
    Bystander,
    Socket,
    frame_of,
    framed,
    make_topic,
    peak_mib,
    unharmed,
)
from ottla.broker.dispatch import SERVED
from ottla.protocol.api.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.api.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.compression import Compression, compress
from ottla.protocol.errors import ErrorCode
from ottla.protocol.schema import Array, Message, Struct


def array_paths(message: type[Message], version: int) -> Iterator[tuple[str, ...]]:
    """Every array in a message, by the fields that lead to it."""
    for name, field in message.fields.items():
        if not field.exists_in(version):
            continue
        inner = field.kind
        if isinstance(inner, Array):
            yield (name,)
            inner = inner.element
        if isinstance(inner, Struct):
            for path in array_paths(inner.message, version):
                yield (name, *path)


FLEXIBLE_APIS = pytest.mark.parametrize(
    "api",
    [api for api in SERVED.values() if api.versions.is_flexible(api.versions.last)],
    ids=lambda api: api.name,
)
APIS_WITH_ARRAYS = pytest.mark.parametrize(
    "api",
    [api for api in SERVED.values() if any(array_paths(api.request, api.versions.last))],
    ids=lambda api: api.name,
)
#: Elements that a message may have for nothing are fewer than this.
REFUSED_COUNT = 150_000
COUNTS = (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xfe", b"\x80\x00\x00\x00", b"\x10\x00\x00\x00")
COMPACT_COUNTS = (b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x7f", b"\x80" * 9 + b"\x01")


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bombed")
    with Daemon(folder, "--set", "broker.max.partitions=200") as started:
        make_topic(started, "t")
        make_topic(started, "compacted", cleanup_policy="compact")
        yield started


# Counts.


def smallest(message: type[Message], version: int, path: tuple[str, ...] = (), count: int = 0):
    """A message of zeros, with so many elements in the array at the end of the path."""
    values = {}
    for name, field in message.fields.items():
        if not field.exists_in(version):
            continue
        inner = field.kind.element if isinstance(field.kind, Array) else field.kind
        if path[:1] == (name,):
            is_last = len(path) == 1
            element = (
                smallest(inner.message, version, path[1:], count)
                if isinstance(inner, Struct)
                else inner.zero
            )
            if isinstance(field.kind, Array):
                values[name] = [element] * (count if is_last else 1)
            else:
                values[name] = element
        elif field.default is None and not field.nullable_in(version):
            values[name] = field.kind.zero
    return message(**values)


class Crowd:
    """The bytes of a request around one of its arrays."""

    def __init__(self, api, version, path):
        none, one, two = (
            frame_of(smallest(api.request, version, path, count), version)[4:] for count in range(3)
        )
        differs = next(at for at, (a, b) in enumerate(zip(none, one, strict=False)) if a != b)
        self.is_compact = api.versions.is_flexible(version)
        self.element_size = len(two) - len(one)
        self._start = differs if self.is_compact else differs - 3
        end = differs + 1
        self._element = one[end : end + self.element_size]
        self._rest = one[end + self.element_size :]
        self._head = one[: self._start]

    def counting(self, count: bytes, elements: int) -> bytes:
        return framed(self._head + count + self._element * elements + self._rest)

    def of(self, elements: int) -> bytes:
        count = uvarint(elements + 1) if self.is_compact else struct.pack(">i", elements)
        return self.counting(count, elements)


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def ends(broker, frame) -> bytes:
    """Send a frame, and give all that comes of it."""
    with Socket(broker) as connection:
        connection.send(frame)
        return connection.rest()


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


def is_plain(message: type[Message], path: tuple[str, ...]) -> bool:
    """Whether an array is of numbers, which cost no more than their bytes."""
    kind = message.fields[path[0]].kind
    inner = kind.element if isinstance(kind, Array) else kind
    if len(path) > 1:
        return is_plain(inner.message, path[1:])
    return isinstance(inner.zero, int)


# Tags.


def head_of(api, version):
    return struct.pack(">hhih", api.key, version, 1, -1)


@FLEXIBLE_APIS
def test_bombs_of_tagged_fields(broker, api):
    version = api.versions.last
    body = frame_of(smallest(api.request, version), version)[4:]
    body = body[len(head_of(api, version)) + len("attack") + 1 :]
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
    api = SERVED[18]
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


def a_batch(codec: Compression, payload: bytes, count: int = 10) -> bytes:
    """A batch of whatever is said to be its records."""
    time = 1_700_000_000_000
    checked = struct.pack(">hiqqqhii", codec, count - 1, time, time, -1, -1, -1, count)
    head = struct.pack(">qiib", 0, 49 + len(payload), -1, 2)
    return head + struct.pack(">I", crc32c(payload, crc32c(checked))) + checked + payload


def raw_snappy(data: bytes) -> bytes:
    return bytes(memoryview(cramjam.snappy.compress_raw(data)))


def bombs() -> Iterator[tuple[str, Compression, bytes]]:
    """Zeros, over what a batch may become and just below it; and sizes that are lies."""
    below, over = bytes(120 * MIB), bytes(140 * MIB)
    for zeros, how in ((below, "below the limit"), (over, "over the limit")):
        yield f"gzip {how}", Compression.GZIP, bytes(compress(Compression.GZIP, zeros, 1))
        yield f"lz4 {how}", Compression.LZ4, bytes(compress(Compression.LZ4, zeros))
        yield f"zstd {how}", Compression.ZSTD, bytes(compress(Compression.ZSTD, zeros, 1))
    yield "snappy", Compression.SNAPPY, raw_snappy(bytes(20 * MIB))
    xerial = bytes(compress(Compression.SNAPPY, bytes(8 * MIB)))
    yield "snappy in frames", Compression.SNAPPY, xerial
    yield "snappy that lies", Compression.SNAPPY, b"\xff\xff\xff\xff\x0f" + bytes(100)
    zstd_head = bytes.fromhex("28b52ffd e0") + struct.pack("<Q", 2**60)
    yield "zstd that lies", Compression.ZSTD, zstd_head + b"\x01\x00\x00"
    # A window of 2³¹ bytes, which a decoder would have to keep.
    yield "zstd with a large window", Compression.ZSTD, bytes.fromhex("28b52ffd 00 a8 010000")
    yield (
        "gzip in gzip",
        Compression.GZIP,
        bytes(compress(Compression.GZIP, compress(Compression.GZIP, bytes(40 * MIB), 1), 1)),
    )


def test_compression_bombs_for_a_compacted_topic(broker):
    """The one kind of topic whose batches are looked into when they come."""
    before = peak_mib(broker)

    with unharmed(broker, growth_mib=48), Bystander(broker):
        for name, codec, payload in bombs():
            batch = a_batch(codec, payload)
            assert len(batch) < MIB, name
            with Socket(broker) as connection:
                code = produced(connection, "compacted", batch)
            assert code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD), (name, code)

    # What a batch may become, once in the codec's buffer and once as bytes; and some air.
    assert peak_mib(broker) - before < 2 * 128 + 64


def test_very_many_records_for_a_compacted_topic(broker):
    """Records of seven bytes, a thousandth of that when compressed."""
    record = bytes.fromhex("0c 00 00 00 00 00 00")  # a key and a value of no bytes
    before = peak_mib(broker)

    with unharmed(broker, growth_mib=48), Socket(broker) as connection:
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

    with unharmed(broker, growth_mib=8), Socket(broker) as connection:
        assert produced(connection, "t", a_batch(Compression.ZSTD, payload)) == 0

    assert peak_mib(broker) - before < 16


def produced(connection, topic, batch):
    request = ProduceRequest(
        acks=1,
        timeout_ms=1000,
        topic_data=[
            TopicProduceData(
                name=topic, partition_data=[PartitionProduceData(index=0, records=batch)]
            )
        ],
    )
    return connection.ask(request, 9).responses[0].partition_responses[0].error_code
