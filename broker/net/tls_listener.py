"""Accepts connections with TLS: a connection begins when its handshake is complete.

Handshakes count as connections, and as unauthenticated ones. They are accepted here and not by the
event loop's server, which neither counts them nor says why one has failed.

A handshake begins when its whole ClientHello has arrived, which is looked at and left to OpenSSL.
Until then a connection is a socket without buffers, and closing it costs nothing. From then on it
costs a signature: a few handshakes begin in each turn of the event loop, however many clients have
sent theirs at once.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from ottla.coord.addresses import canonical_address

from ..observability.logging import log_limited
from .connection import Connection

if TYPE_CHECKING:
    from ..security.listener_security import ListenerSecurity
    from .listeners import Listener
    from .server import Server

logger = logging.getLogger(__name__)

#: Connections accepted at once, before others are served.
_ACCEPTED_AT_ONCE = 32
#: Handshakes that begin at once: each takes about a millisecond.
_BEGUN_AT_ONCE = 2
#: The header of a TLS record: its type, version and length.
_RECORD_HEADER_BYTES = 5
_MAX_RECORD_BYTES = _RECORD_HEADER_BYTES + 16 * 1024
_HANDSHAKE_RECORD = 22
_RETRY_SECONDS = 1.0
#: Accepting fails for want of these; it is tried again.
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
# OpenSSL's reasons if the first bytes are not TLS.
_NOT_TLS = frozenset(
    {
        *("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"),
        *("UNKNOWN_PROTOCOL", "UNSUPPORTED_PROTOCOL_VERSION", "UNEXPECTED_MESSAGE"),
        *("BAD_RECORD_TYPE", "INVALID_RECORD_TYPE"),
    }
)
_HTTP = frozenset({"HTTP_REQUEST", "HTTPS_PROXY_REQUEST"})


class TlsHandshake:
    """A connection until its handshake is complete.

    `on_hello` is called when the ClientHello has arrived, or something that is none; `on_lost` if
    the client closes the connection first, and None if the broker does.
    """

    def __init__(
        self,
        sock: socket.socket,
        peer: str,
        on_hello: Callable[[TlsHandshake], None],
        on_lost: Callable[[TlsHandshake, OSError | None], None],
    ) -> None:
        self.peer = peer
        self.socket = sock
        #: None until the handshake has begun.
        self.task: asyncio.Task[None] | None = None
        self._on_hello = on_hello
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._awaited_bytes = 0
        self._is_waiting = False

    def wait_for_hello(self) -> None:
        """Wait for the ClientHello. Raises OSError if the client is gone already."""
        self._await_bytes(_RECORD_HEADER_BYTES)
        self._is_waiting = True
        self._loop.add_reader(self.socket.fileno(), self._look)

    def abort(self) -> None:
        """Close at once."""
        if self.task is None:
            self._close(None)
            return
        self.task.cancel()
        # The transport has the socket, but does not have to know first.
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def _look(self) -> None:
        """Look at what has arrived: the whole ClientHello, or one that cannot be completed."""
        try:
            received = self.socket.recv(_MAX_RECORD_BYTES, socket.MSG_PEEK)
            if not received:
                raise ConnectionResetError
            needed_bytes = _hello_bytes(received)
            # If fewer bytes than were asked for can be read, no others will come.
            if len(received) < needed_bytes and self._awaited_bytes < needed_bytes:
                self._await_bytes(needed_bytes)
                return
            self._await_bytes(1)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._close(error)
            return
        self._stop_waiting()
        self._on_hello(self)

    def _close(self, error: OSError | None) -> None:
        self._stop_waiting()
        self.socket.close()
        self._on_lost(self, error)

    def _await_bytes(self, count: int) -> None:
        """Let the socket be readable when so many bytes have arrived, or it is closed."""
        self._awaited_bytes = count
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)

    def _stop_waiting(self) -> None:
        if self._is_waiting:
            self._is_waiting = False
            self._loop.remove_reader(self.socket.fileno())


def _hello_bytes(received: bytes) -> int:
    """Return the size of the record with the ClientHello, from its beginning; 0 if it is none."""
    if not received or received[0] != _HANDSHAKE_RECORD:
        return 0
    if len(received) < _RECORD_HEADER_BYTES:
        return _RECORD_HEADER_BYTES
    length = int.from_bytes(received[_RECORD_HEADER_BYTES - 2 : _RECORD_HEADER_BYTES])
    return min(_RECORD_HEADER_BYTES + length, _MAX_RECORD_BYTES)


class TlsListener:
    """Accepts the connections of one listener."""

    def __init__(
        self, server: Server, listener: Listener, security: ListenerSecurity, sock: socket.socket
    ) -> None:
        self._server = server
        self._listener = listener
        self._security = security
        self._socket = sock
        self._loop = asyncio.get_running_loop()
        self._retry: asyncio.TimerHandle | None = None
        #: Handshakes whose ClientHello has arrived.
        self._ready: deque[TlsHandshake] = deque()
        self._is_closed = False

    def start(self) -> None:
        """Start accepting."""
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket.fileno(), self._accept)

    def close(self) -> None:
        """Stop accepting. Handshakes are aborted by the server."""
        self._is_closed = True
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                sock, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                log_limited(
                    logger, "Connections not accepted", extra={"reason": error.strerror or ""}
                )
                self._loop.remove_reader(self._socket.fileno())
                self._retry = self._loop.call_later(_RETRY_SECONDS, self._resume)
                return
            self._admit(sock, canonical_address(address[0]))

    def _resume(self) -> None:
        if not self._is_closed:
            self.start()

    def _admit(self, sock: socket.socket, peer: str) -> None:
        handshake = TlsHandshake(sock, peer, self._on_hello, self._on_lost)
        if not self._server.admit_handshake(handshake):
            sock.close()
            return
        sock.setblocking(False)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            handshake.wait_for_hello()
        except OSError as error:
            sock.close()
            self._on_lost(handshake, error)

    def _on_lost(self, handshake: TlsHandshake, error: OSError | None) -> None:
        if error is not None:
            self._log_failed(handshake, error)
        self._server.remove_handshake(handshake)

    def _on_hello(self, handshake: TlsHandshake) -> None:
        self._ready.append(handshake)
        if len(self._ready) == 1:
            self._loop.call_soon(self._begin_ready)

    def _begin_ready(self) -> None:
        """Begin some of the handshakes that are ready; others are served before the next."""
        for _ in range(min(_BEGUN_AT_ONCE, len(self._ready))):
            handshake = self._ready.popleft()
            if handshake.socket.fileno() >= 0:  # It is not aborted.
                handshake.task = self._loop.create_task(self._run(handshake))
        if self._ready:
            self._loop.call_soon(self._begin_ready)

    async def _run(self, handshake: TlsHandshake) -> None:
        server, tls = self._server, self._security.tls
        assert tls is not None
        try:
            await self._loop.connect_accepted_socket(
                lambda: Connection(server, self._listener, self._security, handshake),
                handshake.socket,
                ssl=tls.context,
                ssl_handshake_timeout=server.config.connections_authentication_timeout_ms / 1000,
            )
        except OSError as error:
            self._log_failed(handshake, error)
        except asyncio.CancelledError:
            pass  # Aborted.
        finally:
            server.remove_handshake(handshake)

    def _log_failed(self, handshake: TlsHandshake, error: OSError) -> None:
        server = self._server
        reason = _reason(error)
        server.metrics.connections["handshake_failed"] += 1
        log_limited(
            logger,
            "TLS handshake failed",
            # Port scanners and health checks connect and close.
            level=logging.INFO if isinstance(error, ConnectionResetError) else logging.WARNING,
            extra={"peer": handshake.peer, "listener": self._listener.name, "reason": reason},
        )


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        if error.reason in _HTTP:
            return "the client speaks HTTP, not TLS"
        if error.reason in _NOT_TLS:
            return "the client does not speak TLS: it needs security.protocol SSL or SASL_SSL"
        return (error.reason or str(error)).replace("_", " ").lower()
    if isinstance(error, ConnectionResetError):
        return "the client closed the connection"
    return str(error.strerror or error)
