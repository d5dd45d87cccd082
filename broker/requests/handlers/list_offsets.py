"""ListOffsets: the start or end of a log, or the first record at or after a timestamp.

Offsets at or above the high watermark are not returned, and with isolation level read_committed
none at or above the last stable offset.

Timestamps are looked up in threads, one partition of a request after the other: that reads from the
disk, and decompresses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from ottla.protocol.api.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from ottla.protocol.errors import ErrorCode
from ottla.storage.timestamp_search import (
    TimestampAndOffset,
    find_max_timestamp,
    find_timestamp,
)

from ..authorization import DESCRIBE, TOPIC, check, is_broker
from ..errors import EXPECTED_ERRORS, ApiError, error_code_of
from ..slices import in_slices, is_large, map_in_slices

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
    EARLIEST_PENDING_UPLOAD = -6


_FIRST_VERSIONS: Mapping[int, int] = {
    OffsetSpec.LATEST: 1,
    OffsetSpec.EARLIEST: 1,
    OffsetSpec.MAX_TIMESTAMP: 7,
    OffsetSpec.EARLIEST_LOCAL: 8,
    OffsetSpec.LATEST_TIERED: 9,
    OffsetSpec.EARLIEST_PENDING_UPLOAD: 11,
}
_FIRST_VERSION_WITH_LEADER_EPOCH = 4
_READ_COMMITTED = 1
_NO_TIMESTAMP = -1
_NOT_FOUND = TimestampAndOffset(-1, _NO_TIMESTAMP)

#: The responses of each topic of a request.
_Results = list[list[ListOffsetsPartitionResponse]]
#: The name of a topic, its responses, and a partition to add to them.
_Entry = tuple[str, list[ListOffsetsPartitionResponse], ListOffsetsPartition]
#: A partition, a timestamp to look up in it, and where in which list the response belongs.
_Lookup = tuple["Partition", int, list[ListOffsetsPartitionResponse], int]


def handle(
    broker: Broker, context: RequestContext, request: ListOffsetsRequest
) -> ListOffsetsResponse | Coroutine[Any, Any, ListOffsetsResponse]:
    """Handle ListOffsets."""
    if is_large(request.topics):
        return _respond_in_slices(broker, context, request)
    results: _Results = [[] for _topic in request.topics]
    entries = list(_entries(request, results))
    counts = Counter((name, partition.partition_index) for name, _, partition in entries)
    lookups = _respond(broker, context, request, entries, counts)
    topics = list(map(_topic_response, zip(request.topics, results, strict=True)))
    response = ListOffsetsResponse(topics=topics)
    if not lookups:
        return response
    return _look_up(broker, context.version, request, lookups, response)


async def _respond_in_slices(
    broker: Broker, context: RequestContext, request: ListOffsetsRequest
) -> ListOffsetsResponse:
    results: _Results = [[] for _topic in request.topics]
    counts: Counter[tuple[str, int]] = Counter()
    async for entries in in_slices(_entries(request, results)):
        counts.update((name, partition.partition_index) for name, _, partition in entries)
    lookups: list[_Lookup] = []
    async for entries in in_slices(_entries(request, results)):
        lookups += _respond(broker, context, request, entries, counts)
    topics = await map_in_slices(_topic_response, zip(request.topics, results, strict=True))
    response = ListOffsetsResponse(topics=topics)
    return await _look_up(broker, context.version, request, lookups, response)


def _entries(request: ListOffsetsRequest, results: _Results) -> Iterator[_Entry]:
    for topic, of_topic in zip(request.topics, results, strict=True):
        for partition in topic.partitions:
            yield topic.name, of_topic, partition


def _topic_response(
    result: tuple[ListOffsetsTopic, list[ListOffsetsPartitionResponse]],
) -> ListOffsetsTopicResponse:
    topic, partitions = result
    return ListOffsetsTopicResponse(name=topic.name, partitions=partitions)


def _respond(
    broker: Broker,
    context: RequestContext,
    request: ListOffsetsRequest,
    entries: Iterable[_Entry],
    counts: Counter[tuple[str, int]],
) -> list[_Lookup]:
    """Add the responses of partitions; return those that have to be looked up."""
    is_committed = request.isolation_level == _READ_COMMITTED
    lookups: list[_Lookup] = []
    for topic, responses, partition_request in entries:
        index = partition_request.partition_index
        try:
            if counts[topic, index] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST)
            partition = _find_partition(broker, context, topic, partition_request)
            timestamp = partition_request.timestamp
            result = _known_offset(partition, timestamp, is_committed)
            if result is None:
                lookups.append((partition, timestamp, responses, len(responses)))
                result = _NOT_FOUND
            responses.append(_response(partition, result, context.version))
        except EXPECTED_ERRORS as error:
            responses.append(_error_response(index, error))
    return lookups


async def _look_up(
    broker: Broker,
    version: int,
    request: ListOffsetsRequest,
    lookups: list[_Lookup],
    response: ListOffsetsResponse,
) -> ListOffsetsResponse:
    """Look up the timestamps that a request asks for, and complete its response."""
    is_committed = request.isolation_level == _READ_COMMITTED
    for partition, timestamp, responses, position in lookups:
        log = partition.log
        is_max = timestamp == OffsetSpec.MAX_TIMESTAMP
        steps = find_max_timestamp(log) if is_max else find_timestamp(log, timestamp)
        try:
            result = await broker.batch_workers.look_up(steps)
        except EXPECTED_ERRORS as error:
            responses[position] = _error_response(partition.index, error)
            continue
        if result is None or result.offset >= _end_offset(partition, is_committed):
            result = _NOT_FOUND
        responses[position] = _response(partition, result, version)
    return response


def _find_partition(
    broker: Broker, context: RequestContext, topic: str, request: ListOffsetsPartition
) -> Partition:
    # Brokers ask for the lag of share groups.
    if not is_broker(broker, context):
        check(broker, context, DESCRIBE, TOPIC, topic)
    timestamp, version = request.timestamp, context.version
    if timestamp < 0 and version < _FIRST_VERSIONS.get(timestamp, version + 1):
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    partition = broker.topics.find(topic, request.partition_index)
    partition.check_epoch(request.current_leader_epoch)
    return partition


def _end_offset(partition: Partition, is_committed: bool) -> int:
    return partition.last_stable_offset if is_committed else partition.high_watermark


def _known_offset(
    partition: Partition, timestamp: int, is_committed: bool
) -> TimestampAndOffset | None:
    """Return the offset for a timestamp with a special meaning; None if it is to be looked up."""
    if timestamp == OffsetSpec.LATEST:
        if not partition.is_high_watermark_known:
            raise ApiError(
                ErrorCode.OFFSET_NOT_AVAILABLE,
                "The high watermark is not known yet",
            )
        return TimestampAndOffset(_end_offset(partition, is_committed), _NO_TIMESTAMP)
    if timestamp in (OffsetSpec.EARLIEST, OffsetSpec.EARLIEST_LOCAL):
        return TimestampAndOffset(partition.log.start_offset, _NO_TIMESTAMP)
    if timestamp in (OffsetSpec.LATEST_TIERED, OffsetSpec.EARLIEST_PENDING_UPLOAD):
        return _NOT_FOUND
    return None


def _response(
    partition: Partition, result: TimestampAndOffset, version: int
) -> ListOffsetsPartitionResponse:
    has_leader_epoch = version >= _FIRST_VERSION_WITH_LEADER_EPOCH
    return ListOffsetsPartitionResponse(
        partition_index=partition.index,
        timestamp=result.timestamp,
        offset=result.offset,
        leader_epoch=partition.epoch_of_offset(result.offset) if has_leader_epoch else -1,
    )


def _error_response(index: int, error: Exception) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(partition_index=index, error_code=error_code_of(error))
