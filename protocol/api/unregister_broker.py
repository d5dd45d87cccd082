"""UnregisterBroker (key 64): remove a broker from the cluster."""

from __future__ import annotations

from ..registry import UNREGISTER_BROKER
from ..schema import Int16, Int32, Message, String, field


class UnregisterBrokerRequest(Message, api=UNREGISTER_BROKER):
    broker_id: int = field(Int32)


class UnregisterBrokerResponse(Message, api=UNREGISTER_BROKER):
    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable=0, default=None)
