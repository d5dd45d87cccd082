"""One connection to one broker: requests out, responses in, in the same order.

A response is read straight into a buffer of its own size, and its byte fields are slices of that:
records that were fetched are not copied. What cannot be understood, or comes too late, ends the
connection, and everything that still waits on it fails with ConnectionLostError. Who gives up
waiting disturbs nobody, but the answer stays due: a broker that does not give it is left.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections import deque
from contextlib import suppress
from itertools import count
from typing import Any, Self, TypeVar, cast

from ottla.protocol.api.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.codec import decode_response, encode_request
from ottla.protocol.errors import DecodeError, ErrorCode, error_of
from ottla.protocol.frame import Framer
from ottla.protocol.registry import Api
from ottla.protocol.schema import Message

from .config import ClientConfig
from .errors import ClosedError, ConnectionLostError, DeadlineError, UnsupportedError

M = TypeVar("M", bound=Message)

_CORRELATION_ID = struct.Struct(">i")
_SCRATCH_BYTES = 64 * 1024
# The first version that says who asks. It is known to nearly all brokers that there are.
_GREETING_VERSION = 3
# The answer to the greeting is small. What is not may be no answer: the first bytes of TLS read as
# a size of 352 MB.
_GREETING_BYTES = 256 * 1024


class _Waiting:
    """A request that has no answer yet."""

    __slots__ = ("correlation_id", "future", "response", "timer", "version")

    def __init__(
        self,
        correlation_id: int,
        response: type[Message] | None,
        version: int,
        future: asyncio.Future[Any],
    ) -> None:
        self.correlation_id = correlation_id
        #: None: whoever asked wants the frame as it is.
        self.response = response
        self.version = version
        self.future = future
        #: Ends the connection. It runs on when whoever asked has given up: an answer is due still.
        self.timer: asyncio.TimerHandle | None = None

    def end(self) -> None:
        """Take note that it is answered, or will not be."""
        if self.timer is not None:
            self.timer.cancel()


class BrokerConnection(asyncio.BufferedProtocol):
    """An open connection; see `open`."""

    def __init__(self, config: ClientConfig, address: str) -> None:
        self.address = address
        self._config = config
        self._transport: asyncio.Transport
        #: What the broker speaks, by api key: the first and last version.
        self.versions: dict[int, tuple[int, int]] = {}
        self._correlation_ids = count(1)
        self._waiting: deque[_Waiting] = deque()
        self._lost: ClosedError | ConnectionLostError | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._framer = Framer(
            memoryview(bytearray(_SCRATCH_BYTES)),
            min_bytes=_CORRELATION_ID.size,
            max_bytes=_GREETING_BYTES,
        )

    @classmethod
    async def open(cls, host: str, port: int, config: ClientConfig) -> Self:
        """Connect, and learn what the broker speaks. Raises ConnectionLostError, DeadlineError."""
        address = f"{host}:{port}"
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(config.timeouts.connect):
                _transport, connection = await loop.create_connection(
                    lambda: cls(config, address), host, port
                )
                try:
                    await connection._greet()
                except BaseException:
                    connection.close()
                    raise
        except TimeoutError:
            reason = f"{address} did not answer in {config.timeouts.connect:g} s"
            raise ConnectionLostError(reason) from None
        except (OSError, UnicodeError) as error:  # the latter from a name that cannot be one
            raise ConnectionLostError(f"cannot connect to {address}: {_said(error)}") from error
        except DecodeError as error:
            raise ConnectionLostError(f"{address} is not understood: {error}") from error
        return connection

    def __repr__(self) -> str:
        return f"<BrokerConnection to {self.address}, {len(self._waiting)} unanswered>"

    @property
    def is_open(self) -> bool:
        """Whether it can be used."""
        return self._lost is None

    @property
    def in_flight(self) -> int:
        """How many requests have no answer yet."""
        return len(self._waiting)

    def version_for(self, api: Api, max_version: int | None = None) -> int:
        """Return the newest version of an API that both sides support. Raises UnsupportedError."""
        theirs = self.versions.get(api.key)
        if theirs is None:
            raise UnsupportedError(f"{self.address} does not serve {api.name}")
        last = min(
            api.versions.last, theirs[1], api.versions.last if max_version is None else max_version
        )
        if last < max(api.versions.first, theirs[0]):
            raise UnsupportedError(
                f"{self.address} serves {api.name} {theirs[0]} to {theirs[1]},"
                f" and we speak {api.versions}"
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
        waiting = _Waiting(self._write(version, request), response, version, future)
        waiting.timer = loop.call_later(seconds, self._too_late, waiting, seconds)
        self._waiting.append(waiting)
        return future

    async def send_oneway(self, version: int, request: Message) -> None:
        """Send a request that has no answer: Produce with acks=0."""
        if not self._writable.is_set():
            await self._wait_until_writable()
        self._write(version, request)

    def close(self, reason: ConnectionLostError | None = None) -> None:
        """Close; whatever has no answer fails, with ClosedError if there is no other reason."""
        if self._lost is None:
            self._fail(reason or ClosedError(f"the connection to {self.address} was closed"))
        # There is no transport if the connection was never made.
        with suppress(AttributeError):
            self._transport.abort()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        """End."""
        if self._lost is None:
            reason = f": {error}" if error else ""
            self._fail(ConnectionLostError(f"{self.address} closed the connection{reason}"))

    def pause_writing(self) -> None:
        """Let requests wait: the broker does not read."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Let requests go."""
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
        except (DecodeError, ConnectionLostError) as error:
            self.close(ConnectionLostError(f"{self.address} is not understood: {error}"))

    def _receive(self, frame: bytearray) -> None:
        if not self._waiting:
            raise ConnectionLostError("a response that nobody asked for")
        waiting = self._waiting[0]
        (correlation_id,) = _CORRELATION_ID.unpack_from(frame)
        if correlation_id != waiting.correlation_id:
            # It stays among those that wait, and fails with them.
            raise ConnectionLostError(
                f"a response to request {correlation_id}, not to {waiting.correlation_id}"
            )
        self._waiting.popleft()
        waiting.end()
        if waiting.future.done():
            return  # whoever asked has given up
        if waiting.response is None:
            waiting.future.set_result(frame)
            return
        try:
            _id, answer = decode_response(waiting.response, waiting.version, frame)
        except DecodeError as error:
            waiting.future.set_exception(
                ConnectionLostError(f"{self.address} is not understood: {error}")
            )
            raise
        waiting.future.set_result(answer)

    async def _greet(self) -> None:
        """Ask what the broker speaks."""
        from importlib import metadata  # noqa: PLC0415  # slow to import, and needed once

        request = ApiVersionsRequest(
            client_software_name="ottla", client_software_version=metadata.version("ottla")
        )
        future: asyncio.Future[bytearray] = asyncio.get_running_loop().create_future()
        correlation_id = self._write(_GREETING_VERSION, request)
        self._waiting.append(_Waiting(correlation_id, None, _GREETING_VERSION, future))
        frame = await future
        # A broker that does not know the version answers in version 0, with this error.
        is_too_new = int.from_bytes(frame[4:6]) == ErrorCode.UNSUPPORTED_VERSION
        version = 0 if is_too_new else _GREETING_VERSION
        _id, answer = decode_response(ApiVersionsResponse, version, frame)
        if not is_too_new and (error := error_of(answer.error_code)):
            raise error
        self.versions = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
        self._framer.max_bytes = self._config.max_response_bytes

    async def _wait_until_writable(self, timeout: float | None = None) -> None:
        seconds = self._config.timeouts.request if timeout is None else timeout
        try:
            async with asyncio.timeout(seconds):
                await self._writable.wait()
        except TimeoutError:
            reason = f"{self.address} has taken nothing in {seconds:g} s"
            self.close(ConnectionLostError(reason))
            raise DeadlineError(reason) from None

    def _write(self, version: int, request: Message) -> int:
        if self._lost is not None:
            raise type(self._lost)(str(self._lost))
        correlation_id = next(self._correlation_ids) & 0x7FFFFFFF
        self._transport.writelines(
            encode_request(request, version, correlation_id, self._config.client_id)
        )
        return correlation_id

    def _too_late(self, waiting: _Waiting, seconds: float) -> None:
        if not waiting.future.done():
            reason = f"{self.address} has not answered in {seconds:g} s"
            waiting.future.set_exception(DeadlineError(reason))
        # Answers come in order: what is behind this one is late too.
        self.close(ConnectionLostError(f"{self.address} does not answer"))

    def _fail(self, error: ClosedError | ConnectionLostError) -> None:
        self._lost = error
        self._writable.set()
        waiting, self._waiting = self._waiting, deque()
        for one in waiting:
            one.end()
            if not one.future.done():
                one.future.set_exception(type(error)(str(error)))


def _said(error: OSError | UnicodeError) -> str:
    """Say why there is no connection, without numbers, and without the address once more."""
    if isinstance(error, ConnectionError) and error.errno is not None:
        return os.strerror(error.errno)
    return str(getattr(error, "strerror", None) or error)
