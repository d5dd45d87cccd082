"""UnregisterBroker: refused, with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.api.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from ottla.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext


def handle(
    broker: Broker, _context: RequestContext, request: UnregisterBrokerRequest
) -> UnregisterBrokerResponse:
    """Handle UnregisterBroker."""
    known = broker.cluster.broker_ids
    if request.broker_id not in known:
        return UnregisterBrokerResponse(
            error_code=ErrorCode.BROKER_ID_NOT_REGISTERED,
            error_message=f"Unknown broker {request.broker_id}: expected one of"
            f" {', '.join(map(str, known))}",
        )
    reason = (
        "the brokers are a fixed list: remove it from the cluster file of all brokers"
        if broker.store is None
        else "its registration ends when it stops"
    )
    return UnregisterBrokerResponse(
        error_code=ErrorCode.INVALID_REQUEST,
        error_message=f"Broker {request.broker_id} cannot be unregistered: {reason}",
    )
