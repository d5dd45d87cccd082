"""A client's connection: frames in, and when to read them.

Reading. All connections share one scratch buffer, which is empty again after each read, so an idle
connection costs no buffer. A frame that is complete in the scratch buffer is small, and copied out
of it. A larger frame gets its own buffer, and its remainder is read straight into that: the records
of a large batch are moved once, by the kernel, into the buffer from which they are written to the
log.

Requests are pipelined: see `pipeline`. A connection that sends very many at once has some of them
handled, and then other connections are served.

Three limits, each with a config, bound a connection: the size of a request, by API; the number of
requests in flight; the bytes of responses that the client has not read. At either of the last two
the connection is not read from until it is below the limit again, and TCP slows the client down.
The server closes connections that are idle, or that stall in a request or a response.
"""

from __future__ import annotations

import asyncio
import fcntl
import select
import socket
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, cast

from ottla.coord.addresses import canonical_address
from ottla.coord.principal import ANONYMOUS, KafkaPrincipal
from ottla.protocol.errors import DecodeError
from ottla.protocol.frame import Framer

from .pipeline import RequestPipeline
from .send_queue import SendQueue

if TYPE_CHECKING:
    from ..security.listener_security import ListenerSecurity
    from ..security.sasl import SaslSession
    from .flow import Charge
    from .listeners import Listener
    from .server import Server
    from .tls_listener import TlsHandshake

#: The smallest header: API key, API version and correlation id.
_MIN_REQUEST_BYTES = 8
#: Requests up to this size are within every limit: no config can be set lower.
_UNLIMITED_REQUEST_BYTES = 1024
#: Initial buffer of an incomplete request: in proportion to what has arrived, so that a client has
#: to send what it makes the broker allocate. One MiB spares most requests a copy to a larger one.
_MIN_BUFFER_BYTES = 4096
_MAX_BUFFER_BYTES = 1024 * 1024
_BUFFER_BYTES_PER_RECEIVED_BYTE = 8
#: How long one connection may handle requests before others are served.
_TURN_SECONDS = 0.005
NEVER = float("inf")
_TCP_USER_TIMEOUT: int | None = getattr(socket, "TCP_USER_TIMEOUT", None)


