"""Framer with any frames, any chunking, and a caller that takes only some frames per read."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from ottla.protocol.frame import Framer

frames_of_any_size = st.lists(
    st.one_of(st.binary(min_size=1, max_size=12), st.binary(min_size=1, max_size=300)), max_size=8
)


@given(
    frames=frames_of_any_size,
    scratch_bytes=st.integers(8, 80),
    buffer_bytes=st.integers(0, 400),
    data=st.data(),
)
def test_frames_round_trip(frames, scratch_bytes, buffer_bytes, data):
    wire = b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)
    scratch = memoryview(bytearray(scratch_bytes))
    framer = Framer(scratch, min_bytes=1, max_bytes=300)
    received = []

    def take(at_most):
        for _ in range(at_most):
            frame = framer.next_frame()
            if frame is None:
                break
            received.append(bytes(frame))
        framer.detach(buffer_bytes)

    position = 0
    while position < len(wire):
        buffer = framer.get_buffer()
        nbytes = data.draw(st.integers(1, min(len(buffer), len(wire) - position)))
        buffer[:nbytes] = wire[position : position + nbytes]
        position += nbytes
        assert framer.unparsed_bytes + framer.filled_bytes <= position
        if framer.buffer_updated(nbytes):
            take(data.draw(st.integers(1, 4)))
        # Other connections overwrite the shared scratch buffer.
        scratch[:] = b"\xff" * scratch_bytes
    take(len(frames))

    assert received == frames
    assert framer.unparsed_bytes == framer.frame_bytes == 0
