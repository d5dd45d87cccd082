"""Envelope: a request that another broker forwards for one of its clients.

It is handled with the principal and the host of the client, so that forwarding gives nobody the
rights of the broker. Only brokers may send envelopes, with requests that brokers forward.
"""

from __future__ import annotations

import asyncio
from ipaddress import ip_address
from typing import TYPE_CHECKING

from ottla.coord.principal import KafkaPrincipal
from ottla.protocol.api.envelope import EnvelopeRequest, EnvelopeResponse
from ottla.protocol.codec import encode_response
from ottla.protocol.errors import DecodeError, ErrorCode
from ottla.protocol.principal import decode_principal
from ottla.protocol.schema import Message

from ...cluster.forwarding import FORWARDED
from ..authorization import is_broker
from ..dispatch import ForwardedContext, RequestContext
from ..errors import ApiError
from .broker_registration import check_inter_broker_listener

if TYPE_CHECKING:
    from ...broker import Broker

_SIZE_BYTES = 4


async def handle(
    broker: Broker, context: RequestContext, request: EnvelopeRequest
) -> EnvelopeResponse:
    """Handle Envelope."""
    try:
        check_inter_broker_listener(broker, context)
        if not is_broker(broker, context):
            raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        inner, body = _open(broker, context, request)
    except ApiError as error:
        return EnvelopeResponse(error_code=error.code)
    response = broker.dispatcher.handle(inner, body)
    while isinstance(response, asyncio.Future):
        response = await response
    if not isinstance(response, Message):
        return EnvelopeResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
    parts = encode_response(response, inner.version, inner.correlation_id)
    return EnvelopeResponse(response_data=b"".join(parts)[_SIZE_BYTES:])


def _open(
    broker: Broker, context: RequestContext, request: EnvelopeRequest
) -> tuple[ForwardedContext, Message]:
    """Return the request in an envelope, with its client. Raises ApiError."""
    try:
        principal = KafkaPrincipal(*decode_principal(request.request_principal or b""))
    except DecodeError as error:
        raise ApiError(ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE, str(error)) from None
    try:
        host = str(ip_address(bytes(request.client_host_address)))
        inner, body = broker.dispatcher.decode(
            request.request_data, context.connection, context.received_at
        )
    except (DecodeError, ValueError) as error:
        raise ApiError(ErrorCode.INVALID_REQUEST, str(error)) from None
    if inner.api.key not in FORWARDED or body is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{inner.api.name} is not forwarded")
    return ForwardedContext(context, inner, principal, host), body
