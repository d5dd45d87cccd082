"""BrokerHeartbeat (key 63): report the metadata offset of a broker; from it to the controller.

With a metadata store, the offset is a revision of the store, and liveness is that of the broker's
lease. In a static cluster it announces the process of a broker to all others, and has no offset.

Version 0 is the first flexible version. The tagged fields from 10,000 on are ottla's.
"""

from __future__ import annotations

from uuid import UUID

from ..primitives import NIL_UUID
from ..registry import BROKER_HEARTBEAT
from ..schema import Bool, Int16, Int32, Int64, Message, String, Uuid, field


class BrokerHeartbeatRequest(Message, api=BROKER_HEARTBEAT):
    broker_id: int = field(Int32)
    broker_epoch: int = field(Int64, default=-1)
    current_metadata_offset: int = field(Int64)  # everything up to it is applied
    want_fence: bool = field(Bool)
    want_shut_down: bool = field(Bool)
    cluster_id: str = field(String, tag=10000, default="")
    incarnation_id: UUID = field(Uuid, tag=10001, default=NIL_UUID)  # of the process
    host: str = field(String, tag=10002, default="")  # its address for other brokers
    port: int = field(Int32, tag=10003, default=-1)
    is_check: bool = field(Bool, tag=10004, default=False)  # ask only: it does not serve yet


class BrokerHeartbeatResponse(Message, api=BROKER_HEARTBEAT):
    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)
    is_caught_up: bool = field(Bool)
    is_fenced: bool = field(Bool, default=True)
    should_shut_down: bool = field(Bool)
    error_message: str = field(String, tag=10000, default="")
