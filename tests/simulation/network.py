"""A simulated network: byte streams between machines, as TCP delivers them.

Bytes of a connection arrive in order and once, late by a random delay. What is lost is sent again,
so loss is delay; between two machines that cannot reach each other it lasts until the partition
heals. Connections are reset at random, and by a killed process: at once, or, after a power cut,
when the machine is up again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from .loop import CURRENT, Process, VirtualLoop


class SimulatedSocket:
    """What a broker binds and configures; the bytes take another way."""

    AF_INET = AF_INET6 = SOCK_STREAM = SOL_SOCKET = SO_REUSEADDR = 0

    def __init__(self, *_args: int) -> None:
        self.address = ("", 0)

    def setsockopt(self, *_args: Any) -> None:
        pass

    def bind(self, address: tuple[str, int]) -> None:
        self.address = address

    def getsockname(self) -> tuple[str, int]:
        return self.address

    def listen(self, _backlog: int) -> None:
        pass

    def close(self) -> None:
        pass


class Listening:
    """A bound address, in place of an asyncio.Server."""

    def __init__(self, network: Network, factory: Callable[[], Any], address: Any) -> None:
        self.network = network
        self.factory = factory
        self.address = address
        self.process = CURRENT.get()

    def close(self) -> None:
        if self.network.listening.get(self.address) is self:
            del self.network.listening[self.address]


class Network:
    """All connections and listeners. `max_delay` is that of bytes on their way, in seconds."""

    def __init__(self, loop: VirtualLoop, random: Random) -> None:
        self.loop = loop
        self.random = random
        self.max_delay = 0.005
        self.listening: dict[tuple[str, int], Listening] = {}
        self.transports: list[SimulatedTransport] = []
        #: Pairs of machines that cannot reach each other.
        self.partitions: set[frozenset[str]] = set()
        #: Sender and receiver: machines that reach each other in the other direction only.
        self.one_way: set[tuple[str, str]] = set()

    def delay(self) -> float:
        return 0.0001 + self.random.random() * self.max_delay

    def is_cut(self, sender: str, receiver: str) -> bool:
        return (
            frozenset((sender, receiver)) in self.partitions or (sender, receiver) in self.one_way
        )

    def listen(self, factory: Callable[[], Any], sock: SimulatedSocket) -> Listening:
        listening = self.listening[sock.address] = Listening(self, factory, sock.address)
        return listening

    async def connect(self, factory: Callable[[], Any], host: str, port: int) -> tuple[Any, Any]:
        process = CURRENT.get()
        assert process is not None
        await asyncio.sleep(self.delay())
        while self.is_cut(process.machine, host):
            await asyncio.sleep(0.2)  # The system retries until the caller gives up.
        listening = self.listening.get((host, port))
        if listening is None or not listening.process.is_alive:
            raise ConnectionRefusedError(111, "Connection refused")
        client = SimulatedTransport(self, process, (host, port))
        server = SimulatedTransport(self, listening.process, (process.machine, 50_000))
        client.peer, server.peer = server, client
        client.protocol, server.protocol = (
            factory(),
            listening.process.context.run(listening.factory),
        )
        self.transports = [one for one in self.transports if not one.is_lost]
        self.transports += (client, server)
        client.protocol.connection_made(client)
        listening.process.context.copy().run(server.protocol.connection_made, server)
        return client, client.protocol

    def heal(self) -> None:
        """Let all machines reach each other, and deliver what was held up."""
        self.partitions.clear()
        self.one_way.clear()
        for transport in self.transports:
            transport.deliver_held()

    def reset_connections(self, process: Process, after: float = 0.0) -> None:
        """Notify the peers of a killed process."""
        for transport in self.transports:
            if transport.process is process:
                self.loop.call_later(after + self.delay(), transport.peer.reset)


class SimulatedTransport(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, network: Network, process: Process, peer_address: tuple[str, int]) -> None:
        super().__init__({"peername": peer_address, "sockname": (process.machine, 0)})
        self._network = network
        self.process = process
        self.peer: SimulatedTransport
        self.protocol: Any
        self.is_closing_ = False
        self.is_lost = False
        self._arrived: deque[bytes | None] = deque()
        self._held: deque[bytes | None] = deque()
        self._is_paused = False
        self._last_arrival = 0.0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return SimulatedSocket() if name == "socket" else super().get_extra_info(name, default)

    def set_write_buffer_limits(self, high: Any = None, low: Any = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.is_closing_

    def write(self, data: Any) -> None:
        if not self.is_closing_:
            self.peer._send(bytes(data))

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        self._read()

    def close(self) -> None:
        if not self.is_closing_:
            self.is_closing_ = True
            self.peer._send(None)
            self._call_soon(self._lose, None)

    abort = close

    def reset(self) -> None:
        """Lose the connection without a goodbye."""
        self.is_closing_ = True
        self._call_soon(self._lose, ConnectionResetError(104, "Connection reset by peer"))

    def deliver_held(self) -> None:
        """Send what was held up by a partition."""
        while self._held:
            self._transmit(self._held.popleft())

    def _call_soon(self, callback: Any, *args: Any) -> None:
        self._network.loop.call_soon(callback, *args, context=self.process.context)

    def _send(self, data: bytes | None) -> None:
        """Receive bytes of the peer, or None for the end of the stream, after a delay."""
        if self._held or self._network.is_cut(self.peer.process.machine, self.process.machine):
            self._held.append(data)
        else:
            self._transmit(data)

    def _transmit(self, data: bytes | None) -> None:
        network = self._network
        self._last_arrival = max(network.loop.time() + network.delay(), self._last_arrival)
        network.loop.call_at(self._last_arrival, self._arrive, data, context=self.process.context)

    def _arrive(self, data: bytes | None) -> None:
        self._arrived.append(data)
        self._read()

    def _read(self) -> None:
        while self._arrived and not self._is_paused and not self.is_lost:
            data = self._arrived.popleft()
            if data is None:
                self.is_closing_ = True
                self._lose(None)
                return
            rest = memoryview(data)
            while rest and not self.is_lost:
                buffer = self.protocol.get_buffer(-1)
                size = min(len(buffer), len(rest))
                buffer[:size] = rest[:size]
                self.protocol.buffer_updated(size)
                rest = rest[size:]

    def _lose(self, error: Exception | None) -> None:
        if not self.is_lost:
            self.is_lost = True
            self.protocol.connection_lost(error)