class Connection(asyncio.BufferedProtocol):
    """One connection of a client, accepted by a listener of the server.

    `security` is that of the listener, if it uses TLS or SASL.
    """

    def __init__(
        self,
        server: Server,
        listener: Listener,
        security: ListenerSecurity | None = None,
        handshake: TlsHandshake | None = None,
    ) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.time
        self._transport: asyncio.Transport
        self._send_queue: SendQueue
        self._pipeline: RequestPipeline
        self.listener = listener
        self.peer = "?"
        #: Who the client has authenticated as.
        self.principal: KafkaPrincipal = ANONYMOUS
        #: The state of its authentication; None on listeners without SASL.
        self.sasl: SaslSession | None = None
        self._security = security
        self._handshake = handshake
        self.last_active = self._clock()
        #: When the request or the response in progress counts as stalled.
        self.read_deadline = NEVER
        self.write_deadline = NEVER
        self._unsent_bytes = 0
        self._framer = Framer(
            server.scratch,
            min_bytes=_MIN_REQUEST_BYTES,
            max_bytes=_UNLIMITED_REQUEST_BYTES,
            max_bytes_of=server.max_request_bytes,
        )
        #: The charge of an incomplete large request, and whether it waits for the budget.
        self._charge: Charge | None = None
        self._awaits_budget = False
        self._awaits_principal = False
        self._is_reading = True
        self._is_closing = False
        #: Called once, when the connection is lost.
        self.on_lost: list[Callable[[], None]] = []
        #: Set while the client is not read from, because it exceeded a quota.
        self._mute_timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Connection from {self.peer}>"

    @property
    def advertised(self) -> tuple[str, int]:
        """The host and port under which this client finds this broker."""
        host, port = self.listener.advertised_host, self.listener.advertised_port
        if host is None or port is None:
            # A wildcard address cannot be advertised. The one that the client connected to works.
            local_host, local_port = self._transport.get_extra_info("sockname")[:2]
            return host or local_host, port or local_port
        return host, port

    @property
    def client_host(self) -> str:
        """The client's IP address."""
        return self.peer

    @property
    def uses_tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self._security is not None and self._security.config.uses_tls

    @property
    def authentication_delay_seconds(self) -> float:
        """The time after which a failed authentication is answered."""
        return self._server.config.connection_failed_authentication_delay_ms / 1000

    @property
    def is_open(self) -> bool:
        """Whether the connection has not been closed, by either side."""
        return not self._is_closing

    @property
    def is_idle(self) -> bool:
        """Whether no request and no response is in progress.

        A client that is muted may be gone: unless `has_left`, that is not noticed until it is read
        from again.
        """
        return (
            not self._pipeline.in_flight
            and (self.is_muted or not self._framer.frame_bytes)
            and self._send_queue.is_clear()
        )

    # asyncio protocol callbacks.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register with the server, or close if that is at its limits."""
        self._transport = cast(asyncio.Transport, transport)
        self._send_queue = SendQueue(self._transport, self._resume_or_close)
        self._pipeline = RequestPipeline(
            self._server.dispatcher,
            self._server.metrics,
            self._transport,
            self._send_queue,
            self._on_progress,
        )
        peer = transport.get_extra_info("peername")
        self.peer = canonical_address(peer[0]) if peer else "?"
        if self._handshake is not None:
            self._server.remove_handshake(self._handshake)
            self._handshake = None
        if not self._server.admit(self):
            self._is_closing = True
            self._transport.abort()
            return
        self._set_socket_options()
        if self._security is not None:
            self._secure(self._security)

    def _secure(self, security: ListenerSecurity) -> None:
        """Find out who the client is, before anything else."""
        self.sasl = session = security.new_session()
        if session is not None:
            from ..security.pipeline import AuthenticatingPipeline  # noqa: PLC0415

            self._pipeline = AuthenticatingPipeline(
                self._server.dispatcher,
                self._server.metrics,
                self._transport,
                self._send_queue,
                self._on_progress,
            )
            max_bytes = security.config.get("sasl.server.max.receive.size")
            self._framer.max_bytes_of = lambda _api_key: max_bytes
            self._server.add_unauthenticated(self)
        elif security.identifies:
            self._awaits_principal = True
            self._pause_reading()
            self._server.add_unauthenticated(self)
            self._server.dispatcher.start_task(self._identify(security))

    async def _identify(self, security: ListenerSecurity) -> None:
        """Take the principal from the client's certificate."""
        principal = await security.principal_of(self._transport.get_extra_info("ssl_object"))
        if principal is None:
            self.finish("No rule of ssl.principal.mapping.rules matches the certificate")
            self.close_if_drained()
            return
        self._awaits_principal = False
        self.authenticate(principal)
        self._resume_reading()

    def get_buffer(self, _sizehint: int) -> memoryview:
        """Return the buffer for the next read."""
        return self._framer.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the requests that `nbytes` more bytes complete."""
        self.last_active = self._clock()
        self._server.metrics.bytes_received += nbytes
        if self._framer.buffer_updated(nbytes):
            self._handle_frames()
        elif self._charge is not None and not self._charge.add(nbytes):
            self._awaits_budget = True
            self._pause_reading()

    def eof_received(self) -> bool:
        """Close: Kafka clients do not half-close their connections."""
        return False

    def connection_lost(self, _error: Exception | None) -> None:
        """Release everything that belongs to the connection."""
        self._is_closing = True
        if self._mute_timer is not None:
            self._mute_timer.cancel()
            self._mute_timer = None
        self._pipeline.close()
        self._send_queue.close()
        self._framer.clear()
        charge, self._charge = self._charge, None
        if charge is not None:
            charge.close()
        self._awaits_budget = False
        callbacks, self.on_lost = self.on_lost, []
        for callback in callbacks:
            callback()
        self._server.remove(self)

    def pause_writing(self) -> None:
        """Stop sending, and so reading: the client does not read its responses."""
        self._send_queue.block()
        self._unsent_bytes = self._send_queue.unsent_bytes()
        self._server.watch_write(self)

    def resume_writing(self) -> None:
        """Continue: the client has read responses."""
        self._send_queue.unblock()
        self.write_deadline = NEVER
        self._resume_reading()

    # Called by the server and the dispatcher.

    def close(self, reason: str) -> None:
        """Close because of a malformed request, or one that cannot be answered; log the reason."""
        if self._is_closing:
            return
        self._server.log_malformed(self, reason)
        self._is_closing = True
        self._pause_reading()
        self._send_queue.release()
        if not self._send_queue:
            self._transport.close()

    def authenticate(self, principal: KafkaPrincipal) -> None:
        """Let the client in."""
        self.principal = principal
        self._framer.min_bytes = _MIN_REQUEST_BYTES
        self._framer.max_bytes_of = self._server.max_request_bytes
        self._server.remove_unauthenticated(self)

    def expect_tokens(self) -> None:
        """Accept frames of any size above 0, which are tokens and not requests."""
        self._framer.min_bytes = 1

    def finish(self, reason: str) -> None:
        """Close after the response in progress, because the client has not authenticated."""
        if not self._is_closing:
            self._server.log_unauthenticated(self, reason)
            self._is_closing = True
            self._pause_reading()

    def abort(self) -> None:
        """Close at once, without sending what is queued."""
        self._is_closing = True
        self._transport.abort()

    def mute(self, seconds: float) -> None:
        """Read nothing for some time: the client has exceeded a quota."""
        if self._is_closing:
            return
        if self._mute_timer is not None:
            if self._mute_timer.when() >= self._loop.time() + seconds:
                return
            self._mute_timer.cancel()
        self._mute_timer = self._loop.call_later(seconds, self._unmute)
        self._pause_reading()
        self._server.watch_muted(self)

    def _unmute(self) -> None:
        self._mute_timer = None
        if self._framer.frame_bytes and not self._awaits_budget:
            self._start_read_deadline(self._framer.frame_bytes - self._framer.filled_bytes)
        self._resume_or_close()

    @property
    def is_muted(self) -> bool:
        """Whether the client is not read from, because it has exceeded a quota."""
        return self._mute_timer is not None

    def has_left(self) -> bool:
        """Whether the client has closed the connection, and sent nothing that was not read.

        The event loop notices that on connections that it reads from, as all with TLS.
        """
        if sys.platform != "linux" or self.uses_tls or self._framer.has_unhandled_bytes:
            return False
        descriptor = self._transport.get_extra_info("socket").fileno()
        poll = select.poll()
        poll.register(descriptor, select.POLLRDHUP)
        return bool(poll.poll(0)) and not any(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))

    def drain(self) -> None:
        """Stop reading, send the responses of the requests in flight, and close."""
        self._is_closing = True
        self._pause_reading()
        self.close_if_drained()

    def has_sent_since_last_check(self) -> bool:
        """Whether the client has read anything since the previous call."""
        before, self._unsent_bytes = self._unsent_bytes, self._send_queue.unsent_bytes()
        return self._unsent_bytes < before

    # Frames in.

    def _handle_frames(self) -> bool:
        """Handle complete frames, up to the in-flight limit; return whether to read on."""
        try:
            return self._handle_each_frame()
        finally:
            self._send_queue.release()

    def _handle_each_frame(self) -> bool:
        framer, turn_end = self._framer, perf_counter() + _TURN_SECONDS
        pipeline = self._pipeline
        may_handle = not pipeline.is_blocked()
        while may_handle:
            try:
                frame = framer.next_frame()
            except DecodeError as error:
                self.close(str(error))
                return False
            if frame is None:
                return self._begin_frame(framer.frame_bytes)
            self.read_deadline = NEVER
            charge, self._charge = self._charge, None
            decoding = None
            if framer.unparsed_bytes:
                self._send_queue.hold()
            try:
                decoding = pipeline.handle(frame, self)
            finally:
                if charge is not None:
                    _close_after(charge, decoding)
            may_handle = self._may_read()
            if not framer.unparsed_bytes and (
                # Also if it waits, to notice a disconnect. What arrives waits, too.
                may_handle or (pipeline.is_blocked() and not self._is_closing)
            ):
                return True
            if may_handle and perf_counter() > turn_end:
                self._loop.call_soon(self._resume_reading)
                break
        framer.detach()
        self._pause_reading()
        return False

    def _begin_frame(self, size: int) -> bool:
        """Prepare to read the remainder of a frame; `size` is 0 if even its size is incomplete.

        Returns whether it may be read now.
        """
        framer = self._framer
        if size:
            self.read_deadline = NEVER
        received_bytes = framer.unparsed_bytes
        # A request that could have arrived in one read is not charged.
        if size > len(self._server.scratch):
            self._charge = self._server.budget.open(size, self._on_budget_granted, self._on_stalled)
            self._awaits_budget = not self._charge.add(received_bytes)
        if self._awaits_budget:
            framer.detach()
            self._pause_reading()
            return False
        buffer_bytes = min(received_bytes * _BUFFER_BYTES_PER_RECEIVED_BYTE, _MAX_BUFFER_BYTES)
        framer.detach(max(buffer_bytes, _MIN_BUFFER_BYTES))
        self._start_read_deadline(size)
        return True

    def _on_budget_granted(self) -> None:
        self._awaits_budget = False
        self._start_read_deadline(self._framer.frame_bytes - self._framer.filled_bytes)
        self._resume_reading()

    def _on_stalled(self) -> None:
        self._server.abort_stalled(self)

    def _start_read_deadline(self, size: int) -> None:
        if self.read_deadline == NEVER:
            self.read_deadline = self._clock() + self._server.progress_seconds(size)
            self._server.watch_read(self)

    # Flow control.

    def _may_read(self) -> bool:
        """Whether to read on: the remainder of a frame within the budget, or another request."""
        if self._is_closing or self._awaits_principal or self._mute_timer is not None:
            return False
        if self._framer.frame_bytes:
            return not self._awaits_budget
        max_in_flight = self._server.config.max_in_flight_requests_per_connection
        return (
            self._send_queue.is_clear()
            and len(self._pipeline.in_flight) < max_in_flight
            and not self._pipeline.is_blocked()
        )

    def _pause_reading(self) -> None:
        self.read_deadline = NEVER  # From here on the client waits for the broker.
        if self._is_reading:
            self._is_reading = False
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        """Handle the frames received before the pause, then read on, if the limits allow it."""
        if self._is_reading or not self._may_read():
            return
        if not self._framer.has_unhandled_bytes or self._handle_frames():
            self._is_reading = True
            self._transport.resume_reading()

    def _on_progress(self) -> None:
        self.last_active = self._clock()
        self._resume_or_close()

    def _resume_or_close(self) -> None:
        if self._is_closing:
            self.close_if_drained()
        else:
            self._resume_reading()

    def close_if_drained(self) -> None:
        """Close if no request is in flight and all responses are sent."""
        self._send_queue.release()
        if not self._pipeline.in_flight and not self._send_queue:
            self._transport.close()

    def _set_socket_options(self) -> None:
        config = self._server.config
        self._transport.set_write_buffer_limits(high=config.socket_send_queue_bytes)
        sock: socket.socket = self._transport.get_extra_info("socket")
        with suppress(OSError):  # A peer that is gone already is reported by `connection_lost`.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if _TCP_USER_TIMEOUT is not None:
                # Detects dead peers; TCP keepalive alone takes hours.
                timeout_ms = config.connections_progress_timeout_ms
                sock.setsockopt(socket.IPPROTO_TCP, _TCP_USER_TIMEOUT, timeout_ms)
            for option, size_bytes in (
                (socket.SO_SNDBUF, config.socket_send_buffer_bytes),
                (socket.SO_RCVBUF, config.socket_receive_buffer_bytes),
            ):
                if size_bytes > 0:
                    sock.setsockopt(socket.SOL_SOCKET, option, size_bytes)


def _close_after(charge: Charge, decoding: asyncio.Future[None] | None) -> None:
    """Release the charge of a request when its frame is not needed any longer."""
    if decoding is None:
        charge.close()
    else:
        charge.is_received = True
        decoding.add_done_callback(lambda _decoding: charge.close())
