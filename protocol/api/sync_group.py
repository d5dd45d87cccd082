"""SyncGroup (key 14): distribute the leader's assignment to the members of a group.

Version 1 adds ThrottleTimeMs to the response.
Version 3 adds GroupInstanceId.
Version 4 is the first flexible version.
Version 5 adds ProtocolType and ProtocolName.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import SYNC_GROUP
from ..schema import Array, Buffer, Bytes, Int16, Int32, Message, String, field


class SyncGroupRequestAssignment(Message):
    member_id: str = field(String)
    assignment: Buffer = field(Bytes)  # opaque assignment bytes


class SyncGroupRequest(Message, api=SYNC_GROUP):
    group_id: str = field(String)
    generation_id: int = field(Int32)
    member_id: str = field(String)
    # null unless a static member
    group_instance_id: str | None = field(String, since=3, nullable=3, default=None)
    # "consumer", "connect", ...
    protocol_type: str | None = field(String, since=5, nullable=5, ignorable=True, default=None)
    # selected assignor name
    protocol_name: str | None = field(String, since=5, nullable=5, ignorable=True, default=None)
    # sent by leader, empty from others
    assignments: Sequence[SyncGroupRequestAssignment] = field(Array(SyncGroupRequestAssignment))


class SyncGroupResponse(Message, api=SYNC_GROUP):
    throttle_time_ms: int = field(Int32, since=1, ignorable=True)
    error_code: int = field(Int16)
    # "consumer", "connect", ...
    protocol_type: str | None = field(String, since=5, nullable=5, ignorable=True, default=None)
    # selected assignor name
    protocol_name: str | None = field(String, since=5, nullable=5, ignorable=True, default=None)
    assignment: Buffer = field(Bytes)  # opaque assignment bytes
