"""ConsumerGroupHeartbeat (key 68): join, stay in or leave a group, consumer protocol (KIP-848).

Version 1 adds SubscribedTopicRegex, and requires the client to generate MemberId.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from ..registry import CONSUMER_GROUP_HEARTBEAT
from ..schema import Array, Int16, Int32, Message, String, Struct, Uuid, field


class TopicPartitions(Message):
    topic_id: UUID = field(Uuid)
    partitions: Sequence[int] = field(Array(Int32))


class ConsumerGroupHeartbeatRequest(Message, api=CONSUMER_GROUP_HEARTBEAT):
    group_id: str = field(String)
    member_id: str = field(String)
    member_epoch: int = field(Int32)  # 0 join, -1 leave, -2 static leave, else echo
    instance_id: str | None = field(String, nullable=0, default=None)  # null unless a static member
    rack_id: str | None = field(String, nullable=0, default=None)  # client rack
    rebalance_timeout_ms: int = field(Int32, default=-1)  # -1 = unchanged
    # topics, null = unchanged
    subscribed_topic_names: Sequence[str] | None = field(Array(String), nullable=0, default=None)
    # RE2 regex, null = unchanged
    subscribed_topic_regex: str | None = field(String, since=1, nullable=1, default=None)
    # server-side assignor, null = unchanged
    server_assignor: str | None = field(String, nullable=0, default=None)
    # partitions owned now, null = unchanged
    topic_partitions: Sequence[TopicPartitions] | None = field(
        Array(TopicPartitions), nullable=0, default=None
    )


class Assignment(Message):
    topic_partitions: Sequence[TopicPartitions] = field(Array(TopicPartitions))


class ConsumerGroupHeartbeatResponse(Message, api=CONSUMER_GROUP_HEARTBEAT):
    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable=0, default=None)
    member_id: str | None = field(String, nullable=0, default=None)
    member_epoch: int = field(Int32)  # epoch to echo next
    heartbeat_interval_ms: int = field(Int32)  # client must heartbeat this often
    # null = unchanged
    assignment: Assignment | None = field(Struct(Assignment), nullable=0, default=None)
