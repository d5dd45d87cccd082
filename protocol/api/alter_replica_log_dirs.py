"""AlterReplicaLogDirs (key 34): choose the log directories of replicas on a broker.

Version 2 is the first flexible version.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import ALTER_REPLICA_LOG_DIRS
from ..schema import Array, Int16, Int32, Message, String, field


class AlterReplicaLogDirTopic(Message):
    name: str = field(String)
    partitions: Sequence[int] = field(Array(Int32))


class AlterReplicaLogDir(Message):
    path: str = field(String)
    topics: Sequence[AlterReplicaLogDirTopic] = field(Array(AlterReplicaLogDirTopic))


class AlterReplicaLogDirsRequest(Message, api=ALTER_REPLICA_LOG_DIRS):
    dirs: Sequence[AlterReplicaLogDir] = field(Array(AlterReplicaLogDir))


class AlterReplicaLogDirPartitionResult(Message):
    partition_index: int = field(Int32)
    error_code: int = field(Int16)


class AlterReplicaLogDirTopicResult(Message):
    topic_name: str = field(String)
    partitions: Sequence[AlterReplicaLogDirPartitionResult] = field(
        Array(AlterReplicaLogDirPartitionResult)
    )


class AlterReplicaLogDirsResponse(Message, api=ALTER_REPLICA_LOG_DIRS):
    throttle_time_ms: int = field(Int32)
    results: Sequence[AlterReplicaLogDirTopicResult] = field(Array(AlterReplicaLogDirTopicResult))
