"""ListOffsets: the start or end of a log, or the first record at or after a timestamp.

Offsets at or above the high watermark are not returned. Without transactions the last stable offset
is the high watermark, so the isolation level makes no difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import IntEnum
from typing import TYPE_CHECKING

from ottla.protocol.api.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.errors import ErrorCode
from ottla.storage.log import TimestampAndOffset

from ..errors import EXPECTED_ERRORS, ApiError, error_code_of

if TYPE_CHECKING:
    from ...broker import Broker
    from ...partitions.partition import Partition
    from ..dispatch import RequestContext


class OffsetSpec(IntEnum):
    """Timestamps with a special meaning."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5


_FIRST_VERSIONS: Mapping[int, int] = {
    OffsetSpec.LATEST: 1,
    OffsetSpec.EARLIEST: 1,
    OffsetSpec.MAX_TIMESTAMP: 7,
    OffsetSpec.EARLIEST_LOCAL: 8,
    OffsetSpec.LATEST_TIERED: 9,
}
_FIRST_VERSION_WITH_LEADER_EPOCH = 4
_NO_TIMESTAMP = -1
_NOT_FOUND = TimestampAndOffset(-1, _NO_TIMESTAMP)


def handle(
    broker: Broker, context: RequestContext, request: ListOffsetsRequest
) -> ListOffsetsResponse:
    """Handle ListOffsets."""
    counts = Counter(
        (topic.name, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
    )
    topics = []
    for topic in request.topics:
        responses = []
        for partition in topic.partitions:
            index = partition.partition_index
            try:
                if counts[topic.name, index] > 1:
                    raise ApiError(ErrorCode.INVALID_REQUEST)
                responses.append(_list_offset(broker, context.version, topic.name, partition))
            except EXPECTED_ERRORS as error:
                responses.append(
                    ListOffsetsPartitionResponse(
                        partition_index=index, error_code=error_code_of(error)
                    )
                )
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=responses))
    return ListOffsetsResponse(topics=topics)


def _list_offset(
    broker: Broker, version: int, topic: str, request: ListOffsetsPartition
) -> ListOffsetsPartitionResponse:
    timestamp = request.timestamp
    if timestamp < 0 and version < _FIRST_VERSIONS.get(timestamp, version + 1):
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    partition = broker.topics.find(topic, request.partition_index)
    partition.check_epoch(request.current_leader_epoch)
    result = _find_offset(partition, timestamp)
    has_leader_epoch = version >= _FIRST_VERSION_WITH_LEADER_EPOCH
    return ListOffsetsPartitionResponse(
        partition_index=request.partition_index,
        timestamp=result.timestamp,
        offset=result.offset,
        leader_epoch=partition.epoch_of_offset(result.offset) if has_leader_epoch else -1,
    )


def _find_offset(partition: Partition, timestamp: int) -> TimestampAndOffset:
    if timestamp == OffsetSpec.LATEST:
        return TimestampAndOffset(partition.high_watermark, _NO_TIMESTAMP)
    if timestamp in (OffsetSpec.EARLIEST, OffsetSpec.EARLIEST_LOCAL):
        return TimestampAndOffset(partition.log.start_offset, _NO_TIMESTAMP)
    if timestamp == OffsetSpec.LATEST_TIERED:
        return _NOT_FOUND
    if timestamp == OffsetSpec.MAX_TIMESTAMP:
        result = partition.log.offset_for_max_timestamp()
    else:
        result = partition.log.offset_for_timestamp(timestamp)
    return _NOT_FOUND if result is None or result.offset >= partition.high_watermark else result
