"""OffsetDelete: delete committed offsets of a group."""

from __future__ import annotations

import asyncio
from collections.abc import Container
from typing import TYPE_CHECKING

from ottla.coord.effects import Reply
from ottla.coord.group_shard import PartitionErrors
from ottla.coord.metadata_image import TopicPartition
from ottla.protocol.api.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from ottla.protocol.errors import ErrorCode

from ..authorization import DENIED, READ, TOPIC, allows

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext


def handle(
    broker: Broker, context: RequestContext, request: OffsetDeleteRequest
) -> OffsetDeleteResponse | asyncio.Future[OffsetDeleteResponse]:
    """Handle OffsetDelete."""
    image = broker.topics.image
    if not request.group_id:
        return OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    denied = {
        topic.name
        for topic in request.topics
        if not allows(broker, context, READ, TOPIC, topic.name)
    }
    topic_partitions = [
        TopicPartition(topic.name, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
        if topic.name not in denied and image.has_partition(topic.name, partition.partition_index)
    ]
    return broker.groups.submit(
        request.group_id,
        lambda shard, token, _now: shard.delete_offsets(
            request.group_id,
            topic_partitions,
            lambda code, codes: Reply(token, _response(request, denied, code, codes)),
        ),
        lambda code: OffsetDeleteResponse(error_code=code),
    )


def _response(
    request: OffsetDeleteRequest, denied: Container[str], code: ErrorCode, codes: PartitionErrors
) -> OffsetDeleteResponse:
    if code is not ErrorCode.NONE:
        return OffsetDeleteResponse(error_code=code)
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=DENIED[TOPIC]
                        if topic.name in denied
                        else codes.get(
                            TopicPartition(topic.name, partition.partition_index),
                            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        ),
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
