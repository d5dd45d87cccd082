"""DescribeTransactions (key 65): describe the state of transactions.

Version 0 is the first flexible version.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import DESCRIBE_TRANSACTIONS
from ..schema import Array, Int16, Int32, Int64, Message, String, field


class DescribeTransactionsRequest(Message, api=DESCRIBE_TRANSACTIONS):
    transactional_ids: Sequence[str] = field(Array(String))


class TopicData(Message):
    topic: str = field(String)
    partitions: Sequence[int] = field(Array(Int32))


class TransactionState(Message):
    error_code: int = field(Int16)
    transactional_id: str = field(String)
    transaction_state: str = field(String)  # Empty/Ongoing/PrepareCommit/...
    transaction_timeout_ms: int = field(Int32)
    transaction_start_time_ms: int = field(Int64)  # start time, -1 none
    producer_id: int = field(Int64)
    producer_epoch: int = field(Int16)
    topics: Sequence[TopicData] = field(Array(TopicData))


class DescribeTransactionsResponse(Message, api=DESCRIBE_TRANSACTIONS):
    throttle_time_ms: int = field(Int32)
    transaction_states: Sequence[TransactionState] = field(Array(TransactionState))
