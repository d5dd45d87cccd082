"""AddPartitionsToTxn (key 24): add partitions to a transaction.

Version 2 may return PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH.
Version 3 is the first flexible version.
Version 4 is for brokers: several transactions, and VerifyOnly (KIP-890).
Version 5 may return TRANSACTION_ABORTABLE.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import ADD_PARTITIONS_TO_TXN
from ..schema import Array, Bool, Int16, Int32, Int64, Message, String, field


class AddPartitionsToTxnTopic(Message):
    name: str = field(String)
    partitions: Sequence[int] = field(Array(Int32))


class AddPartitionsToTxnTransaction(Message):
    transactional_id: str = field(String)
    producer_id: int = field(Int64)
    producer_epoch: int = field(Int16)
    verify_only: bool = field(Bool)  # do not add, only check
    topics: Sequence[AddPartitionsToTxnTopic] = field(Array(AddPartitionsToTxnTopic))


class AddPartitionsToTxnRequest(Message, api=ADD_PARTITIONS_TO_TXN):
    transactions: Sequence[AddPartitionsToTxnTransaction] = field(
        Array(AddPartitionsToTxnTransaction), since=4
    )
    v3_and_below_transactional_id: str = field(String, until=3)
    v3_and_below_producer_id: int = field(Int64, until=3)
    v3_and_below_producer_epoch: int = field(Int16, until=3)
    v3_and_below_topics: Sequence[AddPartitionsToTxnTopic] = field(
        Array(AddPartitionsToTxnTopic), until=3
    )


class AddPartitionsToTxnPartitionResult(Message):
    partition_index: int = field(Int32)
    partition_error_code: int = field(Int16)


class AddPartitionsToTxnTopicResult(Message):
    name: str = field(String)
    results_by_partition: Sequence[AddPartitionsToTxnPartitionResult] = field(
        Array(AddPartitionsToTxnPartitionResult)
    )


class AddPartitionsToTxnResult(Message):
    transactional_id: str = field(String)
    topic_results: Sequence[AddPartitionsToTxnTopicResult] = field(
        Array(AddPartitionsToTxnTopicResult)
    )


class AddPartitionsToTxnResponse(Message, api=ADD_PARTITIONS_TO_TXN):
    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16, since=4, ignorable=True)
    results_by_transaction: Sequence[AddPartitionsToTxnResult] = field(
        Array(AddPartitionsToTxnResult), since=4
    )
    results_by_topic_v3_and_below: Sequence[AddPartitionsToTxnTopicResult] = field(
        Array(AddPartitionsToTxnTopicResult), until=3
    )
