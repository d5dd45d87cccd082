"""Framer: frames of any size in any chunks, size limits, and buffer allocation."""

import struct

import pytest

from ottla.protocol.errors import DecodeError
from ottla.protocol.frame import Framer

SCRATCH = 64
PRODUCE, OTHER = 0, 18


def a_framer(*, scratch=None, min_bytes=1, max_bytes=10_000, max_bytes_of=None):
    scratch = memoryview(bytearray(SCRATCH)) if scratch is None else scratch
    return Framer(scratch, min_bytes=min_bytes, max_bytes=max_bytes, max_bytes_of=max_bytes_of)


def framed(*frames):
    return b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)


def a_frame(size, seed=0):
    return bytes((seed + number) % 251 for number in range(size))


def feed(framer, data, *, chunk_bytes=SCRATCH, buffer_bytes=0):
    """Read data as a connection would, at most `chunk_bytes` at a time; return all frames."""
    frames = []
    while data:
        buffer = framer.get_buffer()
        nbytes = min(len(buffer), chunk_bytes, len(data))
        buffer[:nbytes] = data[:nbytes]
        data = data[nbytes:]
        if framer.buffer_updated(nbytes):
            while (frame := framer.next_frame()) is not None:
                frames.append(bytes(frame))
            framer.detach(buffer_bytes)
    return frames


FRAME_SIZES = {
    "one": [10],
    "smallest": [1, 1, 1],
    "several in one read": [3, 20, 7],
    "just below the scratch": [SCRATCH - 5],
    "exactly the scratch": [SCRATCH - 4],
    "one byte over the scratch": [SCRATCH - 3],
    "size as large as the scratch": [SCRATCH, SCRATCH + 1],
    "size cut by the end of the scratch": [SCRATCH - 4 - 4 - 2, 30],
    "size ends with the scratch": [SCRATCH - 4 - 4, 30],
    "large between small": [5, 1000, 5, 300, 1],
    "larger than the initial buffer": [9000, 4096, 4097],
}


@pytest.mark.parametrize("buffer_bytes", [0, 16, 10_000])
@pytest.mark.parametrize("sizes", FRAME_SIZES.values(), ids=FRAME_SIZES)
def test_every_chunk_size_yields_the_same_frames(sizes, buffer_bytes):
    frames = [a_frame(size, seed) for seed, size in enumerate(sizes)]

    for chunk_bytes in [*range(1, SCRATCH + 1), 100, 5000]:
        framer = a_framer()

        assert (
            feed(framer, framed(*frames), chunk_bytes=chunk_bytes, buffer_bytes=buffer_bytes)
            == frames
        )
        assert (framer.unparsed_bytes, framer.frame_bytes, framer.filled_bytes) == (0, 0, 0)


def test_every_split_into_two_reads_yields_the_same_frames():
    frames = [a_frame(7), a_frame(1), a_frame(20)]
    data = framed(*frames)

    for split in range(1, len(data)):
        framer = a_framer()

        assert feed(framer, data[:split]) + feed(framer, data[split:]) == frames


def test_connections_share_a_scratch_buffer():
    scratch = memoryview(bytearray(SCRATCH))
    framers = [a_framer(scratch=scratch) for _ in range(3)]
    frames = [[a_frame(30, seed), a_frame(200, seed), a_frame(2, seed)] for seed in range(3)]
    received = [[], [], []]

    for position in range(0, 250, 10):
        for number, framer in enumerate(framers):
            data = framed(*frames[number])[position : position + 10]
            received[number] += feed(framer, data)

    assert received == frames


# Size limits.


@pytest.mark.parametrize("size", [8, 9, 99, 100])
def test_sizes_within_the_limits_are_accepted(size):
    assert feed(a_framer(min_bytes=8, max_bytes=100), framed(a_frame(size))) == [a_frame(size)]


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 7, 101, 2**31 - 1])
def test_sizes_outside_the_limits_are_rejected_before_the_frame_arrives(size):
    framer = a_framer(min_bytes=8, max_bytes=100)

    with pytest.raises(
        DecodeError, match=rf"^Invalid frame size {size}: must be from 8 to 100 bytes$"
    ):
        feed(framer, struct.pack(">i", size))


def test_frames_before_an_invalid_size_are_returned():
    framer = a_framer()
    data = framed(a_frame(5)) + struct.pack(">i", -1)
    framer.get_buffer()[: len(data)] = data
    framer.buffer_updated(len(data))

    assert framer.next_frame() == a_frame(5)
    with pytest.raises(DecodeError, match="Invalid frame size -1"):
        framer.next_frame()


def limit_by_api_key(api_key):
    return {PRODUCE: 1000, OTHER: 50}[api_key]


