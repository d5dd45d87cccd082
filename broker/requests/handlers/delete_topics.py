"""DeleteTopics: delete topics by name or, from version 6 on, by id.

A topic that is reported as deleted is gone; a new one of the same name may be created at once, and
has another id.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING
from uuid import UUID

from ottla.coord.metadata_image import Topic
from ottla.protocol.api.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.primitives import NIL_UUID

from ..authorization import DELETE, DENIED, DESCRIBE, TOPIC, allows, check
from ..errors import EXPECTED_ERRORS, ApiError, error_code_of, error_message_of

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext
    from ..quotas import MutationQuota

_FIRST_VERSION_WITH_TOPIC_ID = 6
_FIRST_VERSION_WITH_QUOTA_ERROR = 5
_FIRST_VERSION_WITH_DELETION_DISABLED = 3


async def handle(
    broker: Broker, context: RequestContext, request: DeleteTopicsRequest
) -> DeleteTopicsResponse:
    """Handle DeleteTopics."""
    topics: list[tuple[str | None, UUID]]
    if context.version >= _FIRST_VERSION_WITH_TOPIC_ID:
        topics = [(topic.name, topic.topic_id) for topic in request.topics]
    else:
        topics = [(name, NIL_UUID) for name in request.topic_names]
    mutation = None
    if broker.dispatcher.quotas is not None:
        is_strict = context.version >= _FIRST_VERSION_WITH_QUOTA_ERROR
        mutation = broker.dispatcher.quotas.mutation(context, is_strict=is_strict)
    responses = [
        await _delete(broker, context, name, topic_id, mutation, is_duplicate=count > 1)
        for (name, topic_id), count in Counter(topics).items()
    ]
    return DeleteTopicsResponse(
        throttle_time_ms=0 if mutation is None else mutation.throttle_ms, responses=responses
    )


async def _delete(
    broker: Broker,
    context: RequestContext,
    name: str | None,
    topic_id: UUID,
    mutation: MutationQuota | None,
    *,
    is_duplicate: bool,
) -> DeletableTopicResult:
    try:
        _check_enabled(broker, context.version)
        if is_duplicate:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic in the request")
        topic = _find(broker, context, name, topic_id)
        name, topic_id = topic.name, topic.id
        check(broker, context, DELETE, TOPIC, name)
        if topic.is_internal:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is an internal topic")
        if mutation is not None:
            mutation.take(len(topic.replicas))
        await broker.controller.delete_topic(topic)
    except EXPECTED_ERRORS as error:
        return DeletableTopicResult(
            name=name,
            topic_id=topic_id,
            error_code=error_code_of(error),
            error_message=error_message_of(error),
        )
    return DeletableTopicResult(name=name, topic_id=topic_id)


def _check_enabled(broker: Broker, version: int) -> None:
    if not broker.config.delete_topic_enable:
        has_code = version >= _FIRST_VERSION_WITH_DELETION_DISABLED
        raise ApiError(
            ErrorCode.TOPIC_DELETION_DISABLED if has_code else ErrorCode.INVALID_REQUEST,
            "Topic deletion is disabled (delete.topic.enable=false)",
        )


def _find(broker: Broker, context: RequestContext, name: str | None, topic_id: UUID) -> Topic:
    image = broker.topics.image
    if (name is None) == (topic_id == NIL_UUID):
        raise ApiError(
            ErrorCode.INVALID_REQUEST, "A topic needs either a name or a topic id, not both"
        )
    if name is not None:
        check(broker, context, DELETE, TOPIC, name)
        topic = image.topics.get(name)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return topic
    topic = image.topics_by_id.get(topic_id)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
    # Who may not describe it does not learn the name of an id.
    if not allows(broker, context, DESCRIBE, TOPIC, topic.name):
        raise ApiError(DENIED[TOPIC])
    return topic
