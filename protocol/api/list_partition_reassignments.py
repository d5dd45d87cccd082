"""ListPartitionReassignments (key 46): list the reassignments under way (KIP-455)."""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import LIST_PARTITION_REASSIGNMENTS
from ..schema import Array, Int16, Int32, Message, String, field


class ListPartitionReassignmentsTopics(Message):
    name: str = field(String)
    partition_indexes: Sequence[int] = field(Array(Int32))


class ListPartitionReassignmentsRequest(Message, api=LIST_PARTITION_REASSIGNMENTS):
    timeout_ms: int = field(Int32, default=60_000)
    # null = all partitions
    topics: Sequence[ListPartitionReassignmentsTopics] | None = field(
        Array(ListPartitionReassignmentsTopics), nullable=0, default=None
    )


class OngoingPartitionReassignment(Message):
    partition_index: int = field(Int32)
    replicas: Sequence[int] = field(Array(Int32))  # all of them, the target's first
    adding_replicas: Sequence[int] = field(Array(Int32))
    removing_replicas: Sequence[int] = field(Array(Int32))


class OngoingTopicReassignment(Message):
    name: str = field(String)
    partitions: Sequence[OngoingPartitionReassignment] = field(Array(OngoingPartitionReassignment))


class ListPartitionReassignmentsResponse(Message, api=LIST_PARTITION_REASSIGNMENTS):
    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable=0, default=None)
    topics: Sequence[OngoingTopicReassignment] = field(Array(OngoingTopicReassignment))
