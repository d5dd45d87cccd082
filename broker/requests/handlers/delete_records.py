"""DeleteRecords: let logs start at a later offset.

Where a log starts already is no error: what was to be deleted is.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ottla.coord.metadata_image import INTERNAL_TOPICS
from ottla.protocol.api.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from ottla.protocol.errors import ErrorCode

from ..errors import EXPECTED_ERRORS, ApiError, error_code_of

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext

_HIGH_WATERMARK = -1


async def handle(
    broker: Broker, _context: RequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    """Answer DeleteRecords."""
    topics = []
    for topic in request.topics:
        results = []
        for wanted in topic.partitions:
            results.append(_delete(broker, topic.name, wanted))
            # Each waits for the device, and a log is for the thread of the event loop alone: let
            # others have their turn in between.
            await asyncio.sleep(0)
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
    return DeleteRecordsResponse(topics=topics)


def _delete(
    broker: Broker, topic: str, wanted: DeleteRecordsPartition
) -> DeleteRecordsPartitionResult:
    index = wanted.partition_index
    try:
        low_watermark = _delete_before(broker, topic, index, wanted.offset)
    except EXPECTED_ERRORS as error:
        return DeleteRecordsPartitionResult(
            partition_index=index, low_watermark=-1, error_code=error_code_of(error)
        )
    return DeleteRecordsPartitionResult(partition_index=index, low_watermark=low_watermark)


def _delete_before(broker: Broker, topic: str, index: int, offset: int) -> int:
    if topic in INTERNAL_TOPICS:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION)
    partition = broker.topics.find(topic, index)
    log = partition.log
    if not log.config.deletes:
        raise ApiError(ErrorCode.POLICY_VIOLATION)
    end = partition.high_watermark
    if offset == _HIGH_WATERMARK:
        offset = end
    if not 0 <= offset <= end:
        raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if offset > log.start_offset:
        log.delete_records_before(offset)
    return log.start_offset
