"""DescribeLogDirs: the size of partitions on disk, and the free space of the disk.

There is one log directory. As in Kafka, partitions that are not in it are omitted.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ottla.protocol.api.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from ottla.protocol.errors import ErrorCode

from ..authorization import CLUSTER, DENIED, DESCRIBE, allows
from ..slices import SLICE_ELEMENTS

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext


_FIRST_WITH_ERROR_CODE = 3


async def handle(
    broker: Broker, context: RequestContext, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    """Handle DescribeLogDirs."""
    if not allows(broker, context, DESCRIBE, CLUSTER):
        has_code = context.version >= _FIRST_WITH_ERROR_CODE
        return DescribeLogDirsResponse(error_code=DENIED[CLUSTER] if has_code else ErrorCode.NONE)
    image = broker.topics.image
    requested: Mapping[str, Iterable[int]]
    if request.topics is None:
        requested = {topic.name: range(len(topic.replicas)) for topic in image.topics.values()}
    else:
        requested = _deduplicate(request.topics)
    error_code, total_bytes, usable_bytes = ErrorCode.NONE, -1, -1
    path = broker.logs.path.absolute()
    try:
        total_bytes, _used, usable_bytes = await asyncio.to_thread(shutil.disk_usage, path)
    except OSError:
        error_code = ErrorCode.KAFKA_STORAGE_ERROR
    result = DescribeLogDirsResult(
        error_code=error_code,
        log_dir=str(path),
        topics=await _topics(broker, requested),
        total_bytes=total_bytes,
        usable_bytes=usable_bytes,
    )
    return DescribeLogDirsResponse(results=[result])


async def _topics(
    broker: Broker, requested: Mapping[str, Iterable[int]]
) -> list[DescribeLogDirsTopic]:
    topics = []
    slice_elements = 0
    for name, indexes in requested.items():
        if name in broker.topics.image.topics:
            topic = DescribeLogDirsTopic(name=name, partitions=_partitions(broker, name, indexes))
            topics.append(topic)
            slice_elements += 1 + len(topic.partitions)
            if slice_elements >= SLICE_ELEMENTS:
                slice_elements = 0
                await asyncio.sleep(0)
    return topics


def _deduplicate(topics: Iterable[DescribableLogDirTopic]) -> dict[str, Iterable[int]]:
    indexes_by_name: dict[str, dict[int, None]] = {}
    for topic in topics:
        indexes_by_name.setdefault(topic.topic, {}).update(dict.fromkeys(topic.partitions))
    return {name: indexes.keys() for name, indexes in indexes_by_name.items()}


def _partitions(
    broker: Broker, name: str, indexes: Iterable[int]
) -> list[DescribeLogDirsPartition]:
    led = broker.topics.led_partitions(broker.topics.image.topics[name])
    partitions = (led.get(index) or broker.topics.followed(name, index) for index in indexes)
    return [
        DescribeLogDirsPartition(partition_index=partition.index, partition_size=partition.log.size)
        for partition in partitions
        if partition is not None
    ]
