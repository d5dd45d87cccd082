"""DescribeTransactions: the state of transactional ids, from their coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.api.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from ottla.protocol.errors import ErrorCode

from ..authorization import DENIED, DESCRIBE, TOPIC, TRANSACTIONAL_ID, allows

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext


def handle(
    broker: Broker, context: RequestContext, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    """Handle DescribeTransactions."""
    return DescribeTransactionsResponse(
        transaction_states=[
            _describe(broker, context, transactional_id)
            for transactional_id in dict.fromkeys(request.transactional_ids)
        ]
    )


def _describe(broker: Broker, context: RequestContext, transactional_id: str) -> TransactionState:
    if not allows(broker, context, DESCRIBE, TRANSACTIONAL_ID, transactional_id):
        return TransactionState(
            error_code=DENIED[TRANSACTIONAL_ID], transactional_id=transactional_id
        )
    code = ErrorCode.INVALID_REQUEST
    if transactional_id:
        code = broker.transactions.check(transactional_id)
    transaction = broker.transactions.transaction(transactional_id)
    metadata = None if transaction is None else transaction.metadata
    if code is ErrorCode.NONE and metadata is None:
        code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    if code is not ErrorCode.NONE or metadata is None:
        return TransactionState(error_code=code, transactional_id=transactional_id)
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(metadata.partitions):
        if allows(broker, context, DESCRIBE, TOPIC, topic, logs=False):
            topics.setdefault(topic, []).append(index)
    return TransactionState(
        transactional_id=transactional_id,
        transaction_state=metadata.state.label,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_start_time_ms=metadata.start_ms,
        producer_id=metadata.producer_id,
        producer_epoch=metadata.producer_epoch,
        topics=[TopicData(topic=name, partitions=indexes) for name, indexes in topics.items()],
    )
