"""Frames of a TCP stream: a size (int32) and then that many bytes.

Sans-I/O: `Framer` knows no socket. It fits asyncio's BufferedProtocol: read into `get_buffer()`,
report the number of bytes to `buffer_updated()`, and if that returns True, take frames out with
`next_frame()` for as long as you like, then call `detach()`.

    scratch buffer    | size | frame | size | frame | size | the first part of a large fr
    frame buffer                                           | the first part of a large fr|ame |
                                                                         then read here: ^

Connections may share one scratch buffer, since after `detach()` nothing in it is needed: an idle
connection costs no buffer. A frame that is complete in the scratch buffer is copied out of it. A
frame that is not gets a buffer of its own, and its remainder is read straight into that: the bytes
of a large frame are moved once, by the kernel.

A size is a claim of the peer. It is checked against the limits before anything is allocated, and
the frame buffer grows with the bytes that arrived: to no more than twice their number, or what the
caller grants.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from .errors import DecodeError

_SIZE = struct.Struct(">i")
_SIZE_AND_API_KEY = struct.Struct(">ih")
_EMPTY = memoryview(b"")


class Framer:
    """Splits the bytes of one connection into frames.

    A frame has at least `min_bytes` and at most `max_bytes`. Where `max_bytes_of` is given, it
    returns the limit for frames larger than `max_bytes`, by the first two bytes of the frame: the
    API key, if frames are requests.
    """

    __slots__ = (
        "_data",
        "_frame",
        "_position",
        "_scratch",
        "filled_bytes",
        "frame_bytes",
        "max_bytes",
        "max_bytes_of",
        "min_bytes",
        "unparsed_bytes",
    )

    def __init__(
        self,
        scratch: memoryview,
        *,
        min_bytes: int,
        max_bytes: int,
        max_bytes_of: Callable[[int], int] | None = None,
    ) -> None:
        self._scratch = scratch
        self.min_bytes = min_bytes
        self.max_bytes = max_bytes
        self.max_bytes_of = max_bytes_of
        self.clear()

    def clear(self) -> None:
        """Drop everything that was received."""
        self._data = _EMPTY
        self._position = 0
        #: Bytes received and not returned as part of a frame, without those in the frame buffer.
        self.unparsed_bytes = 0
        #: The size of the incomplete frame; 0 if there is none, or its size is not known yet.
        self.frame_bytes = 0
        #: How much of the incomplete frame its own buffer has, once it is detached.
        self.filled_bytes = 0
        self._frame: bytearray | None = None

    def get_buffer(self) -> memoryview:
        """Return the buffer for the next read."""
        if self._frame is None:
            return self._scratch
        if self.filled_bytes == len(self._frame):
            self.grow()
        return memoryview(self._frame)[self.filled_bytes :]

    def buffer_updated(self, nbytes: int) -> bool:
        """Accept `nbytes` read into the buffer; return False if they cannot complete a frame."""
        if self._frame is not None:
            self.filled_bytes += nbytes
            return self.filled_bytes == self.frame_bytes
        data = self._scratch[:nbytes]
        # Less than a size, or frames that the caller did not want yet.
        self._data = memoryview(bytes(self._data) + data) if self.unparsed_bytes else data
        self.unparsed_bytes = len(self._data)
        self._position = 0
        return True

    def next_frame(self) -> bytearray | None:
        """Return the next frame, without its size, or None. Raises DecodeError.

        After None, `frame_bytes` is the size of the frame that is incomplete, if it is known.
        """
        unparsed = self.unparsed_bytes
        if unparsed < 4:
            return self._completed_frame()
        data, start = self._data, self._position + 4
        (size,) = _SIZE.unpack_from(data, start - 4)
        if not self.min_bytes <= size <= self.max_bytes and not self._is_allowed(size):
            return None
        unparsed -= 4 + size
        if unparsed < 0:
            self.frame_bytes = size
            return None
        self.unparsed_bytes = unparsed
        self._position = end = start + size
        if not unparsed:
            self._data = _EMPTY
        return bytearray(data[start:end])

    def detach(self, buffer_bytes: int = 0) -> None:
        """Copy what is unparsed out of the scratch buffer.

        An incomplete frame whose size is known gets its own buffer, of `buffer_bytes` if these are
        more than has arrived of it.
        """
        if not self.unparsed_bytes:
            return
        if self.frame_bytes:
            data = self._data[self._position + 4 :]
            self.filled_bytes = filled = len(data)
            if buffer_bytes > filled:
                self._frame = bytearray(min(buffer_bytes, self.frame_bytes))
                # Assigning to a slice of the bytearray itself would copy `data` twice.
                memoryview(self._frame)[:filled] = data
            else:
                self._frame = bytearray(data)
            self._data = _EMPTY
            self.unparsed_bytes = 0
        else:
            self._data = memoryview(bytes(self._data[self._position :]))
        self._position = 0

    def grow(self, buffer_bytes: int = 4096) -> None:
        """Make the buffer of the incomplete frame larger: `buffer_bytes`, or twice what it has."""
        assert self._frame is not None
        filled = self.filled_bytes
        grown = bytearray(min(self.frame_bytes, max(buffer_bytes, 2 * filled)))
        memoryview(grown)[:filled] = memoryview(self._frame)[:filled]
        self._frame = grown

    def _completed_frame(self) -> bytearray | None:
        frame = self._frame
        if frame is None or self.filled_bytes < self.frame_bytes:
            return None
        self._frame = None
        self.frame_bytes = self.filled_bytes = 0
        return frame

    def _is_allowed(self, size: int) -> bool:
        """Whether the next frame may be this large; False if its API key has not arrived yet."""
        limit, kind = self.max_bytes, ""
        if size > limit and self.max_bytes_of is not None:
            if self.unparsed_bytes < _SIZE_AND_API_KEY.size:
                return False
            _size, api_key = _SIZE_AND_API_KEY.unpack_from(self._data, self._position)
            limit, kind = self.max_bytes_of(api_key), f" for API key {api_key}"
        if self.min_bytes <= size <= limit:
            return True
        raise DecodeError(
            f"Invalid frame size {size}{kind}: must be from {self.min_bytes} to {limit} bytes"
        )
