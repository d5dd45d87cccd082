"""AllocateProducerIds (key 67): allocate a block of producer ids; from a broker to the controller.

Version 0 is the first flexible version.
"""

from __future__ import annotations

from ..registry import ALLOCATE_PRODUCER_IDS
from ..schema import Int16, Int32, Int64, Message, field


class AllocateProducerIdsRequest(Message, api=ALLOCATE_PRODUCER_IDS):
    broker_id: int = field(Int32)  # the requesting broker
    broker_epoch: int = field(Int64, default=-1)


class AllocateProducerIdsResponse(Message, api=ALLOCATE_PRODUCER_IDS):
    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)
    producer_id_start: int = field(Int64)  # first id of the block
    producer_id_len: int = field(Int32)  # number of ids in the block
