"""OffsetForLeaderEpoch: the end offset of a leader epoch.

Clients detect with it that a log was truncated below their position (KIP-320).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.api.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

from ..errors import EXPECTED_ERRORS, error_code_of

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext


def handle(
    broker: Broker, _context: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """Handle OffsetForLeaderEpoch."""
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    _end_offset(broker, topic.topic, partition) for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _end_offset(broker: Broker, topic: str, request: OffsetForLeaderPartition) -> EpochEndOffset:
    try:
        partition = broker.topics.find(topic, request.partition)
        partition.check_epoch(request.current_leader_epoch)
    except EXPECTED_ERRORS as error:
        return EpochEndOffset(partition=request.partition, error_code=error_code_of(error))
    epoch, end_offset = partition.end_of_epoch(request.leader_epoch)
    return EpochEndOffset(partition=request.partition, leader_epoch=epoch, end_offset=end_offset)
