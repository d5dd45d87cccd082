"""AddPartitionsToTxn (key 24): add partitions to a transaction.

Version 2 may return PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH.
Version 3 is the first flexible version.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import ADD_PARTITIONS_TO_TXN
from ..schema import Array, Int16, Int32, Int64, Message, String, field


class AddPartitionsToTxnTopic(Message):
    name: str = field(String)
    partitions: Sequence[int] = field(Array(Int32))


class AddPartitionsToTxnRequest(Message, api=ADD_PARTITIONS_TO_TXN):
    v3_and_below_transactional_id: str = field(String)
    v3_and_below_producer_id: int = field(Int64)
    v3_and_below_producer_epoch: int = field(Int16)
    v3_and_below_topics: Sequence[AddPartitionsToTxnTopic] = field(Array(AddPartitionsToTxnTopic))


class AddPartitionsToTxnPartitionResult(Message):
    partition_index: int = field(Int32)
    partition_error_code: int = field(Int16)


class AddPartitionsToTxnTopicResult(Message):
    name: str = field(String)
    results_by_partition: Sequence[AddPartitionsToTxnPartitionResult] = field(
        Array(AddPartitionsToTxnPartitionResult)
    )


class AddPartitionsToTxnResponse(Message, api=ADD_PARTITIONS_TO_TXN):
    throttle_time_ms: int = field(Int32)
    results_by_topic_v3_and_below: Sequence[AddPartitionsToTxnTopicResult] = field(
        Array(AddPartitionsToTxnTopicResult)
    )
