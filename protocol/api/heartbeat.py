"""Heartbeat (key 12): keep a member alive in its group.

Version 1 adds ThrottleTimeMs to the response.
Version 3 adds GroupInstanceId.
Version 4 is the first flexible version.
"""

from __future__ import annotations

from ..registry import HEARTBEAT
from ..schema import Int16, Int32, Message, String, field


class HeartbeatRequest(Message, api=HEARTBEAT):
    group_id: str = field(String)
    generation_id: int = field(Int32)
    member_id: str = field(String)
    # null unless a static member
    group_instance_id: str | None = field(String, since=3, nullable=3, default=None)


class HeartbeatResponse(Message, api=HEARTBEAT):
    throttle_time_ms: int = field(Int32, since=1, ignorable=True)
    error_code: int = field(Int16)
