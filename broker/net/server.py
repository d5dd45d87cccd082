"""The listeners and their connections: connection limits, timeouts and graceful shutdown."""

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
from .flow import CHECK_SECONDS, Budget
from .listeners import format_host
from .unauthenticated import Unauthenticated

if TYPE_CHECKING:
    from ..broker import Broker
    from ..config.broker_config import BrokerConfig
    from ..security.listener_security import BrokerSecurity
    from .listeners import Endpoint, Listener
    from .tls_listener import TlsHandshake, TlsListener

logger = logging.getLogger(__name__)

#: Maximum bytes read at once from a connection that is between two requests.
_SCRATCH_BYTES = 128 * 1024
#: A request may take the progress timeout, and the time of its size at this rate.
_MIN_BYTES_PER_SECOND = 1024 * 1024
_CHECK_SECONDS = 1.0
#: File descriptors for other purposes than connections and segments, which may use half of all.
_RESERVED_DESCRIPTORS = 64
_MIN_CONNECTIONS = 16


class Server:
    """Accepts connections, and closes those that stall or are idle."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.dispatcher = broker.dispatcher
        self.metrics = broker.metrics
        #: The current configs; the broker replaces them when some are altered.
        self.config: BrokerConfig = broker.config
        self.scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self.budget = Budget(
            lambda: self.config.queued_max_request_bytes,
            lambda: self.config.socket_request_max_bytes,
            self._start_checking_budget,
        )
        #: The address of each listener, as host:port.
        self.addresses: list[str] = []
        #: The advertised listeners, as name://host:port.
        self.advertised: list[str] = []
        self._bound: list[tuple[Listener, socket.socket]] = []
        self._servers: list[asyncio.Server | TlsListener] = []
        self._connections: set[Connection] = set()
        self._handshakes: set[TlsHandshake] = set()
        self._unauthenticated = Unauthenticated()
        #: None if no listener uses TLS or SASL.
        self.security: BrokerSecurity | None = None
        self._max_connections = _MIN_CONNECTIONS
        self._is_stopping = False
        self._count_by_peer: Counter[str] = Counter()
        self._reading: set[Connection] = set()
        self._writing: set[Connection] = set()
        self._muted: set[Connection] = set()
        self._all_closed = asyncio.Event()
        self._check_timer: asyncio.TimerHandle | None = None
        self._budget_timer: asyncio.TimerHandle | None = None
        self._next_idle_check = 0.0

    def bind(self, listeners: Sequence[Listener]) -> None:
        """Bind the addresses of listeners without accepting connections. Raises OSError."""
        try:
            for listener in listeners:
                self._bind(listener)
        except OSError:
            self.unbind()
            raise

    def unbind(self) -> None:
        """Release the addresses."""
        for _listener, sock in self._bound:
            sock.close()
        self._bound.clear()

    @property
    def connection_count(self) -> int:
        """The number of open connections, TLS handshakes included."""
        return len(self._connections) + len(self._handshakes)

    @property
    def is_serving(self) -> bool:
        """Whether it accepts connections."""
        return bool(self._servers) and not self._is_stopping

    async def listen(self) -> None:
        """Accept connections. Raises OSError."""
        loop = asyncio.get_running_loop()
        # A log that cannot open its files goes offline, so clients must not exhaust descriptors.
        descriptors = self._broker.logs.disk.descriptor_limit()
        self._max_connections = max(descriptors // 2 - _RESERVED_DESCRIPTORS, _MIN_CONNECTIONS)
        config = self.config
        if self._max_connections < config.max_connections and config.is_static("max.connections"):
            logger.warning(
                "max.connections exceeds what the file descriptor limit allows",
                extra={
                    "max_connections": config.max_connections,
                    "allowed": self._max_connections,
                    "descriptor_limit": descriptors,
                },
            )
        backlog = self.config.socket_listen_backlog_size
        for listener, sock in self._bound:
            # Another process may have bound the address too, and listen by now. uvloop does not
            # report that.
            with naming_address(listener):
                sock.listen(backlog)
        for listener, sock in self._bound:
            security = None if self.security is None else self.security.of(listener.name)
            if security is not None and security.tls is not None:
                from .tls_listener import TlsListener  # noqa: PLC0415  # Only needed here.

                tls_listener = TlsListener(self, listener, security, sock)
                tls_listener.start()
                self._servers.append(tls_listener)
                continue
            self._servers.append(
                await loop.create_server(
                    lambda listener=listener, security=security: Connection(  # type: ignore[misc]
                        self, listener, security
                    ),
                    sock=sock,
                    backlog=backlog,
                )
            )
        self._check_timer = loop.call_later(_CHECK_SECONDS, self._check_deadlines)

    async def stop(self, seconds: float) -> None:
        """Stop accepting, respond to requests in flight for up to `seconds`, and close."""
        self._is_stopping = True
        for server in self._servers:
            server.close()
        if self._check_timer is not None:
            self._check_timer.cancel()
        if self._budget_timer is not None:
            self._budget_timer.cancel()
        self._broker.wake_all()
        for handshake in list(self._handshakes):
            handshake.abort()
        for connection in list(self._connections):
            connection.drain()
        with suppress(TimeoutError):
            if self._connections:
                self._all_closed.clear()
                await asyncio.wait_for(self._all_closed.wait(), seconds)
        for connection in list(self._connections):
            connection.abort()

    def admit(self, connection: Connection) -> bool:
        """Register a connection; return False if it exceeds the connection limits."""
        # A connection with TLS was counted for its quota when the handshake began.
        if not self._is_within_limits(connection.peer, is_new=not connection.uses_tls):
            return False
        self._connections.add(connection)
        self._count_by_peer[connection.peer] += 1
        self.metrics.connections["accepted"] += 1
        return True

    def admit_handshake(self, handshake: TlsHandshake) -> bool:
        """Register a TLS handshake, as `admit` does a connection."""
        if not self._is_within_limits(handshake.peer):
            return False
        self._handshakes.add(handshake)
        self._count_by_peer[handshake.peer] += 1
        self.add_unauthenticated(handshake)
        return True

    def remove_handshake(self, handshake: TlsHandshake) -> None:
        """Remove a handshake that is complete, or has failed."""
        if handshake in self._handshakes:
            self._handshakes.discard(handshake)
            self._unauthenticated.discard(handshake)
            self._release(handshake.peer)

    def add_unauthenticated(self, connection: Connection | TlsHandshake) -> None:
        """Limit the time of an authentication; if there are too many, close the oldest."""
        config = self.config
        deadline = (
            asyncio.get_running_loop().time() + config.connections_authentication_timeout_ms / 1000
        )
        evicted = self._unauthenticated.add(
            connection, deadline, config.max_unauthenticated_connections
        )
        if evicted is not None:
            limit = config.max_unauthenticated_connections
            self._abort(evicted, "unauthenticated", f"max.unauthenticated.connections is {limit}")

    def remove_unauthenticated(self, connection: Connection) -> None:
        """Remove a connection that has authenticated."""
        self._unauthenticated.discard(connection)

    def _is_within_limits(self, peer: str, *, is_new: bool = True) -> bool:
        config = self.config
        if self._is_stopping:
            return False  # It was accepted before the listeners were closed.
        max_connections = min(config.max_connections, self._max_connections)
        if len(self._connections) + len(self._handshakes) >= max_connections:
            reason = f"max.connections is {max_connections}"
        elif self._count_by_peer[peer] >= config.max_connections_per_ip:
            reason = f"max.connections.per.ip is {config.max_connections_per_ip}"
        elif (
            is_new
            and self.dispatcher.quotas is not None
            and not self.dispatcher.quotas.admits_connection(peer)
        ):
            reason = "the quota connection_creation_rate is exceeded"
        else:
            return True
        self.metrics.connections["refused"] += 1
        log_limited(logger, "Connection refused", extra={"peer": peer, "reason": reason})
        return False

    def _release(self, peer: str) -> None:
        self._count_by_peer[peer] -= 1
        if not self._count_by_peer[peer]:
            del self._count_by_peer[peer]

    def remove(self, connection: Connection) -> None:
        """Remove a connection that was closed."""
        if connection not in self._connections:
            return
        self._connections.discard(connection)
        self._reading.discard(connection)
        self._writing.discard(connection)
        self._muted.discard(connection)
        self._unauthenticated.discard(connection)
        self._release(connection.peer)
        if not self._connections:
            self._all_closed.set()

    def log_malformed(self, connection: Connection, reason: str) -> None:
        """Log and count a connection that is closed because of one of its requests."""
        self._log_closed(connection, "malformed", reason)

    def log_unauthenticated(self, connection: Connection, reason: str) -> None:
        """Log and count a connection that is closed because it has not authenticated."""
        self.metrics.connections["unauthenticated"] += 1
        log_limited(
            logger,
            "Authentication failed",
            extra={
                "peer": connection.peer,
                "listener": connection.listener.name,
                "reason": reason,
            },
        )

    def max_request_bytes(self, api_key: int) -> int:
        """Return the size limit for requests with this API key."""
        if api_key == PRODUCE.key:
            return self.config.socket_request_max_bytes
        return self.config.socket_other_request_max_bytes

    def progress_seconds(self, size_bytes: int) -> float:
        """Return how long a client may take to send a request of this size."""
        seconds = self.config.connections_progress_timeout_ms / 1000
        return seconds + size_bytes / _MIN_BYTES_PER_SECOND

    def abort_stalled(self, connection: Connection) -> None:
        """Close a connection whose incomplete request holds bytes that other requests wait for."""
        self._abort(connection, "stalled", "Other requests wait for the incomplete request")

    def watch_read(self, connection: Connection) -> None:
        """Check the read deadline of a connection that is in the middle of a request."""
        self._reading.add(connection)

    def watch_write(self, connection: Connection) -> None:
        """Set and check the write deadline of a connection whose client does not read."""
        loop = asyncio.get_running_loop()
        connection.write_deadline = loop.time() + self.progress_seconds(0)
        self._writing.add(connection)

    def watch_muted(self, connection: Connection) -> None:
        """Check whether a client that is not read from has left."""
        self._muted.add(connection)

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
            advertised_host = "<address the client connected to>"
        else:
            advertised_host = format_host(listener.advertised_host)
        advertised_port = listener.advertised_port or port
        self.advertised.append(f"{listener.name}://{advertised_host}:{advertised_port}")

    def _check_deadlines(self) -> None:
        """Close stalled and idle connections; called once a second."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._check_timer = loop.call_later(_CHECK_SECONDS, self._check_deadlines)
        for connection in list(self._reading):
            if connection.read_deadline == NEVER:
                self._reading.discard(connection)
            elif connection.read_deadline < now:
                self._abort(connection, "stalled", "The request was not received in time")
        for connection in list(self._writing):
            if connection.write_deadline == NEVER:
                self._writing.discard(connection)
            elif connection.has_sent_since_last_check():
                self.watch_write(connection)
            elif connection.write_deadline < now:
                self._abort(connection, "stalled", "The client does not read its responses")
        for connection in list(self._muted):
            if not connection.is_muted:
                self._muted.discard(connection)
            elif connection.has_left():
                connection.abort()
        for unauthenticated in self._unauthenticated.expired(now):
            self._unauthenticated.discard(unauthenticated)
            self._abort(unauthenticated, "unauthenticated", "Not authenticated in time")
        if now >= self._next_idle_check:
            self._close_idle(now)

    def _start_checking_budget(self) -> None:
        if self._budget_timer is None:
            loop = asyncio.get_running_loop()
            self._budget_timer = loop.call_later(CHECK_SECONDS, self._check_budget)

    def _check_budget(self) -> None:
        """Close connections that others wait for; called repeatedly while others wait."""
        self._budget_timer = None
        for charge in self.budget.stalled():
            charge.abort()
        if self.budget.waiting_count:
            self._start_checking_budget()

    def _close_idle(self, now: float) -> None:
        max_idle_seconds = self.config.connections_max_idle_ms / 1000
        self._next_idle_check = now + min(max_idle_seconds / 4, 30)
        for connection in list(self._connections):
            if connection.is_idle and now - connection.last_active > max_idle_seconds:
                self._abort(connection, "idle", f"Idle for more than {max_idle_seconds:g} s")

    def _abort(self, connection: Connection | TlsHandshake, outcome: str, reason: str) -> None:
        self._log_closed(connection, outcome, reason)
        connection.abort()

    def _log_closed(self, connection: Connection | TlsHandshake, outcome: str, reason: str) -> None:
        self.metrics.connections[outcome] += 1
        log_limited(
            logger,
            "Connection closed",
            level=logging.DEBUG if outcome == "idle" else logging.WARNING,
            extra={"peer": connection.peer, "reason": reason},
        )


@contextmanager
def naming_address(listener: Listener | Endpoint) -> Iterator[None]:
    """Add the address of a listener to OSErrors."""
    try:
        yield
    except OSError as error:
        address = f"{format_host(listener.host)}:{listener.port}"
        raise OSError(error.errno, f"cannot listen on {address}: {error.strerror}") from error
