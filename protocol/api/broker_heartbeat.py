"""BrokerHeartbeat (key 63): report the metadata offset of a broker; from it to the controller.

ottla uses it with a metadata store only, where the offset is a revision of the store. Liveness is
that of the broker's lease.

Version 0 is the first flexible version.
"""

from __future__ import annotations

from ..registry import BROKER_HEARTBEAT
from ..schema import Bool, Int16, Int32, Int64, Message, field


class BrokerHeartbeatRequest(Message, api=BROKER_HEARTBEAT):
    broker_id: int = field(Int32)
    broker_epoch: int = field(Int64, default=-1)
    current_metadata_offset: int = field(Int64)  # everything up to it is applied
    want_fence: bool = field(Bool)
    want_shut_down: bool = field(Bool)


class BrokerHeartbeatResponse(Message, api=BROKER_HEARTBEAT):
    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)
    is_caught_up: bool = field(Bool)
    is_fenced: bool = field(Bool, default=True)
    should_shut_down: bool = field(Bool)
