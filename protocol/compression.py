"""The codecs of record batches: gzip, snappy, lz4 and zstd, as other people's clients write them.

Snappy comes in two forms. The Java client and most others put raw blocks into a frame of their own
("xerial"); librdkafka writes one raw block. Both are read; the frame is what we write:

    82 53 4e 41 50 50 59 00 | int32 version 1 | int32 compatible 1 | (int32 size, raw block) …

LZ4 is the standard frame, with independent blocks because the Java client reads no others.

Decompression never makes more than `limit` bytes, whatever the input promises: a batch of a few
kilobytes can announce gigabytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import cramjam

Buffer = bytes | bytearray | memoryview

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
_SIZE = struct.Struct(">i")

# How much room the first try at decompression gets. Batches of logs and JSON shrink to a tenth.
_FIRST_TRY_RATIO = 16
_FIRST_TRY_BYTES = 64 * 1024


class Compression(IntEnum):
    """The codec bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class DecompressionError(Exception):
    """The bytes are no output of the codec, or there are more of them than the limit allows."""


def compress(codec: Compression, data: Buffer, level: int | None = None) -> Buffer:
    """Compress; `level` is the codec's own, where it has levels. None is what most clients use."""
    match codec:
        case Compression.NONE:
            return data
        case Compression.GZIP:
            return _bytes(cramjam.gzip.compress(data, 6 if level is None else level))
        case Compression.SNAPPY:
            return _compress_xerial(data)
        case Compression.LZ4:
            lz4 = cramjam.lz4.Compressor(level or 0, content_checksum=False, block_linked=False)
            lz4.compress(data)
            return _bytes(lz4.finish())
        case Compression.ZSTD:
            return _bytes(cramjam.zstd.compress(data, 3 if level is None else level))


def decompress(codec: Compression, data: Buffer, limit: int) -> Buffer:
    """Decompress to at most `limit` bytes. Raises DecompressionError."""
    match codec:
        case Compression.NONE:
            return data
        case Compression.GZIP:
            return _decompress_within(limit, cramjam.gzip.decompress_into, data)
        case Compression.SNAPPY:
            return _decompress_snappy(data, limit)
        case Compression.LZ4:
            return _decompress_within(limit, cramjam.lz4.decompress_into, data)
        case Compression.ZSTD:
            return _decompress_within(limit, cramjam.zstd.decompress_into, data)


def _decompress_within(limit: int, into: Callable[[Buffer, bytearray], int], data: Buffer) -> bytes:
    """Decompress into a buffer that is likely large enough, and if it is not, into one of `limit`.

    The codecs do not tell how much they will need in a way that one could believe.
    """
    room = min(limit, max(_FIRST_TRY_BYTES, _FIRST_TRY_RATIO * len(data)))
    while True:
        output = bytearray(room)
        try:
            size = into(data, output)
        except cramjam.DecompressionError as error:
            # A buffer that is too small and damaged bytes look alike: only with all the room that
            # there may be do we know that it is not the room.
            if room == limit:
                raise DecompressionError(
                    f"not decompressed within {limit} bytes: {error}"
                ) from error
            room = limit
        else:
            return bytes(memoryview(output)[:size])


def _compress_xerial(data: Buffer) -> bytes:
    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = _bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (_SIZE.pack(len(block)), block)
    return b"".join(parts)


def _decompress_snappy(data: Buffer, limit: int) -> bytes:
    view = memoryview(data)
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _decompress_raw(view, 0, limit)
    parts: list[bytes] = []
    made = 0
    position = len(_XERIAL_HEADER)
    while position < len(view):
        if len(view) - position < _SIZE.size:
            raise DecompressionError("a snappy frame ends inside the size of a block")
        (size,) = _SIZE.unpack_from(view, position)
        position += _SIZE.size
        if not 0 <= size <= len(view) - position:
            raise DecompressionError(f"a snappy block of {size} bytes, {len(view) - position} left")
        parts.append(_decompress_raw(view[position : position + size], made, limit))
        made += len(parts[-1])
        position += size
    return b"".join(parts)


def _decompress_raw(block: memoryview, made: int, limit: int) -> bytes:
    """Decompress a block, which says first how large it will be: not to be believed unchecked."""
    try:
        if made + cramjam.snappy.decompress_raw_len(block) > limit:
            raise DecompressionError(f"not decompressed within {limit} bytes")
        return _bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise DecompressionError(str(error)) from error


def _bytes(buffer: Any) -> bytes:
    return bytes(memoryview(buffer))
