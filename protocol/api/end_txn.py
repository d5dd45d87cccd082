"""EndTxn (key 26): commit or abort a transaction.

Version 2 may return PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH.
Version 3 is the first flexible version.
Version 4 may return TRANSACTION_ABORTABLE.
Version 5 bumps the producer epoch, and adds ProducerId and ProducerEpoch to the response (KIP-890).
"""

from __future__ import annotations

from ..registry import END_TXN
from ..schema import Bool, Int16, Int32, Int64, Message, String, field


class EndTxnRequest(Message, api=END_TXN):
    transactional_id: str = field(String)
    producer_id: int = field(Int64)
    producer_epoch: int = field(Int16)
    committed: bool = field(Bool)  # true = commit, false = abort


class EndTxnResponse(Message, api=END_TXN):
    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)
    producer_id: int = field(Int64, since=5, default=-1, ignorable=True)  # to use from now on
    producer_epoch: int = field(Int16, since=5, default=-1, ignorable=True)
