"""SaslHandshake: the client selects a SASL mechanism."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ottla.protocol.api.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from ottla.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext

_MAX_LOGGED_MECHANISM = 40


async def handle(
    _broker: Broker, context: RequestContext, request: SaslHandshakeRequest
) -> SaslHandshakeResponse:
    """Handle SaslHandshake."""
    connection = context.connection
    session = connection.sasl
    if session is None:
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
    result = session.handshake(request.mechanism, context.version, time.monotonic())
    if result.closes:
        mechanism = request.mechanism[:_MAX_LOGGED_MECHANISM]
        connection.finish(
            f"SASL mechanism {mechanism} is not enabled; sasl.enabled.mechanisms has"
            f" {', '.join(result.mechanisms)}"
        )
    elif context.version == 0 and not result.error_code:
        connection.expect_tokens()
    return SaslHandshakeResponse(error_code=result.error_code, mechanisms=result.mechanisms)
