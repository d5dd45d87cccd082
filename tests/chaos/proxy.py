"""A network that is as bad as it is told to be: a proxy before a broker, in a thread of its own.

It delays, is slow, stalls, swallows everything, or resets connections in the middle of a frame.
What it lets through it lets through unchanged and in order, as TCP does.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Coroutine
from contextlib import suppress
from random import Random
from types import TracebackType
from typing import Any, Self

from harness.daemon import HOST, free_port
from harness.servers import close_server, take_turns

#: About what fits into a packet of an Ethernet.
_PIECE_BYTES = 1448
_RESET = struct.pack("ii", 1, 0)


class Proxy:
    """Listens on a port of its own, and passes on to another one."""

    def __init__(self, target: int, chance: Random) -> None:
        self.port = free_port()
        self._target = target
        self._chance = chance
        #: How long every byte is under way, in each direction.
        self.delay_seconds = 0.0
        #: What all connections together get through in a second, in each direction.
        self.bytes_per_second: float | None = None
        #: How likely a piece is to be held up, as by a lost packet, and all behind it; how long.
        self.stall_chance = 0.0
        self.stall_seconds = 0.0
        #: Whether everything is swallowed: nobody hears of anybody, and nobody is told so.
        self.is_cut = False
        #: New connections are reset after so many bytes, at most; in the middle of whatever it is.
        self.reset_within_bytes: int | None = None
        self.resets = 0
        self._connections: set[_Connection] = set()
        self._free_at = {"there": 0.0, "back": 0.0}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._server: asyncio.Server = self._do(asyncio.start_server(self._accept, HOST, self.port))

    def reset_all(self) -> None:
        """Reset every connection there is."""

        async def reset() -> None:
            for connection in self._connections:
                connection.reset()

        self._do(reset())

    def close(self) -> None:
        """End, and all connections with it."""

        async def end() -> None:
            await close_server(self._server)
            serving = [connection.serving for connection in self._connections]
            for connection in self._connections:
                connection.reset()
                connection.serving.cancel()
            await asyncio.gather(*serving, return_exceptions=True)
            await take_turns()  # what was reset is let go of

        self._do(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Known from the first moment, so that whatever comes next, it is closed.
        connection = _Connection(writer)
        if self.reset_within_bytes is not None:
            connection.left = self._chance.randrange(1, self.reset_within_bytes)
        self._connections.add(connection)
        connection.serving = asyncio.ensure_future(self._serve(connection, reader, writer))

    async def _serve(
        self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(HOST, self._target)
        except OSError:
            connection.reset()
            self._connections.discard(connection)
            return
        connection.ends.append(far_writer)
        pumps = [
            asyncio.ensure_future(self._pump(connection, reader, far_writer, "there")),
            asyncio.ensure_future(self._pump(connection, far_reader, writer, "back")),
        ]
        try:
            # Whoever closes first closes for both.
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            # Who does not read keeps it open, until it is reset.
            await connection.close()
            self._connections.discard(connection)

    async def _pump(
        self,
        connection: _Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        way: str,
    ) -> None:
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(200)

        async def read() -> None:
            while piece := await reader.read(_PIECE_BYTES):
                await pieces.put((time.monotonic() + self.delay_seconds, piece))
            await pieces.put((time.monotonic() + self.delay_seconds, b""))

        reading = asyncio.ensure_future(read())
        try:
            while True:
                due, piece = await pieces.get()
                if not piece:
                    return
                await self._hold_up(due, len(piece), way)
                if connection.left is not None and len(piece) >= connection.left:
                    writer.write(piece[: connection.left])
                    await asyncio.sleep(0)
                    self.resets += 1
                    connection.reset()
                    return
                if connection.left is not None:
                    connection.left -= len(piece)
                writer.write(piece)
                await writer.drain()
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await reading

    async def _hold_up(self, due: float, size: int, way: str) -> None:
        if self.bytes_per_second is not None:
            self._free_at[way] = max(self._free_at[way], time.monotonic())
            self._free_at[way] += size / self.bytes_per_second
            due = max(due, self._free_at[way])
        if self._chance.random() < self.stall_chance:
            due += self.stall_seconds
        wait = due - time.monotonic()
        if wait > 0:
            await asyncio.sleep(wait)
        while self.is_cut:
            await asyncio.sleep(0.01)

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()


class _Connection:
    """The two ends of a connection; the far one comes later."""

    #: What passes on what comes.
    serving: asyncio.Future[None]

    def __init__(self, near: asyncio.StreamWriter) -> None:
        self.ends = [near]
        #: How many bytes it has left before it is reset.
        self.left: int | None = None

    def reset(self) -> None:
        for end in self.ends:
            _reset(end)

    async def close(self) -> None:
        for end in self.ends:
            end.close()
        for end in self.ends:
            with suppress(OSError):
                await end.wait_closed()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Let the other side be told that there never was such a connection."""
    sock = writer.get_extra_info("socket")
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
