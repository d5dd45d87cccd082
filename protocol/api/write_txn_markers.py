"""WriteTxnMarkers (key 27): end transactions in partitions, as their coordinator decided.

Between brokers. Version 1 is the first flexible version.
Version 2 adds TransactionVersion (KIP-1228).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import WRITE_TXN_MARKERS
from ..schema import Array, Bool, Int8, Int16, Int32, Int64, Message, String, field


class WritableTxnMarkerTopic(Message):
    name: str = field(String)
    partition_indexes: Sequence[int] = field(Array(Int32))


class WritableTxnMarker(Message):
    producer_id: int = field(Int64)
    producer_epoch: int = field(Int16)
    transaction_result: bool = field(Bool)  # true = commit, false = abort
    topics: Sequence[WritableTxnMarkerTopic] = field(Array(WritableTxnMarkerTopic))
    coordinator_epoch: int = field(Int32)
    # 2: the epoch is larger than that of the records
    transaction_version: int = field(Int8, since=2, ignorable=True)


class WriteTxnMarkersRequest(Message, api=WRITE_TXN_MARKERS):
    markers: Sequence[WritableTxnMarker] = field(Array(WritableTxnMarker))


class WritableTxnMarkerPartitionResult(Message):
    partition_index: int = field(Int32)
    error_code: int = field(Int16)


class WritableTxnMarkerTopicResult(Message):
    name: str = field(String)
    partitions: Sequence[WritableTxnMarkerPartitionResult] = field(
        Array(WritableTxnMarkerPartitionResult)
    )


class WritableTxnMarkerResult(Message):
    producer_id: int = field(Int64)
    topics: Sequence[WritableTxnMarkerTopicResult] = field(Array(WritableTxnMarkerTopicResult))


class WriteTxnMarkersResponse(Message, api=WRITE_TXN_MARKERS):
    markers: Sequence[WritableTxnMarkerResult] = field(Array(WritableTxnMarkerResult))
