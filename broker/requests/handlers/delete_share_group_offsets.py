"""DeleteShareGroupOffsets: forget topics of a share group without members (KIP-932)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.coord.effects import Reply
from ottla.protocol.api.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
)
from ottla.protocol.errors import ErrorCode

from ..authorization import DENIED, READ, TOPIC, allows

if TYPE_CHECKING:
    import asyncio
    from uuid import UUID

    from ...broker import Broker
    from ..dispatch import RequestContext


def handle(
    broker: Broker, context: RequestContext, request: DeleteShareGroupOffsetsRequest
) -> DeleteShareGroupOffsetsResponse | asyncio.Future[DeleteShareGroupOffsetsResponse]:
    """Handle DeleteShareGroupOffsets."""
    if not request.group_id:
        return _error(ErrorCode.INVALID_GROUP_ID)
    topics = broker.topics.image.topics
    names = list(dict.fromkeys(topic.topic_name for topic in request.topics))
    denied = {name for name in names if not allows(broker, context, READ, TOPIC, name)}
    ids: dict[str, UUID] = {
        name: topics[name].id for name in names if name in topics and name not in denied
    }

    def respond(code: ErrorCode) -> DeleteShareGroupOffsetsResponse:
        if code is not ErrorCode.NONE:
            return _error(code)
        return DeleteShareGroupOffsetsResponse(responses=[_result(name) for name in names])

    def _result(name: str) -> DeleteShareGroupOffsetsResponseTopic:
        if name in ids:
            return DeleteShareGroupOffsetsResponseTopic(topic_name=name, topic_id=ids[name])
        code = DENIED[TOPIC] if name in denied else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return DeleteShareGroupOffsetsResponseTopic(
            topic_name=name, error_code=code, error_message=code.message
        )

    return broker.groups.submit(
        request.group_id,
        lambda shard, token, _now: shard.share_groups.delete_offsets(
            request.group_id, set(ids.values()), lambda code: Reply(token, respond(code))
        ),
        _error,
    )


def _error(code: ErrorCode) -> DeleteShareGroupOffsetsResponse:
    return DeleteShareGroupOffsetsResponse(error_code=code, error_message=code.message)
