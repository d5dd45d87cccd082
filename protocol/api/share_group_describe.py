"""ShareGroupDescribe (key 77): describe share groups (KIP-932).

Version 0 was an early access version. Version 1 is the first stable one.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import SHARE_GROUP_DESCRIBE
from ..schema import Array, Bool, Int16, Int32, Message, String, Struct, field
from .consumer_group_describe import Assignment


class ShareGroupDescribeRequest(Message, api=SHARE_GROUP_DESCRIBE):
    group_ids: Sequence[str] = field(Array(String))
    include_authorized_operations: bool = field(Bool)  # fill the ACL bitfield


class Member(Message):
    member_id: str = field(String)
    rack_id: str | None = field(String, nullable=0, default=None)  # client rack
    member_epoch: int = field(Int32)
    client_id: str = field(String)  # client.id of member
    client_host: str = field(String)  # peer address
    subscribed_topic_names: Sequence[str] = field(Array(String))
    assignment: Assignment = field(Struct(Assignment))  # current assignment


class DescribedGroup(Message):
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable=0, default=None)
    group_id: str = field(String)
    group_state: str = field(String)
    group_epoch: int = field(Int32)
    assignment_epoch: int = field(Int32)
    assignor_name: str = field(String)  # selected assignor
    members: Sequence[Member] = field(Array(Member))
    # ACL operation bitfield, INT32_MIN = not requested
    authorized_operations: int = field(Int32, default=-(2**31))


class ShareGroupDescribeResponse(Message, api=SHARE_GROUP_DESCRIBE):
    throttle_time_ms: int = field(Int32)
    groups: Sequence[DescribedGroup] = field(Array(DescribedGroup))
