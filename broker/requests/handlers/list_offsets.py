"""ListOffsets: either end of a log, or the first record that is not older than a time.

What consumers may not see yet, behind the high watermark, is not found. There are no transactions,
so the last stable offset is the high watermark, and the isolation level makes no difference.
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


class Place(IntEnum):
    """What a negative timestamp asks for."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5


#: The version from which on a place can be asked for.
_SINCE: Mapping[int, int] = {
    Place.LATEST: 1,
    Place.EARLIEST: 1,
    Place.MAX_TIMESTAMP: 7,
    Place.EARLIEST_LOCAL: 8,
    Place.LATEST_TIERED: 9,
}
_FIRST_WITH_EPOCHS = 4
_NO_TIMESTAMP = -1
_NOTHING = TimestampAndOffset(-1, _NO_TIMESTAMP)


def handle(
    broker: Broker, context: RequestContext, request: ListOffsetsRequest
) -> ListOffsetsResponse:
    """Answer ListOffsets."""
    times_asked = Counter(
        (topic.name, asked.partition_index)
        for topic in request.topics
        for asked in topic.partitions
    )
    topics = []
    for topic in request.topics:
        answers = []
        for asked in topic.partitions:
            index = asked.partition_index
            try:
                if times_asked[topic.name, index] > 1:
                    raise ApiError(ErrorCode.INVALID_REQUEST)
                answers.append(_answer(broker, context.version, topic.name, asked))
            except EXPECTED_ERRORS as error:
                answers.append(
                    ListOffsetsPartitionResponse(
                        partition_index=index, error_code=error_code_of(error)
                    )
                )
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=answers))
    return ListOffsetsResponse(topics=topics)


def _answer(
    broker: Broker, version: int, topic: str, asked: ListOffsetsPartition
) -> ListOffsetsPartitionResponse:
    partition = broker.topics.find(topic, asked.partition_index)
    partition.check_epoch(asked.current_leader_epoch)
    if asked.timestamp < 0 and version < _SINCE.get(asked.timestamp, version + 1):
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    found = _look_up(partition, asked.timestamp)
    return ListOffsetsPartitionResponse(
        partition_index=asked.partition_index,
        timestamp=found.timestamp,
        offset=found.offset,
        leader_epoch=_epoch_of(partition, found.offset) if version >= _FIRST_WITH_EPOCHS else -1,
    )


def _look_up(partition: Partition, timestamp: int) -> TimestampAndOffset:
    if timestamp == Place.LATEST:
        return TimestampAndOffset(partition.high_watermark, _NO_TIMESTAMP)
    if timestamp in (Place.EARLIEST, Place.EARLIEST_LOCAL):
        return TimestampAndOffset(partition.log.start_offset, _NO_TIMESTAMP)
    if timestamp == Place.LATEST_TIERED:
        return _NOTHING
    if timestamp == Place.MAX_TIMESTAMP:
        found = partition.log.offset_for_max_timestamp()
    else:
        found = partition.log.offset_for_timestamp(timestamp)
    return _NOTHING if found is None or found.offset >= partition.high_watermark else found


def _epoch_of(partition: Partition, offset: int) -> int:
    """Give the epoch in which an offset was, or will be, written; -1 where none is known."""
    known = [epoch for epoch, start in partition.log.leader_epochs if start <= offset]
    return known[-1] if known else -1
