"""One client's connection: frames in, requests to their handlers, responses out in order.

Reading. All connections read into one scratch buffer, which is empty again when a read has been
dealt with: an idle connection costs no buffer. A frame that is whole in the scratch is copied out
of it, being small. A larger one gets a buffer of its own, and the rest of it is read straight into
that: so the records of a large batch are moved once, from the kernel into the buffer from which
they are written to the log.

Several requests may be under way. Each is started as soon as it is read, and their responses leave
in the order of the requests: one that is ready early waits for those before it. Who sends very many
at once has some of them handled, and then others have their turn.

What bounds a connection, each with a setting: the size of a request, by api; the number of requests
under way; the bytes that the client has not taken yet. At either of the last two it is not read
from until there is room again, and TCP lets the client feel it. The server closes those that are
idle, or stall in the middle of a request or a response.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, cast

from ottla.protocol.errors import DecodeError
from ottla.protocol.frame import Framer
from ottla.protocol.schema import Message

from ..requests.dispatch import RequestContext, Response
from .send_queue import SendQueue

if TYPE_CHECKING:
    from .listeners import Listener
    from .server import Server

#: The smallest header: API key, API version and correlation id.
_MIN_REQUEST_BYTES = 8
#: Requests up to this size are within every limit: no config can be set lower.
_UNLIMITED_REQUEST_BYTES = 1024
#: Initial buffer of an incomplete request, before bytes arrived to fill it: of one that reserved
#: its size in the budget, and of any other.
_RESERVED_BUFFER_BYTES = 1024 * 1024
_BUFFER_BYTES = 4096
#: For how long the requests of one connection are handled before it is another's turn.
_TURN_SECONDS = 0.005
NEVER = float("inf")
_USER_TIMEOUT: int | None = getattr(socket, "TCP_USER_TIMEOUT", None)


class _Unanswered:
    """A request whose turn to be answered has not come."""

    __slots__ = ("answer", "context", "future")

    def __init__(self, context: RequestContext, future: asyncio.Future[Response] | None) -> None:
        self.context = context
        self.future = future
        self.answer: Response = None


class Connection(asyncio.BufferedProtocol):
    """One connection; made by the server for each client that comes."""

    def __init__(self, server: Server, listener: Listener) -> None:
        self._server = server
        self._dispatcher = server.dispatcher
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.time
        self._transport: asyncio.Transport
        self._send_queue: SendQueue
        self.listener = listener
        self.peer = "?"
        #: When it last did something, and until when what is under way must have moved on.
        self.last_active = self._clock()
        self.read_deadline = NEVER
        self.write_deadline = NEVER
        self._unsent_bytes = 0
        self._framer = Framer(
            server.scratch,
            min_bytes=_MIN_REQUEST_BYTES,
            max_bytes=_UNLIMITED_REQUEST_BYTES,
            max_bytes_of=server.max_request_bytes,
        )
        #: Bytes of the budget reserved for the incomplete request, or still to be granted.
        self._reserved_bytes = 0
        self._awaits_budget = False
        self._unanswered: deque[_Unanswered] = deque()
        self._is_reading = True
        self._is_writable = True
        self._is_closing = False

    def __repr__(self) -> str:
        return f"<Connection of {self.peer}>"

    @property
    def advertised(self) -> tuple[str, int]:
        """The address at which this client is to look for this broker."""
        host, port = self.listener.advertised_host, self.listener.advertised_port
        if host is None or port is None:
            # A wildcard has no address of its own; the one that the client came by works for it.
            own_host, own_port = self._transport.get_extra_info("sockname")[:2]
            return host or own_host, port or own_port
        return host, port

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._unanswered and not self._framer.frame_bytes and self._has_sent_all()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, if there is room for one more."""
        self._transport = cast(asyncio.Transport, transport)
        self._send_queue = SendQueue(self._transport, self._emptied)
        peer = transport.get_extra_info("peername")
        self.peer = peer[0] if peer else "?"
        if not self._server.admit(self):
            self._is_closing = True
            self._transport.abort()
            return
        config = self._server.config
        self._transport.set_write_buffer_limits(high=config.socket_send_queue_bytes)
        sock: socket.socket = transport.get_extra_info("socket")
        with suppress(OSError):  # who has gone away already will be noticed
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if _USER_TIMEOUT is not None:
                # Of who has silently gone away: a keepalive takes hours to notice.
                timeout_ms = config.connections_progress_timeout_ms
                sock.setsockopt(socket.IPPROTO_TCP, _USER_TIMEOUT, timeout_ms)
            for option, size in (
                (socket.SO_SNDBUF, config.socket_send_buffer_bytes),
                (socket.SO_RCVBUF, config.socket_receive_buffer_bytes),
            ):
                if size > 0:
                    sock.setsockopt(socket.SOL_SOCKET, option, size)

    def get_buffer(self, _sizehint: int) -> memoryview:
        """Return the buffer for the next read."""
        return self._framer.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the requests that `nbytes` more bytes complete."""
        self.last_active = self._clock()
        self._server.metrics.bytes_received += nbytes
        if self._framer.buffer_updated(nbytes):
            self._handle_frames()

    def eof_received(self) -> bool:
        """Close: a client that has nothing more to say does not listen either."""
        return False

    def connection_lost(self, _error: Exception | None) -> None:
        """Clean up: nobody is left to be answered."""
        self._is_closing = True
        for unanswered in self._unanswered:
            # One who only waits need not. A task is changing something, and must come to its end.
            future = unanswered.future
            if future is not None and not isinstance(future, asyncio.Task):
                future.cancel()
        self._unanswered.clear()
        self._send_queue.close()
        self._framer.clear()
        if self._awaits_budget:
            self._server.budget.withdraw(self._granted)
        elif self._reserved_bytes:
            self._server.budget.release(self._reserved_bytes)
        self._awaits_budget, self._reserved_bytes = False, 0
        self._server.forget(self)

    def pause_writing(self) -> None:
        """Stop reading from a client that does not read."""
        self._is_writable = False
        self._send_queue.block()
        self._unsent_bytes = self._count_unsent()
        self._server.watch_write(self)

    def resume_writing(self) -> None:
        """Go on: the client has read."""
        self._is_writable = True
        self._send_queue.unblock()
        self.write_deadline = NEVER
        self._go_on()

    # What the server and the dispatcher call.

    def close(self, reason: str) -> None:
        """Close, and say why: the client broke the rules, or we cannot answer it."""
        if not self._is_closing:
            self._server.note_malformed(self, reason)
            self._close()

    def abort(self) -> None:
        """Close at once, with whatever is under way."""
        self._is_closing = True
        self._transport.abort()

    def drain(self) -> None:
        """Read no more, answer what is under way, then close."""
        self._is_closing = True
        self._stop_reading()
        self._close_if_done()

    def has_written_since(self) -> bool:
        """Whether the client has taken anything since this was last asked."""
        before, self._unsent_bytes = self._unsent_bytes, self._count_unsent()
        return self._unsent_bytes < before

    # Reading.

    def _handle_frames(self) -> bool:
        """Handle complete frames, up to the in-flight limit; return whether to read on."""
        framer, turn_end = self._framer, perf_counter() + _TURN_SECONDS
        while True:
            try:
                frame = framer.next_frame()
            except DecodeError as error:
                self.close(str(error))
                return False
            if frame is None:
                return self._begin_frame(framer.frame_bytes)
            self.read_deadline = NEVER
            reserved, self._reserved_bytes = self._reserved_bytes, 0
            try:
                self._receive(frame)
            finally:
                if reserved:
                    self._server.budget.release(reserved)
            if not self._may_read():
                break
            if not framer.unparsed_bytes:
                return True
            if perf_counter() > turn_end:
                self._loop.call_soon(self._go_on)
                break
        framer.detach()
        self._stop_reading()
        return False

    def _begin_frame(self, size: int) -> bool:
        """Prepare to read the remainder of a frame; `size` is 0 if even its size is incomplete.

        Returns whether it may be read now.
        """
        if size:
            self.read_deadline = NEVER
        buffer_bytes = _BUFFER_BYTES
        # A request that could have arrived in one read needs no reservation.
        if size > len(self._server.scratch):
            buffer_bytes = _RESERVED_BUFFER_BYTES
            self._reserved_bytes = size
            self._awaits_budget = not self._server.budget.reserve(size, self._granted)
        if self._awaits_budget:
            self._framer.detach()
            self._stop_reading()
            return False
        self._framer.detach(buffer_bytes)
        self._expect(size)
        return True

    def _granted(self) -> None:
        self._awaits_budget = False
        self._framer.grow(_RESERVED_BUFFER_BYTES)
        self._expect(self._reserved_bytes)
        self._go_on()

    def _expect(self, size: int) -> None:
        """Let a frame that has begun be complete in time."""
        if self.read_deadline == NEVER:
            self.read_deadline = self._clock() + self._server.time_for(size)
            self._server.watch_read(self)

    def _may_read(self) -> bool:
        """Whether more may come: the rest of a frame that was let in, or else another request."""
        if self._is_closing:
            return False
        if self._framer.frame_bytes:
            return not self._awaits_budget
        most = self._server.config.max_in_flight_requests_per_connection
        return self._has_sent_all() and len(self._unanswered) < most

    def _stop_reading(self) -> None:
        self.read_deadline = NEVER  # from now on it is we who keep it waiting
        if self._is_reading:
            self._is_reading = False
            self._transport.pause_reading()

    def _go_on(self) -> None:
        """Take up what was left when the connection had to wait, if it need not any more."""
        if self._is_reading or not self._may_read():
            return
        if not self._framer.unparsed_bytes or self._handle_frames():
            self._is_reading = True
            self._transport.resume_reading()

    # Requests and responses.

    def _receive(self, frame: bytearray) -> None:
        try:
            context, body = self._dispatcher.decode(frame, self, perf_counter())
        except DecodeError as error:
            self.close(str(error))
            return
        answer = self._dispatcher.handle(context, body)
        if isinstance(answer, asyncio.Future):
            self._unanswered.append(_Unanswered(context, answer))
            answer.add_done_callback(self._answered)
        elif answer is None:
            return
        elif self._unanswered:
            waiting = _Unanswered(context, None)
            waiting.answer = answer
            self._unanswered.append(waiting)
        else:
            self._send(context, answer)

    def _answered(self, _future: asyncio.Future[Response]) -> None:
        """Send all responses whose turn has come."""
        unanswered = self._unanswered
        while unanswered:
            first = unanswered[0]
            if first.future is not None:
                if not first.future.done():
                    break
                first.answer = self._dispatcher.result(first.context, first.future)
            unanswered.popleft()
            if first.answer is not None:
                self._send(first.context, first.answer)
                self.last_active = self._clock()
        self._emptied()

    def _emptied(self) -> None:
        """Go on, if all that is ready has been handed over."""
        if self._is_closing:
            self._close_if_done()
        else:
            self._go_on()

    def _has_sent_all(self) -> bool:
        return self._is_writable and not self._send_queue

    def _count_unsent(self) -> int:
        return self._transport.get_write_buffer_size() + self._send_queue.size_bytes

    def _send(self, context: RequestContext, answer: Message) -> None:
        if self._transport.is_closing():
            return  # one before it had no answer, and they come in order or not at all
        parts = self._dispatcher.encode(context, answer)
        self._server.metrics.bytes_sent += self._send_queue.send(parts)

    def _close(self) -> None:
        self._is_closing = True
        self._stop_reading()
        if not self._send_queue:
            self._transport.close()

    def _close_if_done(self) -> None:
        if not self._unanswered and not self._send_queue:
            self._transport.close()
