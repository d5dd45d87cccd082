"""From a frame to its handler, and from the handler's answer to buffers: the one error boundary.

A handler is the function `handle` in the module of `handlers/` that is named like its api. It gets
the broker, the context of the request and the request, and gives

- a response, if it can answer at once: the hot path, for which no task is made;
- or a coroutine or future of one: the connection goes on reading, and answers in order;
- or None, if no answer is owed (Produce with acks=0).

Handlers answer what they can with error codes. What they raise is a bug, unless it is ApiError: it
is logged here, and the client is told UNKNOWN_SERVER_ERROR where the response has a place for that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from importlib import import_module
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

from ottla.protocol import registry
from ottla.protocol.codec import decode_request, encode_response
from ottla.protocol.errors import DecodeError, UnsupportedVersionError
from ottla.protocol.registry import API_VERSIONS, Api
from ottla.protocol.schema import Buffer, Message

from ..net.flow import count_elements
from .errors import EXPECTED_ERRORS, error_code_of

if TYPE_CHECKING:
    from ..broker import Broker
    from ..net.connection import Connection
    from ..observability.metrics import Histogram

logger = logging.getLogger(__name__)

#: What is served, and so advertised.
SUPPORTED_APIS = {
    api.key: api
    for api in (
        registry.PRODUCE,
        registry.FETCH,
        registry.LIST_OFFSETS,
        registry.METADATA,
        registry.OFFSET_COMMIT,
        registry.OFFSET_FETCH,
        registry.FIND_COORDINATOR,
        registry.JOIN_GROUP,
        registry.HEARTBEAT,
        registry.LEAVE_GROUP,
        registry.SYNC_GROUP,
        registry.DESCRIBE_GROUPS,
        registry.LIST_GROUPS,
        registry.API_VERSIONS,
        registry.CREATE_TOPICS,
        registry.DELETE_TOPICS,
        registry.DELETE_RECORDS,
        registry.INIT_PRODUCER_ID,
        registry.OFFSET_FOR_LEADER_EPOCH,
        registry.DESCRIBE_CONFIGS,
        registry.ALTER_CONFIGS,
        registry.DESCRIBE_LOG_DIRS,
        registry.CREATE_PARTITIONS,
        registry.DELETE_GROUPS,
        registry.INCREMENTAL_ALTER_CONFIGS,
        registry.OFFSET_DELETE,
        registry.DESCRIBE_CLUSTER,
        registry.DESCRIBE_PRODUCERS,
        registry.ALLOCATE_PRODUCER_IDS,
        registry.DESCRIBE_TOPIC_PARTITIONS,
    )
}

#: A request of this size cannot name more than a broker can look at in one go.
_MODEST_BYTES = 64 * 1024
#: A request about all partitions names them, their topics, and a few things of each.
_ELEMENTS_PER_PARTITION = 4

Response = Message | None
HandlerResult = Response | Coroutine[Any, Any, Response] | asyncio.Future[Any]
Handler = Callable[["Broker", "RequestContext", Any], HandlerResult]


class RequestContext:
    """What a handler may have to know of a request besides its body."""

    __slots__ = ("api", "client_id", "connection", "correlation_id", "started", "version")

    def __init__(
        self,
        api: Api,
        version: int,
        correlation_id: int,
        client_id: str | None,
        connection: Connection,
        started: float,
    ) -> None:
        self.api = api
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.connection = connection
        self.started = started

    def __repr__(self) -> str:
        return f"<{self.api.name} v{self.version} of {self.client_id!r}>"


class Dispatcher:
    """Finds handlers, which are imported when they are first needed, and counts."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._metrics = broker.metrics
        self._handlers: dict[int, Handler] = {}
        self._histograms: dict[int, Histogram] = {}

    def decode(
        self, frame: Buffer, connection: Connection, started: float
    ) -> tuple[RequestContext, Message | None]:
        """Read a frame. Raises DecodeError for one that cannot be read, or is not served.

        There is no body where a client asks for ApiVersions in a version that we do not know: it is
        to be told, in version 0, what there is.
        """
        try:
            header, body = decode_request(frame)
        except UnsupportedVersionError as error:
            if error.api_key != API_VERSIONS.key:
                raise
            return RequestContext(
                API_VERSIONS, 0, error.correlation_id, None, connection, started
            ), None
        api = SUPPORTED_APIS.get(header.request_api_key)
        if api is None:
            raise UnsupportedVersionError(
                header.request_api_key, header.request_api_version, header.correlation_id
            )
        if len(frame) > _MODEST_BYTES:
            self._check_is_modest(api, body)
        context = RequestContext(
            api,
            header.request_api_version,
            header.correlation_id,
            header.client_id,
            connection,
            started,
        )
        return context, body

    def _check_is_modest(self, api: Api, body: Message) -> None:
        """Refuse a request that names more things than there can be.

        Each costs its client a few bytes, and everybody else the time that it takes to look for it.
        """
        most = _ELEMENTS_PER_PARTITION * self._broker.config.broker_max_partitions
        count = count_elements(body)
        if count > most:
            raise DecodeError(f"{count} elements: no more than {most} make sense", api.name)

    def handle(
        self, context: RequestContext, body: Message | None
    ) -> Response | asyncio.Future[Response]:
        """Have a request handled; what is not a future is the answer."""
        key = context.api.key
        handler = self._handlers.get(key)
        if handler is None:
            handler = self._handlers[key] = self._find(context.api)
        try:
            handled = handler(self._broker, context, body)
        except Exception as error:  # noqa: BLE001  # the boundary
            return self._failed(context, error)
        if isinstance(handled, Message) or handled is None:
            return handled
        if isinstance(handled, asyncio.Future):
            return handled
        return self._broker.start_task(self._finish(context, handled))

    def _find(self, api: Api) -> Handler:
        if not self._broker.cluster.is_controller:
            from ..cluster.forwarding import FORWARDED, forward  # noqa: PLC0415  # only who follows needs it

            if api.key in FORWARDED:
                return forward
        handler: Handler = import_module(f".handlers.{api.module_name}", __package__).handle
        return handler

    def encode(self, context: RequestContext, answer: Message) -> list[Buffer]:
        """Give the buffers of a response, and count it."""
        try:
            parts = encode_response(answer, context.version, context.correlation_id)
        except Exception as error:  # the boundary
            logger.error("the answer to %r cannot be encoded", context, exc_info=error)
            context.connection.close(f"{context!r} has no answer")
            return []
        key = context.api.key
        histogram = self._histograms.get(key)
        if histogram is None:
            histogram = self._histograms[key] = self._metrics.histogram_of(context.api.name)
        histogram.observe(perf_counter() - context.started)
        return parts

    async def _finish(
        self, context: RequestContext, handled: Coroutine[Any, Any, Response]
    ) -> Response:
        try:
            return await handled
        except Exception as error:  # noqa: BLE001  # the boundary
            return self._failed(context, error)

    def _failed(self, context: RequestContext, error: Exception) -> Response:
        code = error_code_of(error)
        self._metrics.failures[context.api.name, code.name] += 1
        if not isinstance(error, EXPECTED_ERRORS):
            logger.error("%r failed", context, exc_info=error)
        response: Any = context.api.response
        if "error_code" in response.fields:
            return cast(Message, response(error_code=code))
        # There is no place to say it for the request as a whole.
        context.connection.close(f"{context!r} failed: {code.name}")
        return None
