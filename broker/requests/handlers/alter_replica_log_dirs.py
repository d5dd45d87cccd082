"""AlterReplicaLogDirs: a broker has one log directory, so replicas can only stay in it.

kafka-reassign-partitions sends the directories of a plan, such as the one that it prints for a
rollback, which has the directories that there are.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ottla.protocol.api.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from ottla.protocol.errors import ErrorCode

from ..authorization import ALTER, CLUSTER, DENIED, allows

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext


def handle(
    broker: Broker, context: RequestContext, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    """Handle AlterReplicaLogDirs."""
    is_denied = not allows(broker, context, ALTER, CLUSTER)
    codes: dict[str, dict[int, ErrorCode]] = {}
    for log_dir in request.dirs:
        for topic in log_dir.topics:
            by_index = codes.setdefault(topic.name, {})
            for index in topic.partitions:
                by_index[index] = (
                    DENIED[CLUSTER]
                    if is_denied
                    else _check(broker, log_dir.path, topic.name, index)
                )
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(
                topic_name=name,
                partitions=[
                    AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
                    for index, code in by_index.items()
                ],
            )
            for name, by_index in codes.items()
        ]
    )


def _check(broker: Broker, path: str, name: str, index: int) -> ErrorCode:
    if Path(path) != broker.logs.path.absolute():
        return ErrorCode.LOG_DIR_NOT_FOUND
    topic = broker.topics.image.topics.get(name)
    if topic is None or not 0 <= index < len(topic.replicas):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if broker.id not in broker.topics.image.replicas_of(topic, index):
        return ErrorCode.REPLICA_NOT_AVAILABLE
    return ErrorCode.NONE
