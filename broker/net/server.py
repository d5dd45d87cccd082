"""The listeners, and all connections that came by them: limits, time-outs, and an orderly end."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from ottla.protocol.registry import PRODUCE

from ..observability.logging import log_limited
from .connection import NEVER, Connection
from .flow import Budget
from .listeners import format_host

if TYPE_CHECKING:
    from ..broker import Broker
    from ..config.broker_config import BrokerConfig
    from .listeners import Endpoint, Listener

logger = logging.getLogger(__name__)

#: What is read at once, at most, of a connection that is between two requests.
_SCRATCH_BYTES = 128 * 1024
#: How slow a request may come, beyond the time-out that all have.
_SLOWEST_BYTES_PER_SECOND = 1024 * 1024
_WATCH_SECONDS = 1.0
#: Descriptors that are neither for segments, which may take half of all, nor for connections.
_OTHER_DESCRIPTORS = 64
_FEWEST_CONNECTIONS = 16


class Server:
    """Accepts connections and looks after them."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.dispatcher = broker.dispatcher
        self.metrics = broker.metrics
        #: The settings in force; the broker replaces them when some are altered.
        self.config: BrokerConfig = broker.config
        self.scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self.budget = Budget(lambda: self.config.queued_max_request_bytes)
        #: What each listener listens to, as host:port.
        self.addresses: list[str] = []
        #: What clients are told, as name://host:port.
        self.advertised: list[str] = []
        self._bound: list[tuple[Listener, socket.socket]] = []
        self._servers: list[asyncio.Server] = []
        self._connections: set[Connection] = set()
        self._most = _FEWEST_CONNECTIONS
        self._is_stopping = False
        self._by_peer: Counter[str] = Counter()
        self._reading: set[Connection] = set()
        self._writing: set[Connection] = set()
        self._empty = asyncio.Event()
        self._watch: asyncio.TimerHandle | None = None
        self._next_idle_look = 0.0

    def bind(self, listeners: Sequence[Listener]) -> None:
        """Take the addresses, without letting anybody in yet. Raises OSError."""
        try:
            for listener in listeners:
                self._bind(listener)
        except OSError:
            self.unbind()
            raise

    def unbind(self) -> None:
        """Give the addresses back."""
        for _listener, sock in self._bound:
            sock.close()
        self._bound.clear()

    @property
    def connection_count(self) -> int:
        """How many connections there are."""
        return len(self._connections)

    async def listen(self) -> None:
        """Let clients in. Raises OSError."""
        loop = asyncio.get_running_loop()
        # A log that cannot open its files goes offline, and no client must be able to cause that.
        descriptors = self._broker.logs.disk.descriptor_limit()
        self._most = max(descriptors // 2 - _OTHER_DESCRIPTORS, _FEWEST_CONNECTIONS)
        if self._most < self.config.max_connections and self.config.is_static("max.connections"):
            logger.warning(
                "there will be fewer connections than max.connections: descriptors are scarce",
                extra={"connections": self._most, "descriptors": descriptors},
            )
        backlog = self.config.socket_listen_backlog_size
        for listener, sock in self._bound:
            # Who else had bound the address may listen there by now, which uvloop keeps to itself.
            with naming_address(listener):
                sock.listen(backlog)
        for listener, sock in self._bound:
            self._servers.append(
                await loop.create_server(
                    lambda listener=listener: Connection(self, listener),  # type: ignore[misc]
                    sock=sock,
                    backlog=backlog,
                )
            )
        self._watch = loop.call_later(_WATCH_SECONDS, self._look_after)

    async def stop(self, seconds: float) -> None:
        """Let nobody in, answer what is under way for so long, and close."""
        self._is_stopping = True
        for server in self._servers:
            server.close()
        if self._watch is not None:
            self._watch.cancel()
        self._broker.wake_all()
        for connection in list(self._connections):
            connection.drain()
        with suppress(TimeoutError):
            if self._connections:
                self._empty.clear()
                await asyncio.wait_for(self._empty.wait(), seconds)
        for connection in list(self._connections):
            connection.abort()

    def admit(self, connection: Connection) -> bool:
        """Whether there is room for one more."""
        peer, config = connection.peer, self.config
        if self._is_stopping:
            return False  # it was on its way in already
        if len(self._connections) >= min(config.max_connections, self._most):
            reason = f"max.connections is {min(config.max_connections, self._most)}"
        elif self._by_peer[peer] >= config.max_connections_per_ip:
            reason = f"max.connections.per.ip is {config.max_connections_per_ip}"
        else:
            self._connections.add(connection)
            self._by_peer[peer] += 1
            self.metrics.connections["accepted"] += 1
            return True
        self.metrics.connections["refused"] += 1
        log_limited(logger, "a connection is refused", extra={"peer": peer, "reason": reason})
        return False

    def forget(self, connection: Connection) -> None:
        """Note that a connection is gone."""
        if connection not in self._connections:
            return
        self._connections.discard(connection)
        self._reading.discard(connection)
        self._writing.discard(connection)
        self._by_peer[connection.peer] -= 1
        if not self._by_peer[connection.peer]:
            del self._by_peer[connection.peer]
        if not self._connections:
            self._empty.set()

    def note_malformed(self, connection: Connection, reason: str) -> None:
        """Say that a client broke the rules."""
        self.metrics.connections["malformed"] += 1
        log_limited(
            logger, "a connection is closed", extra={"peer": connection.peer, "reason": reason}
        )

    def max_request_bytes(self, api_key: int) -> int:
        """Return the size limit for requests with this API key."""
        if api_key == PRODUCE.key:
            return self.config.socket_request_max_bytes
        return self.config.socket_other_request_max_bytes

    def time_for(self, size_bytes: int) -> float:
        """Give the seconds in which a request of this size must have come."""
        seconds = self.config.connections_progress_timeout_ms / 1000
        return seconds + size_bytes / _SLOWEST_BYTES_PER_SECOND

    def watch_read(self, connection: Connection) -> None:
        """Look after a connection in the middle of a request."""
        self._reading.add(connection)

    def watch_write(self, connection: Connection) -> None:
        """Look after a connection whose client does not read."""
        loop = asyncio.get_running_loop()
        connection.write_deadline = loop.time() + self.time_for(0)
        self._writing.add(connection)

    def _bind(self, listener: Listener) -> None:
        family = socket.AF_INET6 if ":" in listener.host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        self._bound.append((listener, sock))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with naming_address(listener):
            sock.bind((listener.host, listener.port))
        host, port = sock.getsockname()[:2]
        self.addresses.append(f"{format_host(host)}:{port}")
        if listener.advertised_host is None:
            advertised_host = "<the address a client connects to>"
        else:
            advertised_host = format_host(listener.advertised_host)
        advertised_port = listener.advertised_port or port
        self.advertised.append(f"{listener.name}://{advertised_host}:{advertised_port}")

    def _look_after(self) -> None:
        """Close connections that stall or idle, once a second."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._watch = loop.call_later(_WATCH_SECONDS, self._look_after)
        for connection in list(self._reading):
            if connection.read_deadline == NEVER:
                self._reading.discard(connection)
            elif connection.read_deadline < now:
                self._end(connection, "stalled", "a request did not come to its end in time")
        for connection in list(self._writing):
            if connection.write_deadline == NEVER:
                self._writing.discard(connection)
            elif connection.has_written_since():
                self.watch_write(connection)
            elif connection.write_deadline < now:
                self._end(connection, "stalled", "responses are not read")
        if now >= self._next_idle_look:
            self._close_idle(now)

    def _close_idle(self, now: float) -> None:
        limit = self.config.connections_max_idle_ms / 1000
        self._next_idle_look = now + min(limit / 4, 30)
        for connection in list(self._connections):
            if connection.is_idle and now - connection.last_active > limit:
                self._end(connection, "idle", f"idle for more than {limit:g} s")

    def _end(self, connection: Connection, kind: str, reason: str) -> None:
        self.metrics.connections[kind] += 1
        log_limited(
            logger, "a connection is closed", extra={"peer": connection.peer, "reason": reason}
        )
        connection.abort()


@contextmanager
def naming_address(listener: Listener | Endpoint) -> Iterator[None]:
    """Let an error of the operating system name the address that it is about."""
    try:
        yield
    except OSError as error:
        place = f"{format_host(listener.host)}:{listener.port}"
        raise OSError(error.errno, f"cannot listen on {place}: {error.strerror}") from error
