"""LeaveGroup (key 13): members leave a group.

Version 1 adds the throttle time to the response.
Version 3 lets many members leave at once, static ones by their instance id.
Version 4 is the first flexible version.
Version 5 adds the reason for leaving.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import LEAVE_GROUP
from ..schema import Array, Int16, Int32, Message, String, field


class MemberIdentity(Message):
    # v0-2 single member; v3+ per member (may be empty with instance id)
    member_id: str = field(String)
    group_instance_id: str | None = field(String, nullable=3, default=None)  # static member id
    reason: str | None = field(String, since=5, nullable=5, ignorable=True, default=None)


class LeaveGroupRequest(Message, api=LEAVE_GROUP):
    group_id: str = field(String)
    # v0-2 single member; v3+ per member (may be empty with instance id)
    member_id: str = field(String, until=2)
    members: Sequence[MemberIdentity] = field(Array(MemberIdentity), since=3)


class MemberResponse(Message):
    member_id: str = field(String)
    group_instance_id: str | None = field(String, nullable=3)  # static member id
    error_code: int = field(Int16)


class LeaveGroupResponse(Message, api=LEAVE_GROUP):
    throttle_time_ms: int = field(Int32, since=1, ignorable=True)
    error_code: int = field(Int16)
    members: Sequence[MemberResponse] = field(Array(MemberResponse), since=3)
