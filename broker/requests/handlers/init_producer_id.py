"""InitProducerId: a number for a producer that wants each record to be written once.

It is new each time, whatever number a client says that it had.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ottla.protocol.api.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.errors import ErrorCode

from ..errors import EXPECTED_ERRORS, error_code_of

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext

logger = logging.getLogger(__name__)


async def handle(
    broker: Broker, context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    """Answer InitProducerId."""
    if request.transactional_id == "":
        return _failed(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        # There are no transactions. This code ends the matter at once in all clients that we know;
        # UNSUPPORTED_VERSION would say it better, but librdkafka tries again until it times out.
        logger.warning(
            "%r has the transactional id %.100r, and there are no transactions here",
            context,
            request.transactional_id,
        )
        return _failed(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    try:
        return InitProducerIdResponse(producer_id=await broker.producer_ids.generate())
    except EXPECTED_ERRORS as error:
        return _failed(error_code_of(error))


def _failed(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_epoch=-1)
