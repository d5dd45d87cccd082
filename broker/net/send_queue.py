"""What a connection has to send, handed to its transport a piece at a time.

A transport sends as much as the kernel takes, in one go, and on a fast network that is all of it: a
response of tens of megabytes keeps the event loop for that long, and everybody else waits. In
pieces, others have their turns in between.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from ottla.protocol.schema import Buffer

#: What is handed over at once: a fraction of a millisecond's work.
PIECE_BYTES = 256 * 1024


class SendQueue:
    """The rest of what was to be sent. `emptied` is called when there is no rest any more."""

    def __init__(self, transport: asyncio.Transport, emptied: Callable[[], None]) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._emptied = emptied
        self._rest: deque[Buffer] = deque()
        self._is_scheduled = False
        self._is_blocked = False
        self.size_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._rest)

    def send(self, parts: Sequence[Buffer]) -> int:
        """Send buffers, which stay as they are until they are sent; give how many bytes it is."""
        size_bytes = sum(map(len, parts))
        if self._rest or size_bytes > PIECE_BYTES:
            self._rest.extend(parts)
            self.size_bytes += size_bytes
            self._schedule()
        elif len(parts) == 1:
            self._transport.write(parts[0])
        elif parts:
            self._transport.writelines(parts)
        return size_bytes

    def block(self) -> None:
        """Wait: the transport has enough."""
        self._is_blocked = True

    def unblock(self) -> None:
        """Go on: the transport has room."""
        self._is_blocked = False
        self._schedule()

    def close(self) -> None:
        """Forget the rest: nobody will read it."""
        self._rest.clear()
        self.size_bytes = 0
        # Whose method that is has us, too, and would be there until it is looked for as garbage.
        self._emptied = _do_nothing

    def _schedule(self) -> None:
        if self._rest and not self._is_scheduled and not self._is_blocked:
            self._is_scheduled = True
            self._loop.call_soon(self._send_piece)

    def _send_piece(self) -> None:
        self._is_scheduled = False
        if not self._rest or self._is_blocked:
            return
        piece: list[Buffer] = []
        room = PIECE_BYTES
        while self._rest and room > 0:
            part = self._rest.popleft()
            if len(part) > room:
                view = memoryview(part)
                part = view[:room]
                self._rest.appendleft(view[room:])
            piece.append(part)
            room -= len(part)
        self.size_bytes -= PIECE_BYTES - room
        self._transport.writelines(piece)
        if self._rest:
            self._schedule()
        else:
            self._emptied()


def _do_nothing() -> None:
    """Stand for what is not to be called any more."""