@pytest.mark.parametrize(
    ("api_key", "size", "is_allowed"),
    [
        (PRODUCE, 10, True),
        (PRODUCE, 11, True),
        (PRODUCE, 1000, True),
        (PRODUCE, 1001, False),
        (OTHER, 10, True),
        (OTHER, 50, True),
        (OTHER, 51, False),
        (OTHER, 1000, False),
    ],
)
@pytest.mark.parametrize("chunk_bytes", [1, 5, 6, SCRATCH])
def test_limits_by_api_key(api_key, size, is_allowed, chunk_bytes):
    framer = a_framer(min_bytes=8, max_bytes=10, max_bytes_of=limit_by_api_key)
    frame = struct.pack(">h", api_key) + a_frame(size - 2)

    if is_allowed:
        assert feed(framer, framed(frame), chunk_bytes=chunk_bytes) == [frame]
    else:
        limit = limit_by_api_key(api_key)
        with pytest.raises(
            DecodeError,
            match=rf"^Invalid frame size {size} for API key {api_key}: must be from 8 to {limit} ",
        ):
            feed(framer, framed(frame)[:6], chunk_bytes=chunk_bytes)


def test_a_limit_by_api_key_waits_for_the_api_key():
    framer = a_framer(max_bytes=10, max_bytes_of=limit_by_api_key)

    assert feed(framer, struct.pack(">i", 2000) + b"\0") == []
    assert framer.frame_bytes == 0
    with pytest.raises(DecodeError, match="2000 for API key 0"):
        feed(framer, b"\0")


def test_limits_may_change_between_frames():
    framer = a_framer(max_bytes=10)
    assert feed(framer, framed(a_frame(10))) == [a_frame(10)]

    framer.max_bytes = 500

    assert feed(framer, framed(a_frame(500))) == [a_frame(500)]


# Copies and allocation.


def test_a_large_frame_is_read_into_its_own_buffer():
    framer = a_framer()
    assert feed(framer, framed(a_frame(200))[:54], buffer_bytes=200) == []

    buffer = framer.get_buffer()

    assert (len(buffer), framer.frame_bytes, framer.filled_bytes) == (150, 200, 50)
    buffer[:] = a_frame(200)[50:]
    assert framer.buffer_updated(150)
    frame = framer.next_frame()
    assert frame == a_frame(200)
    assert buffer.obj is frame


def test_a_large_frame_is_not_parsed_before_it_is_complete():
    framer = a_framer()
    feed(framer, framed(a_frame(200))[:50], buffer_bytes=200)

    assert not framer.buffer_updated(10)
    assert framer.next_frame() is None


def test_the_buffer_is_limited_to_what_arrived_and_what_the_caller_grants():
    framer = a_framer(max_bytes=2**30)
    header = struct.pack(">i", 2**30)

    feed(framer, header + bytes(20))
    assert len(framer._frame) == 20

    granted = a_framer(max_bytes=2**30)
    feed(granted, header + bytes(20), buffer_bytes=1000)
    assert len(granted._frame) == 1000


def test_the_buffer_doubles_with_what_arrived():
    framer = a_framer(max_bytes=2**30)
    feed(framer, struct.pack(">i", 20_000) + bytes(20), buffer_bytes=1000)
    sizes = []

    while framer.filled_bytes < framer.frame_bytes:
        room = len(framer.get_buffer())
        sizes.append(framer.filled_bytes + room)
        framer.buffer_updated(room)

    assert sizes == [1000, 4096, 8192, 16_384, 20_000]


def test_the_buffer_grows_at_once_to_what_is_granted_later():
    framer = a_framer(max_bytes=2**30)
    feed(framer, struct.pack(">i", 20_000) + a_frame(20))

    framer.grow(10_000)

    assert len(framer.get_buffer()) == 10_000 - 20
    rest = a_frame(20_000)[20:]
    assert feed(framer, rest, chunk_bytes=20_000) == [a_frame(20_000)]


def test_a_frame_owns_its_bytes():
    framer = a_framer()
    data = framed(a_frame(10))
    buffer = framer.get_buffer()
    buffer[: len(data)] = data
    framer.buffer_updated(len(data))
    frame = framer.next_frame()

    buffer[:] = bytes(SCRATCH)

    assert frame == a_frame(10)


# A caller that takes frames later.


def test_frames_that_are_not_taken_stay_after_detach():
    scratch = memoryview(bytearray(SCRATCH))
    framer = a_framer(scratch=scratch)
    data = framed(a_frame(5), a_frame(6), a_frame(7))
    scratch[: len(data)] = data
    framer.buffer_updated(len(data))

    assert framer.next_frame() == a_frame(5)
    framer.detach()
    scratch[:] = bytes(SCRATCH)

    assert framer.unparsed_bytes == 21
    assert framer.next_frame() == a_frame(6)
    framer.detach()
    assert feed(framer, framed(a_frame(8))) == [a_frame(7), a_frame(8)]


def test_clear_drops_partial_frames():
    for received in (framed(a_frame(300))[:2], framed(a_frame(300))[:50]):
        framer = a_framer()
        feed(framer, received)

        framer.clear()

        assert (framer.unparsed_bytes, framer.frame_bytes) == (0, 0)
        assert feed(framer, framed(a_frame(9))) == [a_frame(9)]
