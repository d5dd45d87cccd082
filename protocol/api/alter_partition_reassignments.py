"""AlterPartitionReassignments (key 45): move replicas to other brokers, or cancel that (KIP-455).

Version 1 adds AllowReplicationFactorChange (KIP-860).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import ALTER_PARTITION_REASSIGNMENTS
from ..schema import Array, Bool, Int16, Int32, Message, String, field


class ReassignablePartition(Message):
    partition_index: int = field(Int32)
    # the target replicas, the preferred leader first; null = cancel the reassignment under way
    replicas: Sequence[int] | None = field(Array(Int32), nullable=0, default=None)


class ReassignableTopic(Message):
    name: str = field(String)
    partitions: Sequence[ReassignablePartition] = field(Array(ReassignablePartition))


class AlterPartitionReassignmentsRequest(Message, api=ALTER_PARTITION_REASSIGNMENTS):
    timeout_ms: int = field(Int32, default=60_000)
    # whether the number of replicas may change
    allow_replication_factor_change: bool = field(Bool, since=1, default=True)
    topics: Sequence[ReassignableTopic] = field(Array(ReassignableTopic))


class ReassignablePartitionResponse(Message):
    partition_index: int = field(Int32)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable=0, default=None)


class ReassignableTopicResponse(Message):
    name: str = field(String)
    partitions: Sequence[ReassignablePartitionResponse] = field(
        Array(ReassignablePartitionResponse)
    )


class AlterPartitionReassignmentsResponse(Message, api=ALTER_PARTITION_REASSIGNMENTS):
    throttle_time_ms: int = field(Int32)
    allow_replication_factor_change: bool = field(Bool, since=1, default=True, ignorable=True)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable=0, default=None)
    responses: Sequence[ReassignableTopicResponse] = field(Array(ReassignableTopicResponse))
