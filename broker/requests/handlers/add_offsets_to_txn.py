"""AddOffsetsToTxn: add the offsets of a group to a transaction, as a partition of their topic."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ottla.coord.effects import Producer
from ottla.coord.metadata_image import OFFSETS_TOPIC, TopicPartition
from ottla.protocol.api.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from ottla.protocol.errors import ErrorCode

from ..errors import EXPECTED_ERRORS
from .find_coordinator import ensure_offsets_topic

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext

_FIRST_WITH_PRODUCER_FENCED = 2


async def handle(
    broker: Broker, context: RequestContext, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    """Handle AddOffsetsToTxn."""
    if not request.group_id:
        return AddOffsetsToTxnResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    try:
        await ensure_offsets_topic(broker)
    except EXPECTED_ERRORS:
        return AddOffsetsToTxnResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    index = broker.groups.partition_index_of(request.group_id)
    if index < 0:
        return AddOffsetsToTxnResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    producer = Producer(request.producer_id, request.producer_epoch)
    result = broker.transactions.submit(
        request.transactional_id,
        lambda shard, token, now: shard.add_partitions(
            request.transactional_id,
            producer,
            [TopicPartition(OFFSETS_TOPIC, index)],
            token,
            now,
        ),
        ErrorCode,
    )
    code = await result if isinstance(result, asyncio.Future) else result
    return AddOffsetsToTxnResponse(error_code=fenced_code(code, context.version))


def fenced_code(code: ErrorCode, version: int) -> ErrorCode:
    """Return the code of a fenced producer as the version of a request knows it.

    For AddPartitionsToTxn, AddOffsetsToTxn and EndTxn.
    """
    if code is ErrorCode.PRODUCER_FENCED and version < _FIRST_WITH_PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code
