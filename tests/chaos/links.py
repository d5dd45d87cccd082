"""Links: TCP connections between clients, brokers and etcd that can be cut, slowed down and reset.

    with Links() as links:
        link = links.to(broker_port)
        connect(link.port)
        link.cut("answers")         # requests arrive, answers do not
        link.cut("both", peers={2}) # only those of broker 2
        link.heal()

All links share a thread. What is on its way when a link is cut arrives when it is healed, late, as
with TCP; `reset` loses it.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import threading
from collections.abc import Collection, Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal, Self

from harness.daemon import HOST, free_port
from harness.servers import close_server, run_ready_callbacks

Direction = Literal["requests", "answers", "both"]

#: The client id of a broker that connects to another one.
_PEER = re.compile(r"ottla-broker-(\d+)")
_RESET = struct.pack("ii", 1, 0)
_CHUNK_BYTES = 65536


class Link:
    """A port in front of another one."""

    def __init__(self, links: Links, target: int) -> None:
        self.port = free_port()
        self._links = links
        self._target = target
        # The connections of these brokers are cut; of everybody, if there is None among them.
        self._cut: dict[int | None, Direction] = {}
        # Bandwidth of a connection in each direction, of everybody or of some brokers.
        self._bytes_per_second: dict[int | None, float] = {}
        self._connections: set[_Connection] = set()

    @property
    def address(self) -> str:
        """The address in front."""
        return f"{HOST}:{self.port}"

    def cut(self, direction: Direction = "both", peers: Collection[int] | None = None) -> None:
        """Hold back what is sent in a direction, by everybody or by some brokers."""
        self._cut = {
            **self._cut,
            **dict.fromkeys(peers if peers is not None else (None,), direction),
        }

    def heal(self) -> None:
        """Deliver what was held back, and hold back nothing."""
        self._cut = {}
        self._bytes_per_second = {}

    def slow_down(self, bytes_per_second: float, peers: Collection[int] | None = None) -> None:
        """Limit the bandwidth of each connection, of everybody or of some brokers."""
        whose = peers if peers is not None else (None,)
        self._bytes_per_second = dict.fromkeys(whose, bytes_per_second)

    def bandwidth(self, peer: int | None) -> float | None:
        """Return the bandwidth of a broker's connections, or anybody else's, if it is limited."""
        return self._bytes_per_second.get(peer, self._bytes_per_second.get(None))

    def reset(self) -> None:
        """Reset all connections."""

        async def reset() -> None:
            for connection in self._connections:
                connection.reset()

        self._links.do(reset())

    def holds(self, peer: int | None, direction: Direction) -> bool:
        """Whether what a broker sends, or anybody else, is held back."""
        return any(self._cut.get(one) in (direction, "both") for one in (None, peer))

    async def serve(self) -> asyncio.Server:
        """Listen. Called in the thread of the links."""
        return await asyncio.start_server(self._accept, HOST, self.port)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Registered first, so that it is closed whatever happens.
        connection = _Connection(writer)
        self._connections.add(connection)
        connection.serving = asyncio.ensure_future(self._serve(connection, reader, writer))

    async def _serve(
        self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            while self.holds(None, "requests"):
                await asyncio.sleep(0.02)
            try:
                far_reader, far_writer = await asyncio.open_connection(HOST, self._target)
            except OSError:
                connection.reset()
                return
            connection.ends.append(far_writer)
            pumps = [
                asyncio.ensure_future(self._pump(connection, reader, far_writer, "requests")),
                asyncio.ensure_future(self._pump(connection, far_reader, writer, "answers")),
            ]
            try:
                # The end of one side ends the other.
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            for end in connection.ends:
                end.close()
            self._connections.discard(connection)

    async def _pump(
        self,
        connection: _Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        direction: Direction,
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                if direction == "requests" and connection.is_new:
                    connection.is_new, connection.peer = False, _peer(data)
                if (bandwidth := self.bandwidth(connection.peer)) is not None:
                    await asyncio.sleep(len(data) / bandwidth)
                while self.holds(connection.peer, direction):
                    await asyncio.sleep(0.02)
                writer.write(data)
                await writer.drain()

    async def close(self) -> None:
        """Reset all connections. Called in the thread of the links."""
        serving = [connection.serving for connection in self._connections]
        for connection in list(self._connections):
            connection.reset()
            connection.serving.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


class Links:
    """Links that share an event loop in a thread."""

    def __init__(self) -> None:
        self._links: list[Link] = []
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._thread.start()

    def to(self, port: int) -> Link:
        """Return a new link to a port."""
        link = Link(self, port)
        self._links.append(link)
        self._servers.append(self.do(link.serve()))
        return link

    def heal(self) -> None:
        """Heal all links."""
        for link in self._links:
            link.heal()

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine in the thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _close(self) -> None:
        for server in self._servers:
            await close_server(server)
        for link in self._links:
            await link.close()
        await run_ready_callbacks()  # so that reset transports are closed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _Connection:
    """Both ends of a connection; the far end is added later."""

    #: The task that forwards.
    serving: asyncio.Future[None]

    def __init__(self, near: asyncio.StreamWriter) -> None:
        self.ends = [near]
        self.is_new = True
        #: The broker that has connected; None for clients.
        self.peer: int | None = None

    def reset(self) -> None:
        """Close with RST instead of FIN."""
        for end in self.ends:
            with suppress(OSError):
                sock = end.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            end.transport.abort()


def _peer(frame: bytes) -> int | None:
    """Return the broker id in the header of a request: size, key, version, correlation id, id."""
    (length,) = struct.unpack_from(">h", frame, 12) if len(frame) >= 14 else (-1,)
    client_id = frame[14 : 14 + max(0, length)].decode(errors="replace")
    found = _PEER.fullmatch(client_id)
    return int(found[1]) if found else None
