"""Compression codecs of record batches: gzip, snappy, lz4 and zstd, compatible with all clients.

Snappy comes in two forms. The Java client and most others put raw blocks into a "xerial" frame;
librdkafka writes one raw block. We read both and write the frame:

    82 53 4e 41 50 50 59 00 | int32 version 1 | int32 compatible 1 | (int32 size, raw block) …

LZ4 is the standard frame format, with independent blocks: the Java client reads no others.

Decompression never produces more than `max_bytes`, whatever size the input claims: a batch of a few
kilobytes can claim gigabytes. Large output goes into a map of its own, which costs memory only as
it is written, by the codec and without the GIL: other threads are not held up.
"""

from __future__ import annotations

import mmap
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

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
#: Magic, flags, block descriptor and a checksum of the header.
_LZ4_HEADER = struct.Struct("<4sBBB")
_LZ4_BLOCK_SIZE = struct.Struct("<I")
#: Version, independent blocks, reserved, dictionary id: the first two are required.
_LZ4_FLAGS = 0b1110_0011
_LZ4_REQUIRED_FLAGS = 0b0110_0000
_LZ4_BLOCK_CHECKSUM = 0b0001_0000
_LZ4_CONTENT_SIZE = 0b0000_1000
_LZ4_CONTENT_CHECKSUM = 0b0000_0100

# Output buffer of the first attempt. Batches of log lines and JSON compress to a tenth.
_FIRST_TRY_RATIO = 16
_FIRST_TRY_BYTES = 64 * 1024
# Larger output buffers are maps: those need not be cleared first, nor copied to cut them to size.
# Smaller ones are faster as memory that the process has used before.
_MAX_BYTEARRAY_BYTES = 8 * 1024 * 1024


