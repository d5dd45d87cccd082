"""AddOffsetsToTxn (key 25): add the offsets of a group to a transaction.

Version 2 may return PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH.
Version 3 is the first flexible version.
Version 4 may return TRANSACTION_ABORTABLE.
"""

from __future__ import annotations

from ..registry import ADD_OFFSETS_TO_TXN
from ..schema import Int16, Int32, Int64, Message, String, field


class AddOffsetsToTxnRequest(Message, api=ADD_OFFSETS_TO_TXN):
    transactional_id: str = field(String)
    producer_id: int = field(Int64)
    producer_epoch: int = field(Int16)
    group_id: str = field(String)  # group whose offsets will be committed


class AddOffsetsToTxnResponse(Message, api=ADD_OFFSETS_TO_TXN):
    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)
