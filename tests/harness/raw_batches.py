"""Batches with any header and payload and a valid CRC: what a client may send, valid or not."""

from __future__ import annotations

import struct

from crc32c import crc32c

from harness.logs import NOW
from ottla.protocol.compression import Compression, compress
from ottla.protocol.records import _varint as varint


def raw_record(
    timestamp_delta: int = 0,
    offset_delta: int = 0,
    key: bytes | None = b"key",
    value: bytes | None = b"value",
) -> bytes:
    """Encode a record with any deltas."""
    fields = [varint(-1) if blob is None else varint(len(blob)) + blob for blob in (key, value)]
    body = b"\0" + varint(timestamp_delta) + varint(offset_delta) + b"".join(fields) + b"\0"
    return varint(len(body)) + body


def raw_batch(
    payload: bytes,
    count: int = 1,
    *,
    codec: Compression = Compression.NONE,
    base_timestamp: int = NOW,
    max_timestamp: int = NOW,
    attributes: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytearray:
    """Build a batch of a payload that is already compressed."""
    fields = (codec | attributes, count - 1, base_timestamp, max_timestamp, *producer, count)
    covered = struct.pack(">hiqqqhii", *fields) + payload
    head = struct.pack(">qiibI", 0, 9 + len(covered), -1, 2, crc32c(covered))
    return bytearray(head + covered)


def compressed(codec: Compression, payload: bytes) -> bytes:
    return bytes(compress(codec, payload))
