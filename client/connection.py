"""A connection to a broker: pipelined requests, and responses in the same order.

A response is read into a buffer of its own, and its byte fields are slices of that: fetched records
are not copied. A response that is malformed or late closes the connection, and all requests in
flight fail with ConnectionLostError. Cancelling a request does not affect the others, but its
response is still due: if that does not arrive in time, the connection is closed as well.
"""

from __future__ import annotations

import asyncio
import logging
import os
import struct
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, Self, TypeGuard, TypeVar, cast

from ottla import __version__
from ottla.protocol.api.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.codec import decode_response, encode_request
from ottla.protocol.errors import DecodeError, ErrorCode, KafkaError, error_of
from ottla.protocol.frame import Framer, OtherProtocolError
from ottla.protocol.registry import Api
from ottla.protocol.schema import Buffer, Message

from .config import ClientConfig
from .errors import (
    AuthenticationError,
    ClientError,
    ClosedError,
    ConnectionLostError,
    DeadlineError,
    UnsupportedError,
)
from .transports import writelines_of

if TYPE_CHECKING:
    import ssl

    from .security import SecurityConfig

M = TypeVar("M", bound=Message)

_CORRELATION_ID = struct.Struct(">i")
_SCRATCH_BYTES = 64 * 1024
# The first version with the client's name. Nearly all brokers in use support it.
_API_VERSIONS_VERSION = 3
# Limit for the response to ApiVersions. A larger one is probably not Kafka's: the first bytes of
# TLS read as a size of 352 MB.
_API_VERSIONS_MAX_BYTES = 256 * 1024

# A connect that takes longer than these ticks is logged.
_TICK_SECONDS = 0.2
_SLOW_CONNECT_TICKS = 4

_OR_TLS = ", or set security_protocol to SSL or SASL_SSL"

logger = logging.getLogger(__name__)


class _InFlightRequest:
    """A request without a response."""

    __slots__ = ("correlation_id", "future", "response", "timer", "version")

    def __init__(
        self,
        response: type[Message] | None,
        version: int,
        future: asyncio.Future[Any],
    ) -> None:
        self.correlation_id = 0
        #: None: the future gets the frame, undecoded.
        self.response = response
        self.version = version
        self.future = future
        #: Closes the connection. It runs on if the request is cancelled, as its response is due.
        self.timer: asyncio.TimerHandle | None = None

    def cancel_timer(self) -> None:
        """Stop the timeout: there is a response, or there will be none."""
        if self.timer is not None:
            self.timer.cancel()


