"""Split a TCP stream into frames: a size (int32), then that many bytes.

`Framer` does no I/O. It matches asyncio's BufferedProtocol: read into `get_buffer()` and report the
number of bytes to `buffer_updated()`. If that returns True, call `next_frame()` until it returns
None, or stop earlier and continue later; then call `detach()`, before anything else is read.

    scratch buffer    | size | frame | size | frame | size | the first part of a large fr
    frame buffer                                           | the first part of a large fr|ame |
                                                                         then read here: ^

Connections can share one scratch buffer, because `detach()` copies what is left in it: an idle
connection needs no buffer. A frame that is complete in the scratch buffer is copied out of it. An
incomplete frame gets its own buffer, and its remainder is read directly into that: the kernel
copies it to its final location.

The peer may claim any size. It is checked against the limits before anything is allocated, and the
frame buffer grows with the bytes received: to at most twice their number, or to the size that the
caller allows.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from .errors import DecodeError

_SIZE = struct.Struct(">i")
_SIZE_AND_API_KEY = struct.Struct(">ih")
_EMPTY = memoryview(b"")


class OtherProtocolError(DecodeError):
    """The peer speaks another protocol; its first bytes are not a size."""

    def __init__(self, protocol: str) -> None:
        super().__init__(f"the peer speaks {protocol}, not the Kafka protocol in plain text")
        self.protocol = protocol


_HTTP = ("HTTP", "GET ", "POST", "PUT ", "HEAD", "OPTI", "DELE", "PATC", "CONN", "PRI ")


def _other_protocol(start: bytes) -> str | None:
    """Return the name of the protocol of a stream that begins with these four bytes, if known."""
    # A TLS record: its type, and a version of 3.0 to 3.4.
    if 20 <= start[0] <= 23 and start[1] == 3 and start[2] <= 4:
        return "TLS"
    return "HTTP" if start.decode("latin-1") in _HTTP else None


class Framer:
    """Splits the bytes of one connection into frames.

    A frame has `min_bytes` to `max_bytes`. `max_bytes_of`, if given, returns the limit for frames
    above `max_bytes`, by the first two bytes of the frame: the API key, if frames are requests.
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
        #: Bytes received and not parsed yet, without those in the frame buffer.
        self.unparsed_bytes = 0
        #: The size of the incomplete frame; 0 if there is none, or its size is not known yet.
        self.frame_bytes = 0
        #: Bytes of the incomplete frame in its own buffer.
        self.filled_bytes = 0
        self._frame: bytearray | None = None

    @property
    def has_unhandled_bytes(self) -> bool:
        """Whether `next_frame()` may return a frame without another read."""
        is_complete = self._frame is not None and self.filled_bytes == self.frame_bytes
        return self.unparsed_bytes > 0 or is_complete

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
        # An incomplete size, or frames that the caller has not taken yet.
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
        """Copy the unparsed bytes out of the scratch buffer.

        An incomplete frame of known size gets its own buffer, of at least `buffer_bytes`, but not
        more than its size.
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
        """Enlarge the frame buffer to `buffer_bytes`, or to twice the bytes received."""
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
        if (protocol := _other_protocol(bytes(self._data[self._position :][:4]))) is not None:
            raise OtherProtocolError(protocol)
        raise DecodeError(
            f"Invalid frame size {size}{kind}: must be from {self.min_bytes} to {limit} bytes"
        )
