"""InitProducerId: a producer id for an idempotent producer.

The id is a new one, even if the client sends one that it had before.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ottla.protocol.api.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.errors import ErrorCode

from ...observability.logging import log_limited
from ..errors import EXPECTED_ERRORS, error_code_of

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext

_NONE = -1

logger = logging.getLogger(__name__)


async def handle(
    broker: Broker, context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    """Handle InitProducerId."""
    if request.transactional_id == "":
        return _error_response(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        # Transactions are not supported. All known clients fail at once with this code.
        # UNSUPPORTED_VERSION would say it better, but librdkafka retries it until it times out.
        log_limited(
            logger,
            "Transactions are not supported; refused a transactional producer",
            extra={
                "transactional_id": request.transactional_id[:100],
                **context.log_fields(),
            },
        )
        return _error_response(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if (request.producer_id == _NONE) != (request.producer_epoch == _NONE):
        return _error_response(ErrorCode.INVALID_REQUEST)
    try:
        return InitProducerIdResponse(producer_id=await broker.producer_ids.generate())
    except EXPECTED_ERRORS as error:
        return _error_response(error_code_of(error))


def _error_response(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_epoch=-1)
