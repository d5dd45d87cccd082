"""Requests whose few bytes claim, or decompress to, very many."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import cramjam
from crc32c import crc32c

from harness.attack import MIB
from harness.daemon import Daemon
from harness.wire import BlockingWireClient, frame_of, framed
from ottla.protocol.api.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.compression import Compression, compress
from ottla.protocol.schema import Array, Message, Struct

#: More elements than any request may have.
REFUSED_COUNT = 150_000
COUNTS = (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xfe", b"\x80\x00\x00\x00", b"\x10\x00\x00\x00")
COMPACT_COUNTS = (b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x7f", b"\x80" * 9 + b"\x01")


def array_paths(message: type[Message], version: int) -> Iterator[tuple[str, ...]]:
    """Yield every array of a message, as the path of fields that leads to it."""
    for name, field in message.fields.items():
        if not field.exists_in(version):
            continue
        inner = field.type
        if isinstance(inner, Array):
            yield (name,)
            inner = inner.element
        if isinstance(inner, Struct):
            for path in array_paths(inner.message, version):
                yield (name, *path)


def smallest(
    message: type[Message], version: int, path: tuple[str, ...] = (), count: int = 0
) -> Message:
    """Return a message of zeros, with `count` elements in the array at the end of the path."""
    values: dict[str, Any] = {}
    for name, field in message.fields.items():
        if not field.exists_in(version):
            continue
        inner = field.type.element if isinstance(field.type, Array) else field.type
        if path[:1] == (name,):
            is_last = len(path) == 1
            element = (
                smallest(inner.message, version, path[1:], count)
                if isinstance(inner, Struct)
                else inner.zero
            )
            if isinstance(field.type, Array):
                values[name] = [element] * (count if is_last else 1)
            else:
                values[name] = element
        elif field.default is None and not field.nullable_in(version):
            values[name] = field.type.zero
    return message(**values)


class ArrayFrames:
    """Builds frames of a request with any number of elements in one of its arrays."""

    def __init__(self, api: Any, version: int, path: tuple[str, ...]) -> None:
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


def send_raw(broker: Daemon, frame: bytes) -> bytes:
    """Send a frame; return everything received until the connection is closed."""
    with BlockingWireClient(broker) as connection:
        connection.send(frame)
        return connection.read_to_end()


def is_numeric(message: type[Message], path: tuple[str, ...]) -> bool:
    """Whether an array is of numbers, which cost no more memory than their bytes."""
    kind = message.fields[path[0]].type
    inner = kind.element if isinstance(kind, Array) else kind
    if len(path) > 1:
        return is_numeric(inner.message, path[1:])
    return isinstance(inner.zero, int)


def header_of(api: Any, version: int) -> bytes:
    return struct.pack(">hhih", api.key, version, 1, -1)


def a_batch(codec: Compression, payload: bytes, count: int = 10) -> bytes:
    """Return a batch with a valid header and CRC around an arbitrary payload."""
    time = 1_700_000_000_000
    checked = struct.pack(">hiqqqhii", codec, count - 1, time, time, -1, -1, -1, count)
    head = struct.pack(">qiib", 0, 49 + len(payload), -1, 2)
    return head + struct.pack(">I", crc32c(payload, crc32c(checked))) + checked + payload


def raw_snappy(data: bytes) -> bytes:
    return bytes(memoryview(cramjam.snappy.compress_raw(data)))


def bombs() -> Iterator[tuple[str, Compression, bytes]]:
    """Yield compressed zeros, above and just below the size limit, and false sizes."""
    below, over = bytes(120 * MIB), bytes(140 * MIB)
    for zeros, how in ((below, "below the limit"), (over, "over the limit")):
        yield f"gzip {how}", Compression.GZIP, bytes(compress(Compression.GZIP, zeros, 1))
        yield f"lz4 {how}", Compression.LZ4, bytes(compress(Compression.LZ4, zeros))
        yield f"zstd {how}", Compression.ZSTD, bytes(compress(Compression.ZSTD, zeros, 1))
    yield "snappy", Compression.SNAPPY, raw_snappy(bytes(20 * MIB))
    xerial = bytes(compress(Compression.SNAPPY, bytes(8 * MIB)))
    yield "snappy in frames", Compression.SNAPPY, xerial
    yield "snappy with a false size", Compression.SNAPPY, b"\xff\xff\xff\xff\x0f" + bytes(100)
    zstd_head = bytes.fromhex("28b52ffd e0") + struct.pack("<Q", 2**60)
    yield "zstd with a false size", Compression.ZSTD, zstd_head + b"\x01\x00\x00"
    # A window of 2³¹ bytes, which a decoder would have to allocate.
    yield "zstd with a large window", Compression.ZSTD, bytes.fromhex("28b52ffd 00 a8 010000")
    yield (
        "gzip in gzip",
        Compression.GZIP,
        bytes(compress(Compression.GZIP, compress(Compression.GZIP, bytes(40 * MIB), 1), 1)),
    )


def produce_error_code(connection: BlockingWireClient, topic: str, batch: bytes) -> int:
    request = ProduceRequest(
        acks=1,
        timeout_ms=1000,
        topic_data=[
            TopicProduceData(
                name=topic, partition_data=[PartitionProduceData(index=0, records=batch)]
            )
        ],
    )
    return connection.request(request, 9).responses[0].partition_responses[0].error_code
