"""CreatePartitions (key 37): add partitions to topics.

Version 2 is the first flexible version.
Version 3 may return THROTTLING_QUOTA_EXCEEDED.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import CREATE_PARTITIONS
from ..schema import Array, Bool, Int16, Int32, Message, String, field


class CreatePartitionsAssignment(Message):
    broker_ids: Sequence[int] = field(Array(Int32))  # explicit replica list


class CreatePartitionsTopic(Message):
    name: str = field(String)
    count: int = field(Int32)  # new total partition count
    # replicas of the new partitions, null = automatic
    assignments: Sequence[CreatePartitionsAssignment] | None = field(
        Array(CreatePartitionsAssignment), nullable=0
    )


class CreatePartitionsRequest(Message, api=CREATE_PARTITIONS):
    topics: Sequence[CreatePartitionsTopic] = field(Array(CreatePartitionsTopic))
    timeout_ms: int = field(Int32)
    validate_only: bool = field(Bool)  # dry run


class CreatePartitionsTopicResult(Message):
    name: str = field(String)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable=0, default=None)


class CreatePartitionsResponse(Message, api=CREATE_PARTITIONS):
    throttle_time_ms: int = field(Int32)
    results: Sequence[CreatePartitionsTopicResult] = field(Array(CreatePartitionsTopicResult))
