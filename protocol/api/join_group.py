"""JoinGroup (key 11): join a group, and wait for its next generation.

Version 1 adds RebalanceTimeoutMs; before, SessionTimeoutMs was used for both.
Version 2 adds ThrottleTimeMs to the response.
Version 4 may return MEMBER_ID_REQUIRED with a MemberId to join with.
Version 5 adds GroupInstanceId.
Version 6 is the first flexible version.
Version 7 adds ProtocolType to the response, and makes ProtocolName nullable.
Version 8 adds Reason.
Version 9 adds SkipAssignment to the response.
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
    # -1 = use SessionTimeoutMs
    rebalance_timeout_ms: int = field(Int32, since=1, ignorable=True, default=-1)
    member_id: str = field(String)  # empty on first join
    # null unless a static member
    group_instance_id: str | None = field(String, since=5, nullable=5, default=None)
    protocol_type: str = field(String)  # "consumer", "connect", ...
    # assignors offered, in preference order
    protocols: Sequence[JoinGroupRequestProtocol] = field(Array(JoinGroupRequestProtocol))
    reason: str | None = field(String, since=8, nullable=8, ignorable=True, default=None)


class JoinGroupResponseMember(Message):
    member_id: str = field(String)  # assigned by the coordinator
    # null unless a static member
    group_instance_id: str | None = field(String, since=5, nullable=5, ignorable=True, default=None)
    metadata: Buffer = field(Bytes)  # opaque subscription bytes


class JoinGroupResponse(Message, api=JOIN_GROUP):
    throttle_time_ms: int = field(Int32, since=2, ignorable=True)
    error_code: int = field(Int16)
    generation_id: int = field(Int32, default=-1)  # -1 on error
    # "consumer", "connect", ...
    protocol_type: str | None = field(String, since=7, nullable=7, ignorable=True, default=None)
    protocol_name: str | None = field(String, nullable=7)  # selected assignor name
    leader: str = field(String)
    skip_assignment: bool = field(Bool, since=9)  # leader must not compute assignment
    member_id: str = field(String)  # assigned by the coordinator
    # filled only for the leader
    members: Sequence[JoinGroupResponseMember] = field(Array(JoinGroupResponseMember))
