"""LeaveGroup (key 13): leave a group.

Version 1 adds ThrottleTimeMs to the response.
Version 3 replaces MemberId by Members, for several members in one request; adds GroupInstanceId.
Version 4 is the first flexible version.
Version 5 adds Reason.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import LEAVE_GROUP
from ..schema import Array, Int16, Int32, Message, String, field


class MemberIdentity(Message):
    member_id: str = field(String)  # may be empty for a static member
    # null unless a static member
    group_instance_id: str | None = field(String, nullable=3, default=None)
    reason: str | None = field(String, since=5, nullable=5, ignorable=True, default=None)


class LeaveGroupRequest(Message, api=LEAVE_GROUP):
    group_id: str = field(String)
    member_id: str = field(String, until=2)
    members: Sequence[MemberIdentity] = field(Array(MemberIdentity), since=3)


class MemberResponse(Message):
    member_id: str = field(String)
    group_instance_id: str | None = field(String, nullable=3)  # null unless a static member
    error_code: int = field(Int16)


class LeaveGroupResponse(Message, api=LEAVE_GROUP):
    throttle_time_ms: int = field(Int32, since=1, ignorable=True)
    error_code: int = field(Int16)
    members: Sequence[MemberResponse] = field(Array(MemberResponse), since=3)
