"""ListTransactions (key 66): list the transactions that a broker coordinates.

Version 1 adds DurationFilter.
Version 2 adds TransactionalIdPattern (KIP-1152).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import LIST_TRANSACTIONS
from ..schema import Array, Int16, Int32, Int64, Message, String, field


class ListTransactionsRequest(Message, api=LIST_TRANSACTIONS):
    state_filters: Sequence[str] = field(Array(String))  # only these states, empty = all
    producer_id_filters: Sequence[int] = field(Array(Int64))  # only these producers, empty = all
    # only transactions open for at least this many ms, -1 = all
    duration_filter: int = field(Int64, since=1, default=-1)
    # only ids that this regular expression matches as a whole, null or empty = all
    transactional_id_pattern: str | None = field(String, since=2, nullable=2, default=None)


class TransactionState(Message):
    transactional_id: str = field(String)
    producer_id: int = field(Int64)
    transaction_state: str = field(String)


class ListTransactionsResponse(Message, api=LIST_TRANSACTIONS):
    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)
    unknown_state_filters: Sequence[str] = field(Array(String))
    transaction_states: Sequence[TransactionState] = field(Array(TransactionState))
