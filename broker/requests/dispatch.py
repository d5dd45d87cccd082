"""From a frame to its handler, and from the handler's response to buffers: the error boundary.

The handler of an API is the function `handle` in the module of `handlers/` with the API's name. It
is called with the broker, the request's context and the request, and returns one of

- a response, if it can answer at once: the hot path, which creates no task;
- a coroutine or a future of a response: the next request of the connection is started when it is
  complete, because it may change something that the next request reads;
- of the APIs in OVERLAPPING, a future of a response that has taken effect and only waits: the next
  request is started at once. Their coroutines have not taken effect, and may return such a future;
- None, if the client expects no response (Produce with acks=0).

Responses are sent in request order.

Handlers catch EXPECTED_ERRORS and return error codes. Any other exception is a bug: it is logged
here, and the client gets UNKNOWN_SERVER_ERROR, or a closed connection if the response has no
top-level error code.

A large request other than Produce may name tens of thousands of partitions, which take longer to
decode than others should wait. It is decoded in a thread, and so is its response encoded; nothing
else of its connection is started in the meantime. Produce has few elements, and is decoded at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from struct import Struct
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ottla.protocol import registry
from ottla.protocol.codec import decode_request, encode_response
from ottla.protocol.errors import DecodeError, ErrorCode, UnsupportedVersionError
from ottla.protocol.registry import API_VERSIONS, Api
from ottla.protocol.schema import Buffer, Message

from ..observability.logging import log_limited
from .errors import EXPECTED_ERRORS, error_code_of

if TYPE_CHECKING:
    from ottla.coord.principal import KafkaPrincipal
    from ottla.coord.quotas import QuotaEntity, Quotas

    from ..broker import Broker
    from ..cluster.announcer import Announcer
    from ..net.connection import Connection
    from ..observability.metrics import Histogram
    from .quotas import QuotaManager, RequestUsage

logger = logging.getLogger(__name__)

#: The APIs that this broker handles, as ApiVersions returns them.
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
        registry.SASL_HANDSHAKE,
        registry.API_VERSIONS,
        registry.CREATE_TOPICS,
        registry.DELETE_TOPICS,
        registry.DELETE_RECORDS,
        registry.INIT_PRODUCER_ID,
        registry.OFFSET_FOR_LEADER_EPOCH,
        registry.ADD_PARTITIONS_TO_TXN,
        registry.ADD_OFFSETS_TO_TXN,
        registry.END_TXN,
        registry.WRITE_TXN_MARKERS,
        registry.TXN_OFFSET_COMMIT,
        registry.DESCRIBE_ACLS,
        registry.CREATE_ACLS,
        registry.DELETE_ACLS,
        registry.DESCRIBE_CONFIGS,
        registry.ALTER_CONFIGS,
        registry.ALTER_REPLICA_LOG_DIRS,
        registry.DESCRIBE_LOG_DIRS,
        registry.SASL_AUTHENTICATE,
        registry.CREATE_PARTITIONS,
        registry.DELETE_GROUPS,
        registry.ELECT_LEADERS,
        registry.INCREMENTAL_ALTER_CONFIGS,
        registry.ALTER_PARTITION_REASSIGNMENTS,
        registry.LIST_PARTITION_REASSIGNMENTS,
        registry.OFFSET_DELETE,
        registry.DESCRIBE_CLIENT_QUOTAS,
        registry.ALTER_CLIENT_QUOTAS,
        registry.DESCRIBE_USER_SCRAM_CREDENTIALS,
        registry.ALTER_USER_SCRAM_CREDENTIALS,
        registry.DESCRIBE_QUORUM,
        registry.UPDATE_FEATURES,
        registry.ENVELOPE,
        registry.DESCRIBE_CLUSTER,
        registry.DESCRIBE_PRODUCERS,
        registry.BROKER_REGISTRATION,
        registry.BROKER_HEARTBEAT,
        registry.CONSUMER_GROUP_HEARTBEAT,
        registry.CONSUMER_GROUP_DESCRIBE,
        registry.UNREGISTER_BROKER,
        registry.DESCRIBE_TRANSACTIONS,
        registry.LIST_TRANSACTIONS,
        registry.ALLOCATE_PRODUCER_IDS,
        registry.LIST_CONFIG_RESOURCES,
        registry.DESCRIBE_TOPIC_PARTITIONS,
        registry.SHARE_GROUP_HEARTBEAT,
        registry.SHARE_GROUP_DESCRIBE,
        registry.SHARE_FETCH,
        registry.SHARE_ACKNOWLEDGE,
        registry.READ_SHARE_GROUP_STATE,
        registry.WRITE_SHARE_GROUP_STATE,
        registry.DESCRIBE_SHARE_GROUP_OFFSETS,
        registry.ALTER_SHARE_GROUP_OFFSETS,
        registry.DELETE_SHARE_GROUP_OFFSETS,
    )
}

#: The APIs whose requests may be in flight when the next request of their connection is started: a
#: Fetch that waits for records, and a Produce whose records are appended and wait for a flush.
OVERLAPPING = frozenset((registry.PRODUCE.key, registry.FETCH.key, registry.SHARE_FETCH.key))

#: The APIs whose large requests are handled in slices, without waiting for anything else.
SLICED = frozenset(
    (registry.FETCH.key, registry.OFFSET_FOR_LEADER_EPOCH.key, registry.OFFSET_FETCH.key)
)

#: Characters of a client id in the log; it may have 32,767.
_MAX_LOGGED_CLIENT_ID = 128
#: The APIs that a broker handles before it knows that no other process has its id: those that other
#: brokers use to tell it so.
_UNCONFIRMED_APIS = frozenset(
    (
        registry.API_VERSIONS.key,
        registry.SASL_HANDSHAKE.key,
        registry.SASL_AUTHENTICATE.key,
        registry.BROKER_HEARTBEAT.key,
    )
)
#: Smaller requests cannot name enough topics or partitions to block the event loop for long.
_UNCHECKED_BYTES = 64 * 1024
#: Requests above this size are decoded in a thread, except Produce.
LARGE_BYTES = 128 * 1024
_HEADER_START = Struct(">hhi")
#: A request about all partitions names them, their topics, and a few more elements for each.
_ELEMENTS_PER_PARTITION = 4

T = TypeVar("T")

Response = Message | None
HandlerResult = (
    Response | Coroutine[Any, Any, "Response | asyncio.Future[Any]"] | asyncio.Future[Any]
)
Handler = Callable[["Broker", "RequestContext", Any], HandlerResult]


class RequestContext:
    """The header of a request, the connection it came from, and when it was received."""

    __slots__ = (
        "api",
        "client_id",
        "connection",
        "correlation_id",
        "decode_seconds",
        "received_at",
        "size_bytes",
        "usage",
        "version",
    )

    #: Whether another broker forwards the request for its client.
    is_forwarded = False

    def __init__(
        self,
        api: Api,
        version: int,
        correlation_id: int,
        client_id: str | None,
        connection: Connection,
        received_at: float,
    ) -> None:
        self.api = api
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.connection = connection
        #: As of `time.perf_counter`.
        self.received_at = received_at
        #: The size of the frame; 0 if it is not known.
        self.size_bytes = 0
        #: What counts for the quotas of the client; None without quotas.
        self.usage: RequestUsage | None = None
        #: How long a thread took to decode the request; None if it was decoded when received.
        self.decode_seconds: float | None = None

    @property
    def principal(self) -> KafkaPrincipal:
        """Who the request comes from."""
        return self.connection.principal

    @property
    def client_host(self) -> str:
        """The IP address that the request comes from."""
        return self.connection.client_host

    def error_response(self, code: ErrorCode) -> Response:
        """Return a response with a top-level error; None if this version has no place for one."""
        response: Any = self.api.response
        field = response.fields.get("error_code")
        if field is None or not field.exists_in(self.version):
            return None
        return cast(Message, response(error_code=code))

    def __repr__(self) -> str:
        return f"<{self.api.name} v{self.version} client_id={self._short_client_id()!r}>"

    def _short_client_id(self) -> str | None:
        return self.client_id and self.client_id[:_MAX_LOGGED_CLIENT_ID]

    def log_fields(self) -> dict[str, object]:
        """Return the fields that identify the request in the log."""
        return {
            "api": self.api.name,
            "api_version": self.version,
            "correlation_id": self.correlation_id,
            "client_id": self._short_client_id(),
            "peer": self.connection.peer,
        }


class ForwardedContext(RequestContext):
    """A request that another broker forwards for its client: its principal and host count."""

    __slots__ = ("_client_host", "_principal")

    is_forwarded = True

    def __init__(
        self, outer: RequestContext, inner: RequestContext, principal: KafkaPrincipal, host: str
    ) -> None:
        super().__init__(
            inner.api,
            inner.version,
            inner.correlation_id,
            inner.client_id,
            outer.connection,
            outer.received_at,
        )
        self._principal = principal
        self._client_host = host

    @property
    def principal(self) -> KafkaPrincipal:
        """The client of the other broker."""
        return self._principal

    @property
    def client_host(self) -> str:
        """The IP address of the client of the other broker."""
        return self._client_host


class Dispatcher:
    """Decodes requests, calls their handlers, and encodes their responses.

    Handlers are imported on first use.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._metrics = broker.metrics
        self._handlers: dict[int, Handler] = {}
        self._histograms: dict[int, Histogram] = {}
        #: Knows whether another process may have this broker's id; None in other clusters.
        self.announcer: Announcer | None = None
        #: The entities that have quotas, of the metadata image.
        self.quota_entities: Mapping[QuotaEntity, Quotas] = {}
        self._quotas: QuotaManager | None = None
        # A single thread: threads that compute take turns with the event loop's, and the more of
        # them there are, the longer it waits.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="decoder")
        #: Held while a large request is decoded, and handled if that takes slices. A decoded
        #: request may take ten times the memory of its frame: one at a time.
        self.large_request_lock = asyncio.Lock()

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()

    def large_request(
        self, frame: Buffer, connection: Connection, received_at: float
    ) -> RequestContext | None:
        """Return the context of a request above LARGE_BYTES that is to be decoded in a thread.

        The client id is not known yet. Returns None if it is to be decoded at once.
        """
        key, version, correlation_id = _HEADER_START.unpack_from(frame)
        api = SUPPORTED_APIS.get(key)
        if api is None or api is registry.PRODUCE:
            return None
        return RequestContext(api, version, correlation_id, None, connection, received_at)

    def start_task(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a task that the broker waits for when it stops."""
        return self._broker.start_task(coroutine)

    async def decode_in_thread(
        self, frame: Buffer, connection: Connection, received_at: float
    ) -> tuple[RequestContext, Message | None]:
        """Decode a large frame; see `decode`."""
        (context, body), seconds = await asyncio.get_running_loop().run_in_executor(
            self._thread, _timed, self.decode, frame, connection, received_at
        )
        context.decode_seconds = seconds
        return context, body

    async def encode_in_thread(self, context: RequestContext, response: Message) -> list[Buffer]:
        """Encode the response of a large request; see `encode`."""
        usage, context.usage = context.usage, None
        if usage is not None:
            usage.finish(context, response)
        parts, seconds = await asyncio.get_running_loop().run_in_executor(
            self._thread, _timed, self.encode, context, response
        )
        if usage is not None:
            usage.record_seconds(seconds)
        return parts

    def decode(
        self, frame: Buffer, connection: Connection, received_at: float
    ) -> tuple[RequestContext, Message | None]:
        """Decode a frame. Raises DecodeError if it is malformed or its API is not supported.

        The body is None for an ApiVersions request of an unknown version: the client has to be sent
        the supported versions, in a response of version 0 (KIP-511).
        """
        try:
            header, body = decode_request(frame)
        except UnsupportedVersionError as error:
            if error.api_key != API_VERSIONS.key:
                raise
            context = RequestContext(
                API_VERSIONS, 0, error.correlation_id, None, connection, received_at
            )
            return context, None
        api = SUPPORTED_APIS.get(header.request_api_key)
        if api is None:
            raise UnsupportedVersionError(
                header.request_api_key, header.request_api_version, header.correlation_id
            )
        if len(frame) > _UNCHECKED_BYTES:
            self._check_element_count(api, body)
        context = RequestContext(
            api,
            header.request_api_version,
            header.correlation_id,
            header.client_id,
            connection,
            received_at,
        )
        context.size_bytes = len(frame)
        return context, body

    @property
    def quotas(self) -> QuotaManager | None:
        """The counters of client quotas; None if there are no quotas."""
        if not self.quota_entities:
            return None
        if self._quotas is None:
            from .quotas import QuotaManager  # noqa: PLC0415  # Only needed here.

            config = self._broker.config
            self._quotas = QuotaManager(
                self._broker.topics.image.quotas,
                self._metrics,
                config.quota_window_num,
                config.quota_window_size_seconds,
            )
        return self._quotas

    def handle(
        self, context: RequestContext, body: Message | None
    ) -> Response | asyncio.Future[Any]:
        """Call the handler of a request; return its response, or a future of it."""
        key = context.api.key
        handler = self._handlers.get(key)
        if handler is None:
            handler = self._handlers[key] = self._load_handler(context.api)
        announcer = self.announcer
        if announcer is not None and not announcer.is_confirmed and key not in _UNCONFIRMED_APIS:
            confirmed = self._handle_when_confirmed(announcer, context, body)
            return self._broker.start_task(self._await_response(context, confirmed))
        try:
            if self.quota_entities:
                result = self._handle_with_quotas(handler, context, body)
            else:
                result = handler(self._broker, context, body)
        except Exception as error:  # noqa: BLE001  # The error boundary.
            return self._error_response(context, error)
        if isinstance(result, Message) or result is None:
            return result
        if isinstance(result, asyncio.Future):
            return result
        return self._broker.start_task(self._await_response(context, result))

    async def _handle_when_confirmed(
        self, announcer: Announcer, context: RequestContext, body: Message | None
    ) -> Response | asyncio.Future[Any]:
        """Handle a request after a pause, if no other process has taken this broker's id."""
        await announcer.wait_until_confirmed()
        result = self.handle(context, body)
        if isinstance(result, asyncio.Future) and context.api.key not in OVERLAPPING:
            return cast("Response | asyncio.Future[Any]", await result)
        return result

    def _handle_with_quotas(
        self, handler: Handler, context: RequestContext, body: Message | None
    ) -> HandlerResult:
        assert self.quotas is not None
        if self._comes_from_broker(context):
            return handler(self._broker, context, body)
        usage = context.usage = self.quotas.begin(context)
        if usage is None:
            return handler(self._broker, context, body)
        if context.api is registry.PRODUCE and getattr(body, "acks", None) == 0:
            usage.finish_without_response(context)
        decode_seconds = context.decode_seconds
        if decode_seconds is None:
            decode_seconds = perf_counter() - context.received_at
        usage.record_seconds(decode_seconds)
        return usage.run(lambda: handler(self._broker, context, body))

    def _comes_from_broker(self, context: RequestContext) -> bool:
        """Whether a request comes from another broker, whose connection must never be muted."""
        config = self._broker.config
        if not config.is_clustered or (
            context.connection.listener.name != config.inter_broker_listener
        ):
            return False
        from ..cluster.forwarding import is_from_broker  # noqa: PLC0415  # Only needed here.
        from .authorization import is_broker  # noqa: PLC0415

        if not is_from_broker(context):
            return False
        security = self._broker.server.security
        return is_broker(self._broker, context) if security is None else security.is_broker(context)

    def result(
        self, context: RequestContext, future: asyncio.Future[Any]
    ) -> Response | asyncio.Future[Response]:
        """Return the result of a completed future; if it failed, log that and close."""
        if future.cancelled():
            return None
        error = future.exception()
        if error is None:
            return cast("Response | asyncio.Future[Response]", future.result())
        _log_error("Request failed", context, error)
        context.connection.close(f"{context.api.name} failed")
        return None

    def encode(self, context: RequestContext, response: Message) -> list[Buffer]:
        """Encode a response and record its latency."""
        usage = context.usage
        if usage is not None:
            usage.finish(context, response)
            began = perf_counter()
        try:
            parts = encode_response(response, context.version, context.correlation_id)
        except Exception as error:  # noqa: BLE001  # The error boundary.
            _log_error("Encoding a response failed", context, error)
            context.connection.close(f"Encoding the {context.api.name} response failed")
            return []
        if usage is not None:
            usage.record_seconds(perf_counter() - began)
        key = context.api.key
        histogram = self._histograms.get(key)
        if histogram is None:
            histogram = self._histograms[key] = self._metrics.histogram_of(context.api.name)
        histogram.observe(perf_counter() - context.received_at)
        return parts

    def _check_element_count(self, api: Api, body: Message) -> None:
        """Raise DecodeError for a request that names more elements than there can be.

        An element costs its client a few bytes, but every other client the time to look it up.
        """
        max_count = _ELEMENTS_PER_PARTITION * self._broker.config.broker_max_partitions
        count = _count_elements(body)
        if count > max_count:
            raise DecodeError(f"{count} array elements exceed the limit of {max_count}", api.name)

    def _load_handler(self, api: Api) -> Handler:
        handler: Handler = import_module(f".handlers.{api.module_name}", __package__).handle
        authorizer = self._broker.authorizer
        if authorizer is not None:
            from .authorization import with_needs  # noqa: PLC0415  # Only needed here.

            handler = with_needs(handler, authorizer, api)
        cluster = self._broker.cluster
        if cluster.is_controller and not self._broker.config.cluster_store:
            return handler
        from ..cluster.forwarding import FORWARDED, forward  # noqa: PLC0415  # Only needed here.

        if api.key not in FORWARDED:
            return handler

        def handle_or_forward(
            broker: Broker, context: RequestContext, request: Any
        ) -> HandlerResult:
            # With a metadata store, the controller changes.
            return (handler if cluster.is_controller else forward)(broker, context, request)

        return handle_or_forward

    async def _await_response(
        self,
        context: RequestContext,
        response: Coroutine[Any, Any, Response | asyncio.Future[Any]],
    ) -> Response | asyncio.Future[Any]:
        try:
            return await response
        except Exception as error:  # noqa: BLE001  # The error boundary.
            return self._error_response(context, error)

    def _error_response(self, context: RequestContext, error: Exception) -> Response:
        code = error_code_of(error)
        self._metrics.failures[context.api.name, code.name] += 1
        if not isinstance(error, EXPECTED_ERRORS):
            _log_error("Request failed", context, error)
        response = context.error_response(code)
        if response is None:
            context.connection.close(f"{context.api.name} failed: {code.name}")
        return response


def _timed(call: Callable[..., T], *arguments: object) -> tuple[T, float]:
    """Return the result of a call, and how long it took."""
    began = perf_counter()
    return call(*arguments), perf_counter() - began


def _log_error(message: str, context: RequestContext, error: BaseException) -> None:
    fields = context.log_fields()
    log_limited(logger, message, level=logging.ERROR, extra=fields, exc_info=error)


def _count_elements(message: Message) -> int:
    """Count the elements of a message's arrays, nested arrays included."""
    count = 0
    for name in message.fields:
        value = getattr(message, name)
        if isinstance(value, list):
            count += len(value)
            if value and isinstance(value[0], Message):
                count += sum(map(_count_elements, value))
    return count
