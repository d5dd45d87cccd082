"""DeleteRecords: advance the log start offset of partitions.

An offset at or below the log start offset is no error: those records are deleted already.
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
    """Handle DeleteRecords."""
    topics = []
    for topic in request.topics:
        results = []
        for partition in topic.partitions:
            results.append(_delete(broker, topic.name, partition))
            # Each deletion fsyncs, on the event loop's thread, to which logs are confined. Serve
            # other connections in between.
            await asyncio.sleep(0)
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
    return DeleteRecordsResponse(topics=topics)


def _delete(
    broker: Broker, topic: str, request: DeleteRecordsPartition
) -> DeleteRecordsPartitionResult:
    index = request.partition_index
    try:
        low_watermark = _delete_before(broker, topic, index, request.offset)
    except EXPECTED_ERRORS as error:
        return DeleteRecordsPartitionResult(
            partition_index=index, low_watermark=-1, error_code=error_code_of(error)
        )
    return DeleteRecordsPartitionResult(partition_index=index, low_watermark=low_watermark)


def _delete_before(broker: Broker, topic: str, index: int, offset: int) -> int:
    """Delete the records before an offset; return the new log start offset. Raises ApiError."""
    if topic in INTERNAL_TOPICS:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION)
    partition = broker.topics.find(topic, index)
    log = partition.log
    if not log.config.deletes:
        raise ApiError(ErrorCode.POLICY_VIOLATION)
    high_watermark = partition.high_watermark
    if offset == _HIGH_WATERMARK:
        offset = high_watermark
    if not 0 <= offset <= high_watermark:
        raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if offset > log.start_offset:
        log.delete_records_before(offset)
    return log.start_offset
