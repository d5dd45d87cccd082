"""CreatePartitions: give topics more partitions, behind those that they have."""

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

from ..errors import EXPECTED_ERRORS, ApiError, error_code_of, error_message_of
from .create_topics import check_replicas

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext


async def handle(
    broker: Broker, _context: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    """Answer CreatePartitions."""
    times_named = Counter(wanted.name for wanted in request.topics)
    results = []
    for wanted in {wanted.name: wanted for wanted in request.topics}.values():
        code, message = ErrorCode.NONE, None
        try:
            if times_named[wanted.name] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, "the request names this topic twice")
            await _create(broker, wanted, validate_only=request.validate_only)
        except EXPECTED_ERRORS as error:
            code, message = error_code_of(error), error_message_of(error)
        results.append(
            CreatePartitionsTopicResult(name=wanted.name, error_code=code, error_message=message)
        )
    return CreatePartitionsResponse(results=results)


async def _create(broker: Broker, wanted: CreatePartitionsTopic, *, validate_only: bool) -> None:
    topic = broker.topics.image.topics.get(wanted.name)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if topic.is_internal:
        # What is where in it depends on the number of its partitions.
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} is the broker's own")
    replicas = None
    if wanted.assignments is not None:
        replicas = [assigned.broker_ids for assigned in wanted.assignments]
        more = wanted.count - len(topic.replicas)
        if more > 0 and len(replicas) != more:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{len(replicas)} assignments for {more} more partitions",
            )
        check_replicas(broker, replicas)
    planned = broker.controller.plan_partitions(topic, wanted.count, replicas)
    if not validate_only:
        await broker.controller.add_partitions(planned)
