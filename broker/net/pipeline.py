"""Request pipelining: several requests of a connection in flight, responses in request order.

A request is started when all before it have taken effect, so a client that pipelines never sees a
state older than its own requests. Requests that have taken effect and still wait (OVERLAPPING, in
`dispatch`) are in flight beside later ones. Any other pending request blocks the pipeline: the
connection starts nothing until it is complete. Other connections are not affected.

A response that is ready early waits for those before it. A response that cannot be sent ends the
connection: the ones behind it must not be taken for it.

A large request is decoded in a thread, and blocks the pipeline until it has taken effect.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ottla.protocol.errors import DecodeError
from ottla.protocol.schema import Buffer, Message

from ..requests.dispatch import LARGE_BYTES, OVERLAPPING, SLICED

if TYPE_CHECKING:
    from ..observability.metrics import Metrics
    from ..requests.dispatch import Dispatcher, RequestContext, Response
    from .connection import Connection
    from .send_queue import SendQueue


class InFlightRequest:
    """A request without a response, or one whose response waits for those before it."""

    __slots__ = ("context", "future", "is_blocking", "response")

    def __init__(
        self,
        context: RequestContext,
        future: asyncio.Future[Any] | None,
        response: Response | list[Buffer],
    ) -> None:
        self.context = context
        self.future = future
        self.response = response
        # A task has not taken effect yet. What takes effect at once and then waits is a future.
        self.is_blocking = context.api.key not in OVERLAPPING or isinstance(future, asyncio.Task)


class RequestPipeline:
    """Handles the requests of a connection. `on_progress` is called when a request completed."""

    __slots__ = (
        "_dispatcher",
        "_metrics",
        "_on_progress",
        "_send_queue",
        "_transport",
        "in_flight",
    )

    def __init__(
        self,
        dispatcher: Dispatcher,
        metrics: Metrics,
        transport: asyncio.Transport,
        send_queue: SendQueue,
        on_progress: Callable[[], None],
    ) -> None:
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._transport = transport
        self._send_queue = send_queue
        self._on_progress = on_progress
        self.in_flight: deque[InFlightRequest] = deque()

    def is_blocked(self) -> bool:
        """Whether the last request has not taken effect, so that no other may be started."""
        if not self.in_flight:
            return False
        request = self.in_flight[-1]
        return request.is_blocking and request.future is not None and not request.future.done()

    def handle(self, frame: bytearray, connection: Connection) -> asyncio.Future[None] | None:
        """Start a request, and send its response if it is ready and has none before it.

        Returns a future if the frame is large: it is complete when the frame was decoded.
        """
        received_at = perf_counter()
        if len(frame) > LARGE_BYTES:
            large = self._dispatcher.large_request(frame, connection, received_at)
            if large is not None:
                return self._handle_large(large, frame)
        try:
            context, body = self._dispatcher.decode(frame, connection, received_at)
        except DecodeError as error:
            connection.close(str(error))
            return None
        response = self._dispatcher.handle(context, body)
        if isinstance(response, asyncio.Future):
            self.in_flight.append(InFlightRequest(context, response, None))
            response.add_done_callback(self._send_ready)
        elif response is None:
            return None
        elif self.in_flight:
            self.in_flight.append(InFlightRequest(context, None, response))
        else:
            self._send(context, response)
        return None

    def _handle_large(self, context: RequestContext, frame: bytearray) -> asyncio.Future[None]:
        decoded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = self._dispatcher.start_task(self._run_large(context, frame, decoded))
        self.in_flight.append(InFlightRequest(context, task, None))
        task.add_done_callback(self._send_ready)
        return decoded

    async def _run_large(
        self, context: RequestContext, frame: bytearray, decoded: asyncio.Future[None]
    ) -> list[Buffer] | asyncio.Future[Any] | None:
        """Handle a large request; return its encoded response, or a future that only waits."""
        dispatcher, connection = self._dispatcher, context.connection
        async with dispatcher.large_request_lock:
            try:
                context, body = await dispatcher.decode_in_thread(
                    frame, connection, context.received_at
                )
            except DecodeError as error:
                connection.close(str(error))
                return None
            finally:
                decoded.set_result(None)
            if not connection.is_open:
                return None
            response = dispatcher.handle(context, body)
            del body
            if context.api.key in SLICED:
                if isinstance(response, asyncio.Task):
                    await asyncio.wait([response])
                    response = dispatcher.result(context, response)
                if isinstance(response, Message):
                    return await dispatcher.encode_in_thread(context, response)
        while isinstance(response, asyncio.Future):
            if context.api.key in OVERLAPPING and not isinstance(response, asyncio.Task):
                if not context.connection.is_open:
                    response.cancel()
                return self._encode_later(context, response)
            await asyncio.wait([response])
            response = dispatcher.result(context, response)
        return None if response is None else await dispatcher.encode_in_thread(context, response)

    def _encode_later(
        self, context: RequestContext, response: asyncio.Future[Any]
    ) -> asyncio.Future[Any]:
        """Return a future of the encoded response, which is encoded in a thread."""
        encoded = asyncio.get_running_loop().create_future()
        encoded.add_done_callback(lambda _encoded: response.cancel())

        async def encode() -> None:
            await asyncio.wait([response])
            result = self._dispatcher.result(context, response)
            parts = None
            if isinstance(result, Message):
                parts = await self._dispatcher.encode_in_thread(context, result)
            if not encoded.done():
                encoded.set_result(parts)

        self._dispatcher.start_task(encode())
        return encoded

    def close(self) -> None:
        """Drop the requests in flight: the connection is lost."""
        for request in self.in_flight:
            # A plain future only waits. A task changes something, and has to complete; what it
            # returns may be a future that only waits.
            future = request.future
            if isinstance(future, asyncio.Task):
                future = self._future_of(future)
            if future is not None:
                future.cancel()
        self.in_flight.clear()
        # Break the reference cycle with Connection, so that it is freed without a garbage
        # collection.
        self._on_progress = _do_nothing

    @staticmethod
    def _future_of(task: asyncio.Task[Any]) -> asyncio.Future[Any] | None:
        if not task.done() or task.cancelled() or task.exception() is not None:
            return None
        result = task.result()
        return result if isinstance(result, asyncio.Future) else None

    def _send_ready(self, _future: asyncio.Future[Any]) -> None:
        """Send the responses that are ready, up to the first that is not."""
        in_flight = self.in_flight
        if len(in_flight) > 1:
            self._send_queue.hold()
        while in_flight:
            request = in_flight[0]
            if request.future is not None:
                if not request.future.done():
                    break
                result = self._dispatcher.result(request.context, request.future)
                if isinstance(result, asyncio.Future):
                    request.future = result
                    request.is_blocking = request.context.api.key not in OVERLAPPING
                    result.add_done_callback(self._send_ready)
                    break
                request.response = result
            in_flight.popleft()
            if isinstance(request.response, list):
                self._send_parts(request.response)
            elif request.response is not None:
                self._send(request.context, request.response)
        self._send_queue.release()
        self._on_progress()

    def _send(self, context: RequestContext, response: Message) -> None:
        if not self._transport.is_closing():
            parts = self._dispatcher.encode(context, response)
            self._metrics.bytes_sent += self._send_queue.send(parts)

    def _send_parts(self, parts: list[Buffer]) -> None:
        if not self._transport.is_closing():
            self._metrics.bytes_sent += self._send_queue.send(parts)


def _do_nothing() -> None:
    pass
