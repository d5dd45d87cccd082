"""ElectLeaders (key 43): elect leaders of partitions on request.

Version 1 adds ElectionType (KIP-460) and the top-level error code; version 0 elects preferred
leaders only.
Version 2 is the first flexible version.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import ELECT_LEADERS
from ..schema import Array, Int8, Int16, Int32, Message, String, field


class TopicPartitions(Message):
    topic: str = field(String)
    partitions: Sequence[int] = field(Array(Int32))


class ElectLeadersRequest(Message, api=ELECT_LEADERS):
    election_type: int = field(Int8, since=1)  # 0 = preferred, 1 = unclean
    # null = all partitions
    topic_partitions: Sequence[TopicPartitions] | None = field(Array(TopicPartitions), nullable=0)
    timeout_ms: int = field(Int32, default=60_000)


class PartitionResult(Message):
    partition_id: int = field(Int32)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable=0, default=None)


class ReplicaElectionResult(Message):
    topic: str = field(String)
    partition_result: Sequence[PartitionResult] = field(Array(PartitionResult))


class ElectLeadersResponse(Message, api=ELECT_LEADERS):
    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16, since=1, ignorable=True)
    replica_election_results: Sequence[ReplicaElectionResult] = field(Array(ReplicaElectionResult))
