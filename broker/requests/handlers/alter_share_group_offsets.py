"""AlterShareGroupOffsets: set where a share group without members goes on (KIP-932)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from ottla.coord.consumer.partitions import TopicIdPartition
from ottla.coord.effects import Reply
from ottla.protocol.api.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.primitives import NIL_UUID

from ..authorization import DENIED, READ, TOPIC, allows

if TYPE_CHECKING:
    import asyncio

    from ottla.coord.metadata_image import Topic

    from ...broker import Broker
    from ..dispatch import RequestContext


def handle(
    broker: Broker, context: RequestContext, request: AlterShareGroupOffsetsRequest
) -> AlterShareGroupOffsetsResponse | asyncio.Future[AlterShareGroupOffsetsResponse]:
    """Handle AlterShareGroupOffsets."""
    if not request.group_id:
        return _error(ErrorCode.INVALID_GROUP_ID)
    topics = broker.topics.image.topics
    denied = {
        topic.topic_name
        for topic in request.topics
        if not allows(broker, context, READ, TOPIC, topic.topic_name)
    }
    offsets = {
        TopicIdPartition(topics[topic.topic_name].id, partition.partition_index): (
            partition.start_offset
        )
        for topic in request.topics
        if topic.topic_name not in denied
        for partition in topic.partitions
        if _check(topics.get(topic.topic_name), partition) is ErrorCode.NONE
    }

    def respond(code: ErrorCode) -> AlterShareGroupOffsetsResponse:
        if code is not ErrorCode.NONE:
            return _error(code)
        return AlterShareGroupOffsetsResponse(
            responses=[
                AlterShareGroupOffsetsResponseTopic(
                    topic_name=topic.topic_name,
                    topic_id=_id_of(topics.get(topic.topic_name), topic.topic_name in denied),
                    partitions=[
                        _result(
                            partition.partition_index,
                            DENIED[TOPIC]
                            if topic.topic_name in denied
                            else _check(topics.get(topic.topic_name), partition),
                        )
                        for partition in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    return broker.groups.submit(
        request.group_id,
        lambda shard, token, now: shard.share_groups.alter_offsets(
            request.group_id, offsets, lambda code: Reply(token, respond(code)), now
        ),
        _error,
    )


def _check(topic: Topic | None, partition: AlterShareGroupOffsetsRequestPartition) -> ErrorCode:
    """Return the error of a partition, or NONE."""
    if topic is None or not 0 <= partition.partition_index < len(topic.replicas):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE if partition.start_offset >= 0 else ErrorCode.INVALID_REQUEST


def _id_of(topic: Topic | None, is_denied: bool) -> UUID:
    return NIL_UUID if topic is None or is_denied else topic.id


def _result(index: int, code: ErrorCode) -> AlterShareGroupOffsetsResponsePartition:
    message: dict[str, Any] = {"error_message": code.message} if code else {}
    return AlterShareGroupOffsetsResponsePartition(
        partition_index=index, error_code=code, **message
    )


def _error(code: ErrorCode) -> AlterShareGroupOffsetsResponse:
    return AlterShareGroupOffsetsResponse(error_code=code, error_message=code.message)
