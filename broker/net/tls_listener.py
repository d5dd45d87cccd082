"""Accepts connections with TLS: a connection begins when its handshake is complete.

Handshakes count as connections, and as unauthenticated ones. They are accepted here and not by the
event loop's server, which neither counts them nor says why one has failed.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING

from ..observability.logging import log_limited
from .connection import Connection

if TYPE_CHECKING:
    from ..security.listener_security import ListenerSecurity
    from .listeners import Listener
    from .server import Server

logger = logging.getLogger(__name__)

#: Connections accepted at once, before others are served.
_ACCEPTED_AT_ONCE = 32
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
    """A connection until its handshake is complete."""

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self.peer = peer
        self._socket = sock
        self.task: asyncio.Task[None] | None = None

    def abort(self) -> None:
        """Close at once."""
        if self.task is not None:
            self.task.cancel()
        # The transport has the socket, but does not have to know first.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)


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
            self._begin(sock, address[0])

    def _resume(self) -> None:
        if not self._is_closed:
            self.start()

    def _begin(self, sock: socket.socket, peer: str) -> None:
        handshake = TlsHandshake(sock, peer)
        if not self._server.admit_handshake(handshake):
            sock.close()
            return
        sock.setblocking(False)
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        handshake.task = self._loop.create_task(self._run(handshake, sock))

    async def _run(self, handshake: TlsHandshake, sock: socket.socket) -> None:
        server, tls = self._server, self._security.tls
        assert tls is not None
        try:
            await self._loop.connect_accepted_socket(
                lambda: Connection(server, self._listener, self._security, handshake),
                sock,
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
