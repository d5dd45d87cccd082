"""The codecs: what they write, what they read, and where they stop."""

import gzip
import tracemalloc

import cramjam
import pytest

from ottla.protocol.compression import Compression, DecompressionError, compress, decompress

PLAIN = b"the quick brown fox jumps over the lazy dog " * 3000
REAL = [codec for codec in Compression if codec is not Compression.NONE]


@pytest.mark.parametrize("codec", Compression)
@pytest.mark.parametrize("plain", [b"", b"x", PLAIN, bytes(range(256)) * 600])
def test_what_was_compressed_comes_back(codec, plain):
    packed = compress(codec, plain)

    assert decompress(codec, packed, limit=len(plain)) == plain
    assert decompress(codec, memoryview(packed), limit=len(plain) + 1) == plain


@pytest.mark.parametrize("codec", REAL)
def test_more_than_the_limit_is_an_error(codec):
    packed = compress(codec, PLAIN)

    with pytest.raises(DecompressionError, match=str(len(PLAIN) - 1)):
        decompress(codec, packed, limit=len(PLAIN) - 1)


@pytest.mark.parametrize("codec", REAL)
def test_a_bomb_takes_no_more_memory_than_the_limit(codec):
    bomb = compress(codec, bytes(32 * 1024 * 1024))
    limit = 1024 * 1024

    tracemalloc.start()
    with pytest.raises(DecompressionError):
        decompress(codec, bomb, limit)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 3 * limit


@pytest.mark.parametrize("codec", REAL)
def test_damaged_bytes_are_an_error(codec):
    packed = bytes(compress(codec, PLAIN))

    for damaged in (packed[:-3], packed[: len(packed) // 2], b"\xff" * 40, b"\x05"):
        with pytest.raises(DecompressionError):
            decompress(codec, damaged, limit=1 << 20)


def test_the_first_bytes_are_those_that_other_clients_look_for():
    assert compress(Compression.GZIP, PLAIN)[:3] == b"\x1f\x8b\x08"
    assert compress(Compression.SNAPPY, PLAIN)[:16] == b"\x82SNAPPY\0\0\0\0\1\0\0\0\1"
    assert compress(Compression.ZSTD, PLAIN)[:4] == b"\x28\xb5\x2f\xfd"
    lz4 = compress(Compression.LZ4, PLAIN)
    assert lz4[:4] == b"\x04\x22\x4d\x18"
    assert lz4[4] & 0x20, "the Java client reads no blocks that depend on each other"


def test_snappy_is_read_with_and_without_the_frame():
    raw = bytes(cramjam.snappy.compress_raw(PLAIN))

    assert decompress(Compression.SNAPPY, raw, limit=len(PLAIN)) == PLAIN
    assert decompress(Compression.SNAPPY, compress(Compression.SNAPPY, PLAIN), 1 << 20) == PLAIN


@pytest.mark.parametrize(
    "blocks", ["00", "7fffffff", "ffffffff", "00000005 0102", "00000005 ffffffff0f"]
)
def test_a_snappy_frame_with_a_false_size_is_an_error(blocks):
    frame = b"\x82SNAPPY\0\0\0\0\1\0\0\0\1" + bytes.fromhex(blocks)

    with pytest.raises(DecompressionError):
        decompress(Compression.SNAPPY, frame, limit=1 << 20)


def test_gzip_of_several_members_is_read():
    packed = gzip.compress(b"one ") + gzip.compress(b"two")

    assert decompress(Compression.GZIP, packed, limit=100) == b"one two"


def test_levels_are_passed_on():
    for codec in (Compression.GZIP, Compression.ZSTD):
        assert len(compress(codec, PLAIN, 1)) != len(compress(codec, PLAIN, 9))
