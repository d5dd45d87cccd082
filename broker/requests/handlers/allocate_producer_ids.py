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
    broker: Broker, _context: RequestContext, request: AllocateProducerIdsRequest
) -> AllocateProducerIdsResponse:
    """Handle AllocateProducerIds."""
    if not broker.cluster.is_controller:
        return AllocateProducerIdsResponse(error_code=ErrorCode.NOT_CONTROLLER)
    if request.broker_id not in broker.cluster.liveness:
        return AllocateProducerIdsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    try:
        ids = await broker.controller.allocate_producer_ids()
    except EXPECTED_ERRORS as error:
        return AllocateProducerIdsResponse(error_code=error_code_of(error))
    return AllocateProducerIdsResponse(producer_id_start=ids.start, producer_id_len=len(ids))
