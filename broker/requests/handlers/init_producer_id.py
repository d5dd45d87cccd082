"""InitProducerId: a producer id and epoch, for an idempotent or a transactional producer.

An idempotent producer gets a new id, even if it sends one that it had before. A transactional one
gets the id of its transactional id, with a new epoch that fences the producers before it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ottla.coord.effects import Producer
from ottla.coord.transaction_shard import ProducerResult
from ottla.protocol.api.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.errors import ErrorCode

from ...observability.logging import log_limited
from ..authorization import (
    CLUSTER,
    DENIED,
    IDEMPOTENT_WRITE,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
    allows,
)
from ..errors import EXPECTED_ERRORS, error_code_of

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext

logger = logging.getLogger(__name__)

_NONE = -1
_FIRST_WITH_PRODUCER_FENCED = 4
#: The key of a record in __transaction_state has no room for more.
_MAX_TRANSACTIONAL_ID_BYTES = 32_767


async def handle(
    broker: Broker, context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    """Handle InitProducerId."""
    transactional_id = request.transactional_id
    if transactional_id is None:
        if not _may_write_idempotently(broker, context):
            return _error_response(DENIED[CLUSTER])
    elif not allows(broker, context, WRITE, TRANSACTIONAL_ID, transactional_id):
        return _error_response(DENIED[TRANSACTIONAL_ID])
    if transactional_id is not None and not (
        0 < len(transactional_id.encode()) <= _MAX_TRANSACTIONAL_ID_BYTES
    ):
        return _error_response(ErrorCode.INVALID_REQUEST)
    if (request.producer_id == _NONE) != (request.producer_epoch == _NONE):
        return _error_response(ErrorCode.INVALID_REQUEST)
    try:
        if transactional_id is None:
            return InitProducerIdResponse(producer_id=await broker.producer_ids.generate())
        result = await _init_transactional(broker, transactional_id, request)
    except EXPECTED_ERRORS as error:
        return _error_response(error_code_of(error))
    code = result.code
    if code and not code.retriable:
        log_limited(
            logger,
            "Transactional id refused",
            level=logging.INFO,
            extra={
                "transactional_id": transactional_id,
                "client_id": context.client_id,
                "reason": code.name,
            },
        )
    if code is ErrorCode.PRODUCER_FENCED and context.version < _FIRST_WITH_PRODUCER_FENCED:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    return InitProducerIdResponse(
        error_code=code, producer_id=result.producer.id, producer_epoch=result.producer.epoch
    )


def _may_write_idempotently(broker: Broker, context: RequestContext) -> bool:
    """Whether a client may write to any topic, or has IDEMPOTENT_WRITE, as it was before 2.8."""
    authorizer = broker.authorizer
    return (
        authorizer is None
        or authorizer.allows_any(context, WRITE, TOPIC)
        or allows(broker, context, IDEMPOTENT_WRITE, CLUSTER)
    )


async def _init_transactional(
    broker: Broker, transactional_id: str, request: InitProducerIdRequest
) -> ProducerResult:
    runtime = broker.transactions.shard_of(transactional_id)
    new_producer_id = None
    if runtime is not None and runtime.shard.needs_producer_id(transactional_id):
        new_producer_id = await broker.producer_ids.generate()
    expected = None
    if request.producer_id != _NONE:
        expected = Producer(request.producer_id, request.producer_epoch)
    result = broker.transactions.submit(
        transactional_id,
        lambda shard, token, now: shard.init_producer_id(
            transactional_id, request.transaction_timeout_ms, expected, new_producer_id, token, now
        ),
        ProducerResult,
    )
    return await result if isinstance(result, asyncio.Future) else result


def _error_response(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_epoch=-1)
