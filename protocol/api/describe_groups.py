"""DescribeGroups (key 15): describe groups of the classic protocol and their members.

Version 1 adds ThrottleTimeMs to the response.
Version 3 adds IncludeAuthorizedOperations to the request, and AuthorizedOperations to the response.
Version 4 adds GroupInstanceId to the response.
Version 5 is the first flexible version.
Version 6 adds ErrorMessage: a group that does not exist is GROUP_ID_NOT_FOUND (KIP-1043).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import DESCRIBE_GROUPS
from ..schema import Array, Bool, Buffer, Bytes, Int16, Int32, Message, String, field


class DescribeGroupsRequest(Message, api=DESCRIBE_GROUPS):
    groups: Sequence[str] = field(Array(String))
    include_authorized_operations: bool = field(Bool, since=3)  # fill the ACL bitfield


class DescribedGroupMember(Message):
    member_id: str = field(String)
    # null unless a static member
    group_instance_id: str | None = field(String, since=4, nullable=4, ignorable=True, default=None)
    client_id: str = field(String)  # client.id of member
    client_host: str = field(String)  # peer address
    member_metadata: Buffer = field(Bytes)  # opaque subscription bytes
    member_assignment: Buffer = field(Bytes)  # opaque assignment bytes


class DescribedGroup(Message):
    error_code: int = field(Int16)
    error_message: str | None = field(String, since=6, nullable=6, ignorable=True, default=None)
    group_id: str = field(String)
    group_state: str = field(String)  # Empty/PreparingRebalance/CompletingRebalance/Stable/Dead
    protocol_type: str = field(String)  # "consumer", "connect", ...
    protocol_data: str = field(String)  # selected protocol name
    members: Sequence[DescribedGroupMember] = field(Array(DescribedGroupMember))
    # ACL operation bitfield, INT32_MIN = not requested
    authorized_operations: int = field(Int32, since=3, default=-(2**31))


class DescribeGroupsResponse(Message, api=DESCRIBE_GROUPS):
    throttle_time_ms: int = field(Int32, since=1, ignorable=True)
    groups: Sequence[DescribedGroup] = field(Array(DescribedGroup))
