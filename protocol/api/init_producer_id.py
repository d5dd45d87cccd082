"""InitProducerId (key 22): allocate a producer id and epoch.

Version 2 is the first flexible version.
Version 3 adds ProducerId and ProducerEpoch to the request, to bump the epoch of a producer.
Version 4 may return PRODUCER_FENCED.
Version 5 may return TRANSACTION_ABORTABLE.
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
