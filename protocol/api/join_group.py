"""JoinGroup (key 11): become a member of a group, and wait for its next generation.

Version 1 adds the rebalance timeout; before it, the session timeout served for both.
Version 2 adds the throttle time to the response.
Version 4 answers a new member with MEMBER_ID_REQUIRED and an id to join with.
Version 5 adds static members.
Version 6 is the first flexible version.
Version 7 adds the protocol type to the response, and lets the protocol name be null.
Version 8 adds the reason for joining.
Version 9 lets the coordinator tell the leader to assign nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import JOIN_GROUP
from ..schema import Array, Bool, Buffer, Bytes, Int16, Int32, Message, String, field


class JoinGroupRequestProtocol(Message):
    name: str = field(String)
    metadata: Buffer = field(Bytes)  # opaque subscription bytes


class JoinGroupRequest(Message, api=JOIN_GROUP):
    group_id: str = field(String)
    session_timeout_ms: int = field(Int32)
    # use SessionTimeoutMs when absent (v0)
    rebalance_timeout_ms: int = field(Int32, since=1, ignorable=True, default=-1)
    member_id: str = field(String)  # empty on first join
    # static member id
    group_instance_id: str | None = field(String, since=5, nullable=5, default=None)
    protocol_type: str = field(String)  # "consumer", "connect", ...
    # assignors offered, in preference order
    protocols: Sequence[JoinGroupRequestProtocol] = field(Array(JoinGroupRequestProtocol))
    reason: str | None = field(String, since=8, nullable=8, ignorable=True, default=None)


class JoinGroupResponseMember(Message):
    member_id: str = field(String)  # id the broker assigned / echoed
    # static member id
    group_instance_id: str | None = field(String, since=5, nullable=5, ignorable=True, default=None)
    metadata: Buffer = field(Bytes)  # opaque subscription bytes


class JoinGroupResponse(Message, api=JOIN_GROUP):
    throttle_time_ms: int = field(Int32, since=2, ignorable=True)
    error_code: int = field(Int16)
    generation_id: int = field(Int32, default=-1)  # -1 on error
    # "consumer", "connect", ...
    protocol_type: str | None = field(String, since=7, nullable=7, ignorable=True, default=None)
    protocol_name: str | None = field(String, nullable=7)  # selected assignor name
    leader: str = field(String)  # leader member id
    skip_assignment: bool = field(Bool, since=9)  # leader must not compute assignment
    member_id: str = field(String)  # id the broker assigned / echoed
    # filled only for the leader
    members: Sequence[JoinGroupResponseMember] = field(Array(JoinGroupResponseMember))
