"""AllocateProducerIds: the controller allocates a block of producer ids to another broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.api.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from ottla.protocol.errors import ErrorCode

from ..errors import EXPECTED_ERRORS, error_code_of

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext


async def handle(
    broker: Broker, context: RequestContext, request: AllocateProducerIdsRequest
) -> AllocateProducerIdsResponse:
    """Handle AllocateProducerIds."""
    if not broker.cluster.is_controller:
        return AllocateProducerIdsResponse(error_code=ErrorCode.NOT_CONTROLLER)
    if not broker.cluster.sessions.is_registered(request.broker_id, context.connection):
        return AllocateProducerIdsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    registration = broker.topics.image.registrations[request.broker_id]
    if request.broker_epoch != registration.broker_epoch:
        return AllocateProducerIdsResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
    try:
        ids = await broker.controller.allocate_producer_ids()
    except EXPECTED_ERRORS as error:
        return AllocateProducerIdsResponse(error_code=error_code_of(error))
    return AllocateProducerIdsResponse(producer_id_start=ids.start, producer_id_len=len(ids))
