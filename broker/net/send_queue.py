"""The bytes that a connection has to send, passed to its transport piece by piece.

A transport sends as much as the kernel accepts in one call, and on a fast network that is all of
it: a response of tens of megabytes would occupy the event loop for that long. In pieces, other
connections are served in between.

Each call of the transport is a system call. Small responses that are ready one after the other are
therefore held, and sent together.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from ottla.client.transports import writelines_of
from ottla.protocol.schema import Buffer

#: The bytes passed to the transport at once: a fraction of a millisecond's work.
PIECE_BYTES = 256 * 1024
# What is held at most: the first response waits until the others are ready.
_MAX_HELD = 32
_MAX_HELD_BYTES = 4 * 1024


class SendQueue:
    """Buffers that were not passed to the transport yet. `on_empty` is called after the last."""

    def __init__(self, transport: asyncio.Transport, on_empty: Callable[[], None]) -> None:
        self._transport = transport
        self._writelines = writelines_of(transport)
        self._loop = asyncio.get_running_loop()
        self._on_empty = on_empty
        self._buffers: deque[Buffer] = deque()
        self._held: list[Buffer] = []
        self._is_holding = False
        self._is_scheduled = False
        self._is_blocked = False
        self.size_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._buffers or self._held)

    def is_clear(self) -> bool:
        """Whether the queue is empty and the transport accepts more."""
        return not self._buffers and not self._is_blocked

    def unsent_bytes(self) -> int:
        """Return the bytes that the kernel has not accepted yet."""
        return self._transport.get_write_buffer_size() + self.size_bytes

    def hold(self) -> None:
        """Hold small buffers from now on: more of them will follow at once."""
        self._is_holding = True

    def release(self) -> None:
        """Send what was held, and hold nothing any more."""
        self._is_holding = False
        if self._held:
            self._send_held()

    def _send_held(self) -> None:
        held, self._held = self._held, []
        if not self._transport.is_closing():
            self._send(held, sum(map(len, held)))

    def send(self, parts: Sequence[Buffer]) -> int:
        """Send buffers, which must not change until they are sent; return their total size."""
        size_bytes = sum(map(len, parts))
        if not self._is_holding:
            self._send(parts, size_bytes)
            return size_bytes
        self._held += parts
        if len(self._held) >= _MAX_HELD or size_bytes > _MAX_HELD_BYTES:
            self._send_held()
        return size_bytes

    def _send(self, parts: Sequence[Buffer], size_bytes: int) -> None:
        if self._buffers or size_bytes > PIECE_BYTES:
            self._buffers.extend(parts)
            self.size_bytes += size_bytes
            self._schedule()
        elif len(parts) == 1:
            self._transport.write(parts[0])
        elif parts:
            self._writelines(parts)

    def block(self) -> None:
        """Pause: the transport's buffer is full."""
        self._is_blocked = True

    def unblock(self) -> None:
        """Resume: the transport's buffer has room."""
        self._is_blocked = False
        self._schedule()

    def close(self) -> None:
        """Drop what is queued: the connection is lost."""
        self._buffers.clear()
        self._held.clear()
        self.size_bytes = 0
        # Break the reference cycle with Connection, so that it is freed without a garbage
        # collection.
        self._on_empty = _do_nothing

    def _schedule(self) -> None:
        if self._buffers and not self._is_scheduled and not self._is_blocked:
            self._is_scheduled = True
            self._loop.call_soon(self._send_piece)

    def _send_piece(self) -> None:
        self._is_scheduled = False
        if not self._buffers or self._is_blocked:
            return
        piece: list[Buffer] = []
        remaining_bytes = PIECE_BYTES
        while self._buffers and remaining_bytes > 0:
            part = self._buffers.popleft()
            if len(part) > remaining_bytes:
                view = memoryview(part)
                part = view[:remaining_bytes]
                self._buffers.appendleft(view[remaining_bytes:])
            piece.append(part)
            remaining_bytes -= len(part)
        self.size_bytes -= PIECE_BYTES - remaining_bytes
        self._writelines(piece)
        if self._buffers:
            self._schedule()
        else:
            self._on_empty()


def _do_nothing() -> None:
    pass
