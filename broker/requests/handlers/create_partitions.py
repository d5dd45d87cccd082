"""CreatePartitions: add partitions to topics."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ottla.protocol.api.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from ottla.protocol.errors import ErrorCode

from ..authorization import ALTER, TOPIC, check
from ..errors import EXPECTED_ERRORS, ApiError, error_code_of, error_message_of
from .create_topics import check_replicas

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext
    from ..quotas import MutationQuota

_FIRST_VERSION_WITH_QUOTA_ERROR = 3


async def handle(
    broker: Broker, context: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    """Handle CreatePartitions."""
    mutation = None
    if broker.dispatcher.quotas is not None and not request.validate_only:
        is_strict = context.version >= _FIRST_VERSION_WITH_QUOTA_ERROR
        mutation = broker.dispatcher.quotas.mutation(context, is_strict=is_strict)
    counts = Counter(topic.name for topic in request.topics)
    results = []
    for topic in {topic.name: topic for topic in request.topics}.values():
        code, message = ErrorCode.NONE, None
        try:
            check(broker, context, ALTER, TOPIC, topic.name)
            if counts[topic.name] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic in the request")
            await _create(broker, topic, mutation, validate_only=request.validate_only)
        except EXPECTED_ERRORS as error:
            code, message = error_code_of(error), error_message_of(error)
        results.append(
            CreatePartitionsTopicResult(name=topic.name, error_code=code, error_message=message)
        )
    return CreatePartitionsResponse(
        throttle_time_ms=0 if mutation is None else mutation.throttle_ms, results=results
    )


async def _create(
    broker: Broker,
    requested: CreatePartitionsTopic,
    mutation: MutationQuota | None,
    *,
    validate_only: bool,
) -> None:
    topic = broker.topics.image.topics.get(requested.name)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if topic.is_internal:
        # The partition of a group is a hash modulo the number of partitions.
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} is an internal topic")
    replicas = None
    if requested.assignments is not None:
        replicas = [assignment.broker_ids for assignment in requested.assignments]
        new_count = requested.count - len(topic.replicas)
        if new_count > 0 and len(replicas) != new_count:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{len(replicas)} replica assignments for {new_count} new partitions",
            )
        check_replicas(broker, replicas)
    planned = broker.controller.plan_partitions(topic, requested.count, replicas)
    if mutation is not None:
        mutation.take(len(planned.replicas) - len(topic.replicas))
    if not validate_only:
        await broker.controller.add_partitions(planned)