class _ConnectWatch:
    """Logs once that a peer has not answered yet.

    Ticks that come late do not count: the program has blocked the event loop meanwhile, and an
    answer may wait in the socket.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, address: str) -> None:
        self._loop = loop
        self._address = address
        self._ticks = 0
        self._arm()

    def cancel(self) -> None:
        """Stop: the peer has answered, or the attempt has failed."""
        self._timer.cancel()

    def _arm(self) -> None:
        self._due = self._loop.time() + _TICK_SECONDS
        self._timer = self._loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        if self._loop.time() < self._due + _TICK_SECONDS / 2:
            self._ticks += 1
        if self._ticks < _SLOW_CONNECT_TICKS:
            self._arm()
        else:
            logger.warning("No answer from %s yet; still connecting", self._address)


class BrokerConnection(asyncio.BufferedProtocol):
    """An open connection; see `open`."""

    def __init__(self, config: ClientConfig, address: str) -> None:
        self.address = address
        self._config = config
        self._transport: asyncio.Transport
        self._writelines: Callable[[Iterable[Buffer]], None]
        #: Minimum and maximum version of the APIs that the broker supports, by API key.
        self.versions: dict[int, tuple[int, int]] = {}
        #: The levels of the cluster's finalized features: "transaction.version".
        self.features: dict[str, int] = {}
        self._correlation_ids = count(1)
        self._requests: deque[_InFlightRequest] = deque()
        self._lost: ClosedError | ConnectionLostError | AuthenticationError | None = None
        #: Whether there was a response to anything but ApiVersions.
        self._was_answered = False
        #: Requests, and their bytes, that wait until the client has authenticated again.
        self._held: list[tuple[list[Buffer], _InFlightRequest | None]] | None = None
        self._reauthentication: asyncio.TimerHandle | asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._framer = Framer(
            memoryview(bytearray(_SCRATCH_BYTES)),
            min_bytes=_CORRELATION_ID.size,
            max_bytes=_API_VERSIONS_MAX_BYTES,
        )

    @classmethod
    async def open(cls, host: str, port: int, config: ClientConfig) -> Self:
        """Connect, fetch the API versions, and authenticate.

        Raises ConnectionLostError and AuthenticationError.
        """
        address = f"{host}:{port}"
        loop = asyncio.get_running_loop()
        security = config.security
        tls = None
        try:
            async with asyncio.timeout(config.timeouts.connect):
                # Slow name servers, dropped packets and servers of other protocols would otherwise
                # be a silent wait.
                watch = _ConnectWatch(loop, address)
                try:
                    if security is not None and security.uses_tls:
                        tls = await _tls_context(security)
                    _transport, connection = await loop.create_connection(
                        lambda: cls(config, address), host, port, ssl=tls
                    )
                    try:
                        await connection._fetch_api_versions()
                        if security is not None and security.uses_sasl:
                            await connection._authenticate(security)
                        connection._framer.max_bytes = config.max_response_bytes
                    except BaseException:
                        connection.close()
                        raise
                finally:
                    watch.cancel()
        except TimeoutError:
            reason = f"{address} did not respond within {config.timeouts.connect:g} s"
            raise ConnectionLostError(reason) from None
        except (OSError, UnicodeError) as error:  # the latter for an invalid host name
            if tls is not None and _is_from_handshake(error):
                raise _handshake_error(address, error, security) from error
            raise ConnectionLostError(f"Cannot connect to {address}: {_reason(error)}") from error
        except DecodeError as error:
            raise ConnectionLostError(f"Malformed response from {address}: {error}") from error
        return connection

    def __repr__(self) -> str:
        return f"<BrokerConnection to {self.address}, {len(self._requests)} in flight>"

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._lost is None

    @property
    def _uses_tls(self) -> bool:
        return self._config.security is not None and self._config.security.uses_tls

    @property
    def in_flight(self) -> int:
        """The number of requests without a response."""
        return len(self._requests)

    def version_for(self, api: Api, max_version: int | None = None) -> int:
        """Return the newest version of an API that both sides support. Raises UnsupportedError."""
        supported = self.versions.get(api.key)
        if supported is None:
            raise UnsupportedError(f"{self.address} does not support {api.name}")
        last = min(api.versions.last, supported[1])
        if max_version is not None:
            last = min(last, max_version)
        if last < max(api.versions.first, supported[0]):
            raise UnsupportedError(
                f"{self.address} supports {api.name} versions {supported[0]} to {supported[1]};"
                f" the client supports {api.versions}"
            )
        return last

    async def send(
        self,
        request: Message,
        response: type[M],
        *,
        version: int | None = None,
        max_version: int | None = None,
        timeout: float | None = None,
    ) -> M:
        """Send a request and return its response. Raises ConnectionLostError and DeadlineError.

        Without `version`, the newest one that both sides support, up to `max_version`.
        """
        if version is None:
            assert request.api is not None
            version = self.version_for(request.api, max_version)
        if not self._writable.is_set():
            await self._wait_until_writable(timeout)
        return await self.send_nowait(version, request, response, timeout)

    def send_nowait(
        self,
        version: int,
        request: Message,
        response: type[M],
        timeout: float | None = None,
    ) -> asyncio.Future[M]:
        """Send a request now and return the future of its response."""
        seconds = self._config.timeouts.request if timeout is None else timeout
        loop = asyncio.get_running_loop()
        future: asyncio.Future[M] = loop.create_future()
        in_flight = _InFlightRequest(response, version, future)
        self._write(version, request, in_flight)
        in_flight.timer = loop.call_later(seconds, self._on_timeout, in_flight, seconds)
        return future

    async def send_oneway(self, version: int, request: Message) -> None:
        """Send a request that has no response: Produce with acks=0."""
        if not self._writable.is_set():
            await self._wait_until_writable()
        self._write(version, request)

    def close(self, reason: ConnectionLostError | AuthenticationError | None = None) -> None:
        """Close. Requests in flight fail with `reason`, or with ClosedError."""
        if self._lost is None:
            self._fail(reason or ClosedError(f"The connection to {self.address} was closed"))
        # There is no transport before the connection is established.
        with suppress(AttributeError):
            self._transport.abort()

    # asyncio protocol callbacks.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)
        self._writelines = writelines_of(self._transport)

    def connection_lost(self, error: Exception | None) -> None:
        """Fail the requests in flight."""
        if self._lost is not None:
            return
        if error is not None and self._uses_tls and _is_from_handshake(error):
            # A broker that rejects the client's certificate says so after the handshake.
            self._fail(_handshake_error(self.address, error, self._config.security))
            return
        reason = f": {error}" if error else self._sasl_advice()
        self._fail(ConnectionLostError(f"{self.address} closed the connection{reason}"))

    def pause_writing(self) -> None:
        """Have requests wait: the broker does not read."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Have requests sent again."""
        self._writable.set()

    def get_buffer(self, _sizehint: int) -> memoryview:
        """Return the buffer for the next read."""
        return self._framer.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the responses that `nbytes` more bytes complete."""
        framer = self._framer
        try:
            if framer.buffer_updated(nbytes):
                while (frame := framer.next_frame()) is not None:
                    self._receive(frame)
                framer.detach(framer.frame_bytes)
        except OtherProtocolError as error:
            self.close(
                ConnectionLostError(
                    f"{self.address} speaks {error.protocol}, not the Kafka protocol in plain text:"
                    f" check host and port{_OR_TLS if error.protocol == 'TLS' else ''}"
                )
            )
        except (DecodeError, ConnectionLostError) as error:
            self.close(ConnectionLostError(f"Malformed response from {self.address}: {error}"))

    def _receive(self, frame: bytearray) -> None:
        if not self._requests:
            raise ConnectionLostError("response without a request")
        request = self._requests[0]
        (correlation_id,) = _CORRELATION_ID.unpack_from(frame)
        if correlation_id != request.correlation_id:
            # The request stays in flight, and fails with the others.
            raise ConnectionLostError(
                f"correlation id {correlation_id}, expected {request.correlation_id}"
            )
        self._requests.popleft()
        self._was_answered = bool(self.versions)
        request.cancel_timer()
        if request.future.done():
            return  # cancelled
        if request.response is None:
            request.future.set_result(frame)
            return
        try:
            _id, response = decode_response(request.response, request.version, frame)
        except DecodeError as error:
            request.future.set_exception(
                ConnectionLostError(f"Malformed response from {self.address}: {error}")
            )
            raise
        request.future.set_result(response)

    async def _fetch_api_versions(self) -> None:
        """Get the API versions that the broker supports."""
        request = ApiVersionsRequest(
            client_software_name="ottla", client_software_version=__version__
        )
        future: asyncio.Future[bytearray] = asyncio.get_running_loop().create_future()
        self._write(
            _API_VERSIONS_VERSION, request, _InFlightRequest(None, _API_VERSIONS_VERSION, future)
        )
        try:
            frame = await future
        except ConnectionLostError as lost:
            if "closed the connection" not in str(lost) or self._uses_tls:
                raise
            # As a port with TLS does that does not answer plain text.
            raise ConnectionLostError(
                f"{lost} before it answered: check that it is a plaintext listener of a broker"
                f"{_OR_TLS}"
            ) from lost
        # A broker that does not support the version responds in version 0 with this error.
        is_unsupported = int.from_bytes(frame[4:6]) == ErrorCode.UNSUPPORTED_VERSION
        version = 0 if is_unsupported else _API_VERSIONS_VERSION
        _id, response = decode_response(ApiVersionsResponse, version, frame)
        if not is_unsupported and (error := error_of(response.error_code)):
            raise error
        self.versions = {
            api.api_key: (api.min_version, api.max_version) for api in response.api_keys
        }
        if response.finalized_features_epoch >= 0:
            self.features = {
                feature.name: feature.max_version_level for feature in response.finalized_features
            }

    # SASL.

    def _sasl_advice(self) -> str:
        """Return what may help if the broker closes a new connection without an answer."""
        security = self._config.security
        if self._was_answered or not self.versions or (security and security.uses_sasl):
            return ""
        protocol = "SASL_SSL" if self._uses_tls else "SASL_PLAINTEXT"
        return (
            " without an answer to the first request: the listener may require SASL:"
            f" set security_protocol to {protocol}"
        )

    async def _authenticate(self, security: SecurityConfig) -> None:
        from .authentication import authenticate, reauthentication_delay  # noqa: PLC0415

        lifetime = await authenticate(security, self.address, self._send_unheld)
        if lifetime is not None and self._lost is None:
            self._reauthentication = asyncio.get_running_loop().call_later(
                reauthentication_delay(lifetime), self._start_reauthentication, security
            )

    async def _send_unheld(
        self, request: Message, response: type[Message], min_version: int
    ) -> Message:
        assert request.api is not None
        version = self.version_for(request.api)
        if version < min_version:
            raise UnsupportedError(
                f"{self.address} supports {request.api.name} up to version {version};"
                f" the client needs {min_version}"
            )
        held, self._held = self._held, None
        try:
            future = self.send_nowait(version, request, response, self._config.timeouts.connect)
        finally:
            self._held = held
        return await future

    def _start_reauthentication(self, security: SecurityConfig) -> None:
        if self._lost is None:
            self._reauthentication = asyncio.create_task(self._reauthenticate(security))

    async def _reauthenticate(self, security: SecurityConfig) -> None:
        """Authenticate again. Other requests wait meanwhile: the broker would reject them."""
        self._held = []
        try:
            await self._authenticate(security)
        except (AuthenticationError, ConnectionLostError) as error:
            self.close(error)
        except (ClientError, KafkaError) as error:
            self.close(ConnectionLostError(str(error)))
        else:
            held, self._held = self._held, None
            for buffers, in_flight in held or ():
                self._writelines(buffers)
                if in_flight is not None:
                    self._requests.append(in_flight)

    async def _wait_until_writable(self, timeout: float | None = None) -> None:
        seconds = self._config.timeouts.request if timeout is None else timeout
        try:
            async with asyncio.timeout(seconds):
                await self._writable.wait()
        except TimeoutError:
            reason = f"{self.address} has read nothing for {seconds:g} s"
            self.close(ConnectionLostError(reason))
            raise DeadlineError(reason) from None

    def _write(
        self, version: int, request: Message, in_flight: _InFlightRequest | None = None
    ) -> None:
        if self._lost is not None:
            raise type(self._lost)(str(self._lost))
        correlation_id = next(self._correlation_ids) & 0x7FFFFFFF
        buffers = encode_request(request, version, correlation_id, self._config.client_id)
        if in_flight is not None:
            in_flight.correlation_id = correlation_id
        if self._held is not None:
            self._held.append((buffers, in_flight))
            return
        self._writelines(buffers)
        if in_flight is not None:
            self._requests.append(in_flight)

    def _on_timeout(self, request: _InFlightRequest, seconds: float) -> None:
        if not request.future.done():
            reason = f"{self.address} did not respond within {seconds:g} s"
            request.future.set_exception(DeadlineError(reason))
        # Responses come in order: all requests behind this one are late, too.
        self.close(ConnectionLostError(f"{self.address} does not respond"))

    def _fail(self, error: ClosedError | ConnectionLostError | AuthenticationError) -> None:
        self._lost = error
        self._writable.set()
        requests, self._requests = self._requests, deque()
        if self._held is not None:
            requests.extend(in_flight for _, in_flight in self._held if in_flight is not None)
            self._held = None
        if isinstance(self._reauthentication, asyncio.TimerHandle):
            self._reauthentication.cancel()
        for request in requests:
            request.cancel_timer()
            if not request.future.done():
                request.future.set_exception(type(error)(str(error)))


def _reason(error: OSError | UnicodeError) -> str:
    """Return the reason of a failed connect, without errno and without the address."""
    if isinstance(error, ConnectionError) and error.errno is not None:
        return os.strerror(error.errno)
    return str(getattr(error, "strerror", None) or error)


async def _tls_context(security: SecurityConfig) -> ssl.SSLContext:
    from .tls import client_context  # noqa: PLC0415  # only clients that use TLS need it

    return await asyncio.to_thread(client_context, security)


def _is_from_handshake(error: Exception) -> TypeGuard[OSError]:
    import ssl  # noqa: PLC0415

    return isinstance(error, ssl.SSLError | ConnectionResetError | ConnectionAbortedError)


def _handshake_error(
    address: str, error: OSError, security: SecurityConfig | None
) -> ConnectionLostError | AuthenticationError:
    from .tls import handshake_error  # noqa: PLC0415

    assert security is not None
    return handshake_error(address, error, has_certificate=security.has_certificate)
