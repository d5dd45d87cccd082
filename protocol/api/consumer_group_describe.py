"""ConsumerGroupDescribe (key 69): describe groups of the consumer protocol (KIP-848).

Version 1 adds MemberType.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from ..registry import CONSUMER_GROUP_DESCRIBE
from ..schema import Array, Bool, Int8, Int16, Int32, Message, String, Struct, Uuid, field


class ConsumerGroupDescribeRequest(Message, api=CONSUMER_GROUP_DESCRIBE):
    group_ids: Sequence[str] = field(Array(String))
    include_authorized_operations: bool = field(Bool)  # fill the ACL bitfield


class TopicPartitions(Message):
    topic_id: UUID = field(Uuid)
    topic_name: str = field(String)
    partitions: Sequence[int] = field(Array(Int32))


class Assignment(Message):
    topic_partitions: Sequence[TopicPartitions] = field(Array(TopicPartitions))


class Member(Message):
    member_id: str = field(String)
    instance_id: str | None = field(String, nullable=0, default=None)  # null unless a static member
    rack_id: str | None = field(String, nullable=0, default=None)  # client rack
    member_epoch: int = field(Int32)
    client_id: str = field(String)  # client.id of member
    client_host: str = field(String)  # peer address
    subscribed_topic_names: Sequence[str] = field(Array(String))
    # RE2 regex, null = none
    subscribed_topic_regex: str | None = field(String, nullable=0, default=None)
    assignment: Assignment = field(Struct(Assignment))  # current assignment
    target_assignment: Assignment = field(Struct(Assignment))
    # -1 unknown 0 classic 1 consumer
    member_type: int = field(Int8, since=1, ignorable=True, default=-1)


class DescribedGroup(Message):
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable=0, default=None)
    group_id: str = field(String)
    group_state: str = field(String)
    group_epoch: int = field(Int32)
    assignment_epoch: int = field(Int32)  # epoch of target assignment
    assignor_name: str = field(String)  # selected server assignor
    members: Sequence[Member] = field(Array(Member))
    # ACL operation bitfield, INT32_MIN = not requested
    authorized_operations: int = field(Int32, default=-(2**31))


class ConsumerGroupDescribeResponse(Message, api=CONSUMER_GROUP_DESCRIBE):
    throttle_time_ms: int = field(Int32)
    groups: Sequence[DescribedGroup] = field(Array(DescribedGroup))
