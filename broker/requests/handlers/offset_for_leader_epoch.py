"""OffsetForLeaderEpoch: where a leader epoch ended, so that a client sees if it read on past it."""

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
    """Answer OffsetForLeaderEpoch."""
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[_answer(broker, topic.topic, asked) for asked in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _answer(broker: Broker, topic: str, asked: OffsetForLeaderPartition) -> EpochEndOffset:
    try:
        partition = broker.topics.find(topic, asked.partition)
        partition.check_epoch(asked.current_leader_epoch)
    except EXPECTED_ERRORS as error:
        return EpochEndOffset(partition=asked.partition, error_code=error_code_of(error))
    log = partition.log
    if asked.leader_epoch == partition.leader_epoch:
        # The log does not know of it before something was written in it.
        epoch, end_offset = asked.leader_epoch, log.end_offset
    else:
        epoch, end_offset = log.leader_epochs.end_of(asked.leader_epoch, log.end_offset)
    return EpochEndOffset(partition=asked.partition, leader_epoch=epoch, end_offset=end_offset)