class Compression(IntEnum):
    """The codec bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class DecompressionError(Exception):
    """The data is corrupt, or decompresses to more than the limit."""


def compress(codec: Compression, data: Buffer, level: int | None = None) -> Buffer:
    """Compress; `level` is that of the codec, if it has levels. None is what most clients use."""
    match codec:
        case Compression.NONE:
            return data
        case Compression.GZIP:
            return _bytes(cramjam.gzip.compress(data, 6 if level is None else level))
        case Compression.SNAPPY:
            return _compress_xerial(data)
        case Compression.LZ4:
            lz4 = cramjam.lz4.Compressor(level or 0, content_checksum=False, block_linked=False)
            lz4.compress(data if isinstance(data, bytes) else bytes(data))
            return _bytes(lz4.finish())
        case Compression.ZSTD:
            return _bytes(cramjam.zstd.compress(data, 3 if level is None else level))


def decompress(codec: Compression, data: Buffer, max_bytes: int) -> Buffer:
    """Decompress to at most `max_bytes`. Raises DecompressionError."""
    match codec:
        case Compression.NONE:
            return data
        case Compression.GZIP:
            return _decompress_within(max_bytes, cramjam.gzip.decompress_into, data)
        case Compression.SNAPPY:
            return _decompress_snappy(data, max_bytes)
        case Compression.LZ4:
            return _decompress_within(max_bytes, cramjam.lz4.decompress_into, data)
        case Compression.ZSTD:
            return _decompress_within(max_bytes, cramjam.zstd.decompress_into, data)


def check_lz4_frame(data: Buffer) -> None:
    """Raise DecompressionError unless LZ4 data is one frame, of independent blocks.

    Codecs also decompress linked blocks, and frames in a row; but the Java client reads no linked
    blocks, and clients stop after the first frame, so that no consumer would get past the batch.
    """
    size = len(data)
    if size < _LZ4_HEADER.size or data[:4] != _LZ4_MAGIC:
        raise DecompressionError("not an lz4 frame")
    flags = data[4]
    if flags & _LZ4_FLAGS != _LZ4_REQUIRED_FLAGS:
        raise DecompressionError(
            f"lz4 frame with flags {flags:#04x}: version 1 with independent blocks is required"
        )
    position = _LZ4_HEADER.size + (8 if flags & _LZ4_CONTENT_SIZE else 0)
    checksum_bytes = 4 if flags & _LZ4_BLOCK_CHECKSUM else 0
    while position + 4 <= size:
        (block,) = _LZ4_BLOCK_SIZE.unpack_from(data, position)
        position += 4
        if block == 0:
            position += 4 if flags & _LZ4_CONTENT_CHECKSUM else 0
            if position != size:
                raise DecompressionError(f"lz4 frame of {position} bytes in {size} bytes")
            return
        position += (block & 0x7FFFFFFF) + checksum_bytes
    raise DecompressionError("lz4 frame ends early")


def _decompress_within(
    max_bytes: int, decompress_into: Callable[[Buffer, memoryview], int], data: Buffer
) -> Buffer:
    """Decompress into a buffer that is probably large enough, else into one of `max_bytes`.

    The size that a codec reports for its output cannot be trusted.
    """
    output_bytes = min(max_bytes, max(_FIRST_TRY_BYTES, _FIRST_TRY_RATIO * len(data)))
    while True:
        output = _allocate(output_bytes)
        try:
            size = decompress_into(data, output)
        except cramjam.DecompressionError as error:
            output.release()  # The traceback would keep it.
            # The codec raises the same error for a full buffer and for corrupt data: only with a
            # buffer of the maximum size is the error final.
            if output_bytes == max_bytes:
                raise DecompressionError(
                    f"cannot decompress to at most {max_bytes} bytes: {error}"
                ) from error
            output_bytes = max_bytes
        else:
            return _cut(output, size)


def _allocate(size: int) -> memoryview:
    """Return a writable buffer."""
    return memoryview(bytearray(size) if size <= _MAX_BYTEARRAY_BYTES else mmap.mmap(-1, size))


def _cut(output: memoryview, size: int) -> Buffer:
    return bytes(output[:size]) if len(output) <= _MAX_BYTEARRAY_BYTES else output[:size]


def _compress_xerial(data: Buffer) -> bytes:
    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = _bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (_SIZE.pack(len(block)), block)
    return b"".join(parts)


def _decompress_snappy(data: Buffer, max_bytes: int) -> Buffer:
    view = memoryview(data)
    is_framed = view[: len(_XERIAL_MAGIC)] == _XERIAL_MAGIC
    blocks = _xerial_blocks(view) if is_framed else [view]
    try:
        # A raw block starts with its decompressed size: check that first.
        sizes = [cramjam.snappy.decompress_raw_len(block) for block in blocks]
    except cramjam.DecompressionError as error:
        raise DecompressionError(str(error)) from error
    if sum(sizes) > max_bytes:
        raise DecompressionError(f"cannot decompress to at most {max_bytes} bytes")
    output, position = _allocate(sum(sizes)), 0
    try:
        for block, size in zip(blocks, sizes, strict=True):
            cramjam.snappy.decompress_raw_into(block, output[position : position + size])
            position += size
    except cramjam.DecompressionError as error:
        output.release()  # The traceback would keep it.
        raise DecompressionError(str(error)) from error
    return _cut(output, position)


def _xerial_blocks(view: memoryview) -> list[memoryview]:
    blocks: list[memoryview] = []
    position = len(_XERIAL_HEADER)
    while position < len(view):
        if len(view) - position < _SIZE.size:
            raise DecompressionError("snappy frame ends within a block size")
        (size,) = _SIZE.unpack_from(view, position)
        position += _SIZE.size
        if not 0 <= size <= len(view) - position:
            raise DecompressionError(f"snappy block of {size} bytes, {len(view) - position} remain")
        blocks.append(view[position : position + size])
        position += size
    return blocks


def _bytes(buffer: Any) -> bytes:
    return bytes(memoryview(buffer))
