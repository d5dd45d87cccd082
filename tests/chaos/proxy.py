"""A TCP proxy with faults, in its own thread, in front of a broker.

It adds latency, limits bandwidth, stalls, drops everything, or resets connections in mid-frame.
What it forwards is unchanged and in order, as with TCP.
"""

from __future__ import annotations

import asyncio
import re
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
from harness.servers import close_server, run_ready_callbacks

#: The payload of an Ethernet packet.
_PIECE_BYTES = 1448
#: The client id of a broker that connects to another one.
_PEER = re.compile(r"ottla-broker-(\d+)")
_RESET = struct.pack("ii", 1, 0)


class Proxy:
    """Listens on its own port, and forwards to another one."""

    def __init__(self, target: int, random: Random) -> None:
        self.port = free_port()
        self._target = target
        self._random = random
        #: Latency in each direction.
        self.delay_seconds = 0.0
        #: Bandwidth of all connections together, in each direction.
        self.bytes_per_second: float | None = None
        #: The probability and duration of a stall, as by a lost packet.
        self.stall_chance = 0.0
        self.stall_seconds = 0.0
        #: Whether everything is dropped silently.
        self.is_cut = False
        #: What is dropped silently in one direction: "upstream" to the broker, or "downstream".
        self.cut_direction: str | None = None
        #: The ids of brokers whose connections are cut, both ways; clients are served.
        self.cut_peers: frozenset[int] = frozenset()
        #: New connections are reset after at most so many bytes.
        self.reset_within_bytes: int | None = None
        self.resets = 0
        self._connections: set[_Connection] = set()
        self._free_at = {"upstream": 0.0, "downstream": 0.0}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._server: asyncio.Server = self._do(asyncio.start_server(self._accept, HOST, self.port))

    def reset_all(self) -> None:
        """Reset all connections."""

        async def reset() -> None:
            for connection in self._connections:
                connection.reset()

        self._do(reset())

    def close(self) -> None:
        """Stop, and reset all connections."""

        async def end() -> None:
            await close_server(self._server)
            serving = [connection.serving for connection in self._connections]
            for connection in self._connections:
                connection.reset()
                connection.serving.cancel()
            await asyncio.gather(*serving, return_exceptions=True)
            await run_ready_callbacks()  # so that reset transports are closed

        self._do(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Registered first, so that it is closed whatever happens.
        connection = _Connection(writer)
        if self.reset_within_bytes is not None:
            connection.left = self._random.randrange(1, self.reset_within_bytes)
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
            asyncio.ensure_future(self._pump(connection, reader, far_writer, "upstream")),
            asyncio.ensure_future(self._pump(connection, far_reader, writer, "downstream")),
        ]
        try:
            # The end of one side ends the other.
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            # A peer that does not read keeps it open until it is reset.
            await connection.close()
            self._connections.discard(connection)

    async def _pump(
        self,
        connection: _Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        direction: str,
    ) -> None:
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(200)

        async def read() -> None:
            while piece := await reader.read(_PIECE_BYTES):
                if direction == "upstream" and connection.client_id is None:
                    connection.client_id = _client_id(piece)
                await pieces.put((time.monotonic() + self.delay_seconds, piece))
            await pieces.put((time.monotonic() + self.delay_seconds, b""))

        reading = asyncio.ensure_future(read())
        try:
            while True:
                due, piece = await pieces.get()
                if not piece:
                    return
                await self._delay(due, len(piece), direction)
                while self._drops(connection, direction):
                    await asyncio.sleep(0.01)
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

    async def _delay(self, due: float, size: int, direction: str) -> None:
        if self.bytes_per_second is not None:
            self._free_at[direction] = max(self._free_at[direction], time.monotonic())
            self._free_at[direction] += size / self.bytes_per_second
            due = max(due, self._free_at[direction])
        if self._random.random() < self.stall_chance:
            due += self.stall_seconds
        wait = due - time.monotonic()
        if wait > 0:
            await asyncio.sleep(wait)

    def _drops(self, connection: _Connection, direction: str) -> bool:
        """Whether packets are dropped. TCP retransmits them when the link is back."""
        peer = _PEER.fullmatch(connection.client_id or "")
        is_peer_cut = peer is not None and int(peer[1]) in self.cut_peers
        return self.is_cut or self.cut_direction == direction or is_peer_cut

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
    """Both ends of a connection; the broker's end is added later."""

    #: The task that forwards.
    serving: asyncio.Future[None]

    def __init__(self, near: asyncio.StreamWriter) -> None:
        self.ends = [near]
        #: Bytes until it is reset.
        self.left: int | None = None
        #: The client id of its first request; brokers have one as well.
        self.client_id: str | None = None

    def reset(self) -> None:
        for end in self.ends:
            _reset(end)

    async def close(self) -> None:
        for end in self.ends:
            end.close()
        for end in self.ends:
            with suppress(OSError):
                await end.wait_closed()


def _client_id(frame: bytes) -> str:
    """Return the client id in the header of a request: size, key, version, correlation id, id."""
    (length,) = struct.unpack_from(">h", frame, 12) if len(frame) >= 14 else (-1,)
    return frame[14 : 14 + max(0, length)].decode(errors="replace")


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST instead of FIN."""
    sock = writer.get_extra_info("socket")
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
