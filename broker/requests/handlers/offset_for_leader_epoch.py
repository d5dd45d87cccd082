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

from ..authorization import DESCRIBE, TOPIC, check, is_broker
from ..errors import EXPECTED_ERRORS, error_code_of
from ..slices import in_slices

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext


async def handle(
    broker: Broker, context: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """Handle OffsetForLeaderEpoch."""
    results: list[list[EpochEndOffset]] = [[] for _topic in request.topics]
    entries = (
        (topic.topic, of_topic, partition)
        for topic, of_topic in zip(request.topics, results, strict=True)
        for partition in topic.partitions
    )
    async for entries_of_slice in in_slices(entries):
        for name, of_topic, partition in entries_of_slice:
            of_topic.append(_end_offset(broker, context, name, partition))
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(topic=topic.topic, partitions=of_topic)
            for topic, of_topic in zip(request.topics, results, strict=True)
        ]
    )


def _end_offset(
    broker: Broker, context: RequestContext, topic: str, request: OffsetForLeaderPartition
) -> EpochEndOffset:
    try:
        if not is_broker(broker, context):
            check(broker, context, DESCRIBE, TOPIC, topic)
        partition = broker.topics.find(topic, request.partition)
        partition.check_epoch(request.current_leader_epoch)
    except EXPECTED_ERRORS as error:
        return EpochEndOffset(partition=request.partition, error_code=error_code_of(error))
    epoch, end_offset = partition.end_of_epoch(request.leader_epoch)
    return EpochEndOffset(partition=request.partition, leader_epoch=epoch, end_offset=end_offset)
