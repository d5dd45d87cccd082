"""DeleteRecords: advance the log start offset of partitions.

An offset at or below the log start offset is no error: those records are deleted already.

The new offset is written durably by a thread first; then it takes effect, and the files of deleted
segments are renamed, by a thread too.
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

from ..authorization import DELETE, TOPIC, check
from ..errors import EXPECTED_ERRORS, ApiError, error_code_of

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext

_HIGH_WATERMARK = -1


async def handle(
    broker: Broker, context: RequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    """Handle DeleteRecords."""
    topics = []
    for topic in request.topics:
        results = []
        for partition in topic.partitions:
            results.append(await _delete(broker, context, topic.name, partition))
            await asyncio.sleep(0)  # Serve other connections in between.
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
    return DeleteRecordsResponse(topics=topics)


async def _delete(
    broker: Broker, context: RequestContext, topic: str, request: DeleteRecordsPartition
) -> DeleteRecordsPartitionResult:
    index = request.partition_index
    try:
        check(broker, context, DELETE, TOPIC, topic)
        low_watermark = await _delete_before(broker, topic, index, request.offset)
    except EXPECTED_ERRORS as error:
        return DeleteRecordsPartitionResult(
            partition_index=index, low_watermark=-1, error_code=error_code_of(error)
        )
    return DeleteRecordsPartitionResult(partition_index=index, low_watermark=low_watermark)


async def _delete_before(broker: Broker, topic: str, index: int, offset: int) -> int:
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
    if offset <= log.start_offset:
        return log.start_offset
    async with partition.deletion_lock:
        # The file must not go back to an offset before that of another request.
        if offset > log.start_offset:
            await asyncio.to_thread(log.write_start_offset, offset)
            log.advance_start_offset(offset)
            partition.notify_followers()
            await asyncio.to_thread(log.segments.rename_removed)
    return log.start_offset
