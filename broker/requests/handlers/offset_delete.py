"""OffsetDelete: forget what a group has committed of some partitions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ottla.coord.effects import Reply
from ottla.coord.group_shard import Codes
from ottla.protocol.api.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from ottla.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext


def handle(
    broker: Broker, _context: RequestContext, request: OffsetDeleteRequest
) -> OffsetDeleteResponse | asyncio.Future[OffsetDeleteResponse]:
    """Answer OffsetDelete."""
    groups, topics = broker.groups, broker.topics.image.topics
    if not request.group_id:
        return OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    places = [
        (topic.name, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
        if topic.name in topics
        and 0 <= partition.partition_index < len(topics[topic.name].replicas)
    ]
    return groups.ask(
        request.group_id,
        lambda token, _now: groups.coordinator.delete_offsets(
            request.group_id,
            places,
            lambda code, codes: Reply(token, _response(request, code, codes)),
        ),
        lambda code: OffsetDeleteResponse(error_code=code),
    )


def _response(request: OffsetDeleteRequest, code: ErrorCode, codes: Codes) -> OffsetDeleteResponse:
    if code is not ErrorCode.NONE:
        return OffsetDeleteResponse(error_code=code)
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=codes.get(
                            (topic.name, partition.partition_index),
                            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        ),
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
