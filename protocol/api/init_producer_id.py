"""InitProducerId (key 22): get a producer id for idempotence or transactions.

Version 2 is the first flexible version.
Version 3 lets a producer bring the id and epoch that it has.
Version 4 may answer PRODUCER_FENCED.
Version 5 may answer TRANSACTION_ABORTABLE.
"""

from __future__ import annotations

from ..registry import INIT_PRODUCER_ID
from ..schema import Int16, Int32, Int64, Message, String, field


class InitProducerIdRequest(Message, api=INIT_PRODUCER_ID):
    transactional_id: str | None = field(String, nullable=0)  # null = idempotent only
    transaction_timeout_ms: int = field(Int32)
    producer_id: int = field(Int64, since=3, default=-1)  # current id or -1
    producer_epoch: int = field(Int16, since=3, default=-1)  # current epoch or -1


class InitProducerIdResponse(Message, api=INIT_PRODUCER_ID):
    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)
    producer_id: int = field(Int64, default=-1)
    producer_epoch: int = field(Int16)
