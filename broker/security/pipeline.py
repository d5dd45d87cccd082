"""The request pipeline of a connection on a SASL listener: only what `sasl` allows is handled.

SaslHandshake and SaslAuthenticate are handled as other requests are. After version 0 of
SaslHandshake, the frames are tokens.
"""

from __future__ import annotations

import asyncio
import time
from struct import Struct
from typing import TYPE_CHECKING, Any

from ottla.protocol.errors import ErrorCode
from ottla.protocol.registry import SASL_AUTHENTICATE
from ottla.protocol.schema import Buffer

from ..net.pipeline import InFlightRequest, RequestPipeline
from ..requests.dispatch import SUPPORTED_APIS, RequestContext
from ..requests.handlers.sasl_authenticate import authenticate
from .exchange import AuthenticationError
from .sasl import SaslState, Verdict

if TYPE_CHECKING:
    from ..net.connection import Connection

_HEADER_START = Struct(">hhi")
_SIZE = Struct(">i")


class AuthenticatingPipeline(RequestPipeline):
    """Handles the requests of a connection once its client has authenticated."""

    __slots__ = ()

    def handle(self, frame: bytearray, connection: Connection) -> asyncio.Future[None] | None:
        """Start a request, if it is allowed."""
        session = connection.sasl
        assert session is not None
        if session.state is SaslState.RAW:
            self._start(self._handle_token(connection, bytes(frame)), connection)
            return None
        api_key, version, _correlation_id = _HEADER_START.unpack_from(frame)
        verdict = session.check(api_key, version, time.monotonic())
        if verdict is Verdict.ALLOWED:
            return super().handle(frame, connection)
        is_new = session.principal is None
        reason = (
            "A request before SaslHandshake: the client needs security.protocol"
            f" {'SASL_SSL' if connection.uses_tls else 'SASL_PLAINTEXT'}"
            if is_new
            else "The session has expired: the client has not authenticated again"
        )
        if verdict is Verdict.ILLEGAL:
            reason = "A request that is not allowed in this SASL state"
            self._refuse(frame, connection)
        connection.finish(reason)
        connection.close_if_drained()
        return None

    def _refuse(self, frame: bytearray, connection: Connection) -> None:
        """Answer with ILLEGAL_SASL_STATE, if the API has a place for it.

        The request is not decoded: that may take long, and its client is not known.
        """
        api_key, version, correlation_id = _HEADER_START.unpack_from(frame)
        api = SUPPORTED_APIS.get(api_key)
        if api is None or version not in api.versions or self.in_flight:
            return
        now = time.perf_counter()
        context = RequestContext(api, version, correlation_id, None, connection, now)
        response = context.error_response(ErrorCode.ILLEGAL_SASL_STATE)
        if response is not None:
            self._send(context, response)

    def _start(self, handling: Any, connection: Connection) -> None:
        task = self._dispatcher.start_task(handling)
        context = RequestContext(SASL_AUTHENTICATE, 0, 0, None, connection, time.perf_counter())
        self.in_flight.append(InFlightRequest(context, task, None))
        task.add_done_callback(self._send_ready)

    async def _handle_token(self, connection: Connection, token: bytes) -> list[Buffer] | None:
        """Answer a token in the form of SaslHandshake version 0; a failure has no answer."""
        try:
            message, _lifetime_ms = await authenticate(connection, token)
        except AuthenticationError:
            return None
        return [_SIZE.pack(len(message)), message]
