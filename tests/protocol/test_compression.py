"""Compression codecs: formats, limits and corrupt data."""

import gzip
import tracemalloc

import cramjam
import pytest

from ottla.protocol.compression import Compression, DecompressionError, compress, decompress

PLAIN = b"the quick brown fox jumps over the lazy dog " * 3000
REAL = [codec for codec in Compression if codec is not Compression.NONE]


@pytest.mark.parametrize("codec", Compression)
@pytest.mark.parametrize("plain", [b"", b"x", PLAIN, bytes(range(256)) * 600])
def test_every_codec_round_trips(codec, plain):
    compressed = compress(codec, plain)

    assert decompress(codec, compressed, max_bytes=len(plain)) == plain
    assert decompress(codec, memoryview(compressed), max_bytes=len(plain) + 1) == plain


@pytest.mark.parametrize("codec", REAL)
def test_output_above_the_limit_is_an_error(codec):
    compressed = compress(codec, PLAIN)

    with pytest.raises(DecompressionError, match=str(len(PLAIN) - 1)):
        decompress(codec, compressed, max_bytes=len(PLAIN) - 1)


@pytest.mark.parametrize("codec", REAL)
def test_a_decompression_bomb_allocates_no_more_than_the_limit(codec):
    bomb = compress(codec, bytes(32 * 1024 * 1024))
    max_bytes = 1024 * 1024

    tracemalloc.start()
    with pytest.raises(DecompressionError):
        decompress(codec, bomb, max_bytes)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 3 * max_bytes


@pytest.mark.parametrize("codec", REAL)
def test_corrupt_data_is_an_error(codec):
    compressed = bytes(compress(codec, PLAIN))

    for corrupt in (compressed[:-3], compressed[: len(compressed) // 2], b"\xff" * 40, b"\x05"):
        with pytest.raises(DecompressionError):
            decompress(codec, corrupt, max_bytes=1 << 20)


def test_magic_bytes_are_those_of_the_formats():
    assert compress(Compression.GZIP, PLAIN)[:3] == b"\x1f\x8b\x08"
    assert compress(Compression.SNAPPY, PLAIN)[:16] == b"\x82SNAPPY\0\0\0\0\1\0\0\0\1"
    assert compress(Compression.ZSTD, PLAIN)[:4] == b"\x28\xb5\x2f\xfd"
    lz4 = compress(Compression.LZ4, PLAIN)
    assert lz4[:4] == b"\x04\x22\x4d\x18"
    assert lz4[4] & 0x20, "the Java client requires independent blocks"


def test_snappy_decompresses_xerial_frames_and_raw_blocks():
    raw = bytes(cramjam.snappy.compress_raw(PLAIN))

    assert decompress(Compression.SNAPPY, raw, max_bytes=len(PLAIN)) == PLAIN
    assert decompress(Compression.SNAPPY, compress(Compression.SNAPPY, PLAIN), 1 << 20) == PLAIN


@pytest.mark.parametrize(
    "blocks", ["00", "7fffffff", "ffffffff", "00000005 0102", "00000005 ffffffff0f"]
)
def test_a_snappy_frame_with_an_invalid_block_size_is_an_error(blocks):
    frame = b"\x82SNAPPY\0\0\0\0\1\0\0\0\1" + bytes.fromhex(blocks)

    with pytest.raises(DecompressionError):
        decompress(Compression.SNAPPY, frame, max_bytes=1 << 20)


def test_gzip_with_several_members_is_decompressed():
    compressed = gzip.compress(b"one ") + gzip.compress(b"two")

    assert decompress(Compression.GZIP, compressed, max_bytes=100) == b"one two"


def test_levels_are_passed_to_the_codec():
    for codec in (Compression.GZIP, Compression.ZSTD):
        assert len(compress(codec, PLAIN, 1)) != len(compress(codec, PLAIN, 9))
