"""ListTransactions: the transactional ids that this broker coordinates, filtered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from ottla.coord.consumer.regexes import InvalidRegexError, compile_regex
from ottla.coord.transaction_states import STATES_BY_LABEL
from ottla.coord.transaction_states import TransactionState as State
from ottla.protocol.api.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)
from ottla.protocol.errors import ErrorCode

from ..authorization import DESCRIBE, TRANSACTIONAL_ID, allows

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext


def handle(
    broker: Broker, context: RequestContext, request: ListTransactionsRequest
) -> ListTransactionsResponse | Coroutine[Any, Any, ListTransactionsResponse]:
    """Handle ListTransactions."""
    pattern = request.transactional_id_pattern
    if pattern:
        return _handle_pattern(broker, context, request, pattern)
    return _list(broker, context, request)


async def _handle_pattern(
    broker: Broker, context: RequestContext, request: ListTransactionsRequest, pattern: str
) -> ListTransactionsResponse:
    """List the ids that a regular expression matches; there may be many, so a thread does that."""
    ids = [transaction.id for transaction in broker.transactions.transactions()]

    def match() -> set[str]:
        return set(filter(compile_regex(pattern), ids))

    try:
        matching = await asyncio.to_thread(match)
    except InvalidRegexError:
        return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    return _list(broker, context, request, matching.__contains__)


def _list(
    broker: Broker,
    context: RequestContext,
    request: ListTransactionsRequest,
    matches: Callable[[str], bool] = lambda _id: True,
) -> ListTransactionsResponse:
    if broker.transactions.is_loading:
        return ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    states = set(request.state_filters)
    producer_ids = set(request.producer_id_filters)
    started_before_ms = broker.now_ms() - request.duration_filter
    listed = []
    for transaction in broker.transactions.transactions():
        metadata = transaction.metadata
        if metadata is None or not matches(transaction.id):
            continue
        if states and metadata.state.label not in states:
            continue
        if producer_ids and metadata.producer_id not in producer_ids:
            continue
        if request.duration_filter >= 0 and not (
            (metadata.state is State.ONGOING or metadata.state.is_prepared)
            and metadata.start_ms < started_before_ms
        ):
            continue
        if not allows(broker, context, DESCRIBE, TRANSACTIONAL_ID, transaction.id, logs=False):
            continue
        listed.append(
            TransactionState(
                transactional_id=transaction.id,
                producer_id=metadata.producer_id,
                transaction_state=metadata.state.label,
            )
        )
    return ListTransactionsResponse(
        unknown_state_filters=sorted(states - STATES_BY_LABEL.keys()), transaction_states=listed
    )
