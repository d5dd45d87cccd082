"""DescribeLogDirs: what partitions take on disk, and how much room there is.

There is one log directory. A partition that is not in it is left out, as Kafka does.
"""

from __future__ import annotations

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

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext


def handle(
    broker: Broker, _context: RequestContext, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    """Answer DescribeLogDirs."""
    image = broker.topics.image
    wanted: Mapping[str, Iterable[int]]
    if request.topics is None:
        wanted = {topic.name: range(len(topic.replicas)) for topic in image.topics.values()}
    else:
        wanted = _distinct(request.topics)
    error_code, total_bytes, usable_bytes = ErrorCode.NONE, -1, -1
    path = broker.logs.path.absolute()
    try:
        total_bytes, _used, usable_bytes = shutil.disk_usage(path)
    except OSError:
        error_code = ErrorCode.KAFKA_STORAGE_ERROR
    result = DescribeLogDirsResult(
        error_code=error_code,
        log_dir=str(path),
        topics=[
            DescribeLogDirsTopic(name=name, partitions=_sizes(broker, name, indexes))
            for name, indexes in wanted.items()
            if name in image.topics
        ],
        total_bytes=total_bytes,
        usable_bytes=usable_bytes,
    )
    return DescribeLogDirsResponse(results=[result])


def _distinct(asked: Iterable[DescribableLogDirTopic]) -> dict[str, Iterable[int]]:
    """Give each partition that is asked for once."""
    wanted: dict[str, dict[int, None]] = {}
    for topic in asked:
        wanted.setdefault(topic.topic, {}).update(dict.fromkeys(topic.partitions))
    return {name: indexes.keys() for name, indexes in wanted.items()}


def _sizes(broker: Broker, name: str, indexes: Iterable[int]) -> list[DescribeLogDirsPartition]:
    partitions = broker.topics.led_partitions(broker.topics.image.topics[name])
    found = (partitions.get(index) for index in indexes)
    return [
        DescribeLogDirsPartition(partition_index=partition.index, partition_size=partition.log.size)
        for partition in found
        if partition is not None
    ]
