"""SaslAuthenticate: the messages of a SASL mechanism."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from ottla.protocol.api.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from ottla.protocol.errors import ErrorCode

from ...security.exchange import AuthenticationError, Challenge

if TYPE_CHECKING:
    from ...broker import Broker
    from ...net.connection import Connection
    from ..dispatch import RequestContext


async def handle(
    _broker: Broker, context: RequestContext, request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse:
    """Handle SaslAuthenticate."""
    connection = context.connection
    if connection.sasl is None:
        return SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE,
            error_message="This listener does not use SASL",
            auth_bytes=b"",
        )
    try:
        message, lifetime_ms = await authenticate(connection, bytes(request.auth_bytes))
    except AuthenticationError as error:
        return SaslAuthenticateResponse(
            error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
            error_message=error.text,
            auth_bytes=b"",
        )
    return SaslAuthenticateResponse(
        error_message="", auth_bytes=message, session_lifetime_ms=lifetime_ms
    )


async def authenticate(connection: Connection, token: bytes) -> tuple[bytes, int]:
    """Continue the authentication of a connection; return the answer and the session's lifetime.

    Raises AuthenticationError, after a delay: guessing passwords has to be slow. The connection is
    closed then.
    """
    session = connection.sasl
    assert session is not None
    try:
        result = await session.receive(token)
        if isinstance(result, Challenge):
            return result.message, 0
        now_ms = int(time.time() * 1000)
        lifetime_ms = session.accept(result, time.monotonic(), now_ms)
    except AuthenticationError as error:
        await asyncio.sleep(connection.authentication_delay_seconds)
        connection.finish(f"Authentication with {session.mechanism} failed: {error}")
        raise
    connection.authenticate(result.principal)
    return result.message, lifetime_ms
