"""Request pipelining: several requests of a connection in flight, responses in request order.

A request is started when all before it have taken effect, so a client that pipelines never sees a
state older than its own requests. Requests that have taken effect and still wait (OVERLAPPING, in
`dispatch`) are in flight beside later ones. Any other pending request blocks the pipeline: the
connection starts nothing until it is complete. Other connections are not affected.

A response that is ready early waits for those before it. A response that cannot be sent ends the
connection: the ones behind it must not be taken for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ottla.protocol.errors import DecodeError
from ottla.protocol.schema import Message

from ..requests.dispatch import OVERLAPPING

if TYPE_CHECKING:
    from ..observability.metrics import Metrics
    from ..requests.dispatch import Dispatcher, RequestContext, Response
    from .connection import Connection
    from .send_queue import SendQueue


class _InFlightRequest:
    """A request without a response, or one whose response waits for those before it."""

    __slots__ = ("context", "future", "is_blocking", "response")

    def __init__(
        self,
        context: RequestContext,
        future: asyncio.Future[Any] | None,
        response: Response,
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
        self.in_flight: deque[_InFlightRequest] = deque()

    def is_blocked(self) -> bool:
        """Whether the last request has not taken effect, so that no other may be started."""
        if not self.in_flight:
            return False
        request = self.in_flight[-1]
        return request.is_blocking and request.future is not None and not request.future.done()

    def handle(self, frame: bytearray, connection: Connection) -> None:
        """Start a request, and send its response if it is ready and has none before it."""
        try:
            context, body = self._dispatcher.decode(frame, connection, perf_counter())
        except DecodeError as error:
            connection.close(str(error))
            return
        response = self._dispatcher.handle(context, body)
        if isinstance(response, asyncio.Future):
            self.in_flight.append(_InFlightRequest(context, response, None))
            response.add_done_callback(self._send_ready)
        elif response is None:
            return
        elif self.in_flight:
            self.in_flight.append(_InFlightRequest(context, None, response))
        else:
            self._send(context, response)

    def close(self) -> None:
        """Drop the requests in flight: the connection is lost."""
        for request in self.in_flight:
            # A plain future only waits. A task changes something, and has to complete.
            if request.future is not None and not isinstance(request.future, asyncio.Task):
                request.future.cancel()
        self.in_flight.clear()
        # Break the reference cycle with Connection, so that it is freed without a garbage
        # collection.
        self._on_progress = _do_nothing

    def _send_ready(self, _future: asyncio.Future[Any]) -> None:
        """Send the responses that are ready, up to the first that is not."""
        in_flight = self.in_flight
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
            if request.response is not None:
                self._send(request.context, request.response)
        self._on_progress()

    def _send(self, context: RequestContext, response: Message) -> None:
        if self._transport.is_closing():
            return
        parts = self._dispatcher.encode(context, response)
        self._metrics.bytes_sent += self._send_queue.send(parts)


def _do_nothing() -> None:
    pass
