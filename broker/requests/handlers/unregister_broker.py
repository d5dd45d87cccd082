"""UnregisterBroker: forget a broker that is gone for good.

With a metadata store, new topics may have replicas on brokers that are down: not on one that was
unregistered. It must have no replicas. The brokers of a static cluster are a fixed list.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from ottla.protocol.api.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from ottla.protocol.errors import ErrorCode

from ...cluster.store_controller import StoreController
from ..errors import ApiError

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext


async def handle(
    broker: Broker, _context: RequestContext, request: UnregisterBrokerRequest
) -> UnregisterBrokerResponse:
    """Handle UnregisterBroker."""
    controller = broker.controller
    known: Collection[int] = broker.cluster.broker_ids
    if isinstance(controller, StoreController):
        known = sorted(controller.known_brokers)
    if request.broker_id not in known:
        return UnregisterBrokerResponse(
            error_code=ErrorCode.BROKER_ID_NOT_REGISTERED,
            error_message=f"Unknown broker {request.broker_id}: expected one of"
            f" {', '.join(map(str, known))}",
        )
    if isinstance(controller, StoreController):
        try:
            await controller.unregister(request.broker_id)
        except ApiError as error:
            return UnregisterBrokerResponse(error_code=error.code, error_message=str(error))
        return UnregisterBrokerResponse()
    return UnregisterBrokerResponse(
        error_code=ErrorCode.INVALID_REQUEST,
        error_message=f"Broker {request.broker_id} cannot be unregistered: the brokers are a fixed"
        " list: remove it from the cluster file of all brokers",
    )
