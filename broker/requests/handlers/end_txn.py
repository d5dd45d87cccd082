"""EndTxn: commit or abort a transaction.

Answered when all partitions have their marker, or shortly after the decision is durable. Since
version 5 the producer gets a new epoch for its next transaction (KIP-890).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ottla.coord.effects import Producer
from ottla.coord.transaction_shard import ProducerResult
from ottla.protocol.api.end_txn import EndTxnRequest, EndTxnResponse

from ..errors import EXPECTED_ERRORS, error_code_of
from .add_offsets_to_txn import fenced_code

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext

_FIRST_WITH_EPOCH_BUMP = 5


async def handle(broker: Broker, context: RequestContext, request: EndTxnRequest) -> EndTxnResponse:
    """Handle EndTxn."""
    bumps_epoch = context.version >= _FIRST_WITH_EPOCH_BUMP
    transactional_id = request.transactional_id
    new_producer_id = None
    if bumps_epoch:
        runtime = broker.transactions.shard_of(transactional_id)
        if runtime is not None and runtime.shard.has_exhausted_epoch(transactional_id):
            try:
                new_producer_id = await broker.producer_ids.generate()
            except EXPECTED_ERRORS as error:
                return EndTxnResponse(error_code=error_code_of(error))
    result = broker.transactions.submit(
        transactional_id,
        lambda shard, token, now: shard.end(
            transactional_id,
            Producer(request.producer_id, request.producer_epoch),
            new_producer_id,
            token,
            now,
            is_commit=request.committed,
            bumps_epoch=bumps_epoch,
        ),
        ProducerResult,
    )
    code, producer = await result if isinstance(result, asyncio.Future) else result
    return EndTxnResponse(
        error_code=fenced_code(code, context.version),
        producer_id=producer.id,
        producer_epoch=producer.epoch,
    )
