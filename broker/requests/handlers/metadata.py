"""Metadata: the brokers, the topics, and the leader of each partition.

A requested topic that does not exist is created before the response, if broker and client allow
auto-creation: the response includes it, where Kafka's has the client ask again. If nothing has to
be created, which is nearly always, the response is sent at once.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from ottla.coord.metadata_image import (
    INTERNAL_TOPICS,
    METADATA_TOPIC,
    InvalidTopicError,
    Topic,
    check_topic_name,
)
from ottla.protocol.api.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.primitives import NIL_UUID
from ottla.protocol.schema import FrozenArray

from ..authorization import (
    CLUSTER,
    CREATE,
    DENIED,
    DESCRIBE,
    TOPIC,
    allows,
    authorized_operations,
    check,
    is_broker,
)
from ..errors import EXPECTED_ERRORS, ApiError, error_code_of
from ..topic_metadata import (
    find_topic,
    offline_partitions,
    partition_metadata,
    replicated_partitions,
)
from .create_topics import log_clamped_factor

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext

_FIRST_VERSION_WITH_NULL_FOR_ALL = 1
_FIRST_VERSION_WITH_TOPIC_ID = 12
#: Topics that are never auto-created by a client's request: the broker creates them when needed.
_NOT_AUTO_CREATED = INTERNAL_TOPICS | {METADATA_TOPIC}


class _RequestedTopic(NamedTuple):
    """A topic requested by its id or, if that is nil, by its name."""

    name: str | None
    topic_id: UUID


def handle(
    broker: Broker, context: RequestContext, request: MetadataRequest
) -> MetadataResponse | Coroutine[Any, Any, MetadataResponse]:
    """Handle Metadata."""
    if request.topics is None or (
        context.version < _FIRST_VERSION_WITH_NULL_FOR_ALL and not request.topics
    ):
        topics: Iterable[Topic] = broker.topics.image.topics.values()
        if broker.authorizer is not None:
            topics = [
                topic
                for topic in topics
                if allows(broker, context, DESCRIBE, TOPIC, topic.name, logs=False)
            ]
        return _response(broker, context, request, _describe(broker, context, request, topics))
    # Deduplicated, since a response is far larger than a request.
    requested = list(
        dict.fromkeys(_RequestedTopic(topic.name, topic.topic_id) for topic in request.topics)
    )
    if request.allow_auto_topic_creation and broker.config.auto_create_topics_enable:
        missing = _missing_names(broker, context, requested)
        if missing:
            return _create_and_respond(broker, context, request, requested, missing)
    return _respond(broker, context, request, requested, {})


def _missing_names(
    broker: Broker, context: RequestContext, requested: Iterable[_RequestedTopic]
) -> list[str]:
    """Return the names of topics to create, of those that the client may describe."""
    existing = broker.topics.image.topics
    return [
        name
        for name, topic_id in requested
        if name is not None
        and topic_id == NIL_UUID
        and name not in _NOT_AUTO_CREATED
        and name not in existing
        and _may_describe(broker, context, name, logs=False)
    ]


def _may_describe(broker: Broker, context: RequestContext, name: str, *, logs: bool = True) -> bool:
    # A broker that has another one create topics has checked what its client may do.
    return is_broker(broker, context) or allows(broker, context, DESCRIBE, TOPIC, name, logs=logs)


def _may_create(broker: Broker, context: RequestContext, name: str) -> bool:
    return (
        is_broker(broker, context)
        or allows(broker, context, CREATE, CLUSTER, logs=False)
        or allows(broker, context, CREATE, TOPIC, name)
    )


async def _create_and_respond(
    broker: Broker,
    context: RequestContext,
    request: MetadataRequest,
    requested: Iterable[_RequestedTopic],
    missing: Sequence[str],
) -> MetadataResponse:
    create = _create if broker.cluster.is_controller else _create_on_controller
    allowed = [name for name in missing if _may_create(broker, context, name)]
    errors: dict[str, Exception] = {}
    if len(allowed) < len(missing):
        errors |= dict.fromkeys(missing, ApiError(DENIED[TOPIC]))
        for name in allowed:
            del errors[name]
    exceeding = _exceeding_quota(broker, context, allowed)
    errors |= exceeding
    allowed = [name for name in allowed if name not in exceeding]
    if allowed:
        errors |= await create(broker, allowed)
    return _respond(broker, context, request, requested, errors)


def _exceeding_quota(
    broker: Broker, context: RequestContext, names: Iterable[str]
) -> dict[str, Exception]:
    """Return the errors of the topics that the client's quota for changes does not allow yet."""
    quotas = broker.dispatcher.quotas
    mutation = None if quotas is None else quotas.mutation(context, is_strict=True)
    errors: dict[str, Exception] = {}
    if mutation is not None:
        for name in names:
            try:
                mutation.take(broker.config.num_partitions)
            except ApiError as error:
                errors[name] = ApiError(ErrorCode.LEADER_NOT_AVAILABLE, str(error))
    return errors


async def _create(broker: Broker, names: Sequence[str]) -> dict[str, Exception]:
    """Create topics, as many as the rate limit allows; return the errors."""
    controller, count = broker.controller, broker.config.num_partitions
    errors: dict[str, Exception] = {}
    for name in names:
        # An invalid name is never created, and must not use up the limit of others.
        try:
            check_topic_name(name)
        except InvalidTopicError as error:
            errors[name] = error
    valid = [name for name in names if name not in errors]
    allowed = broker.auto_creations.take(len(valid))
    errors |= dict.fromkeys(valid[allowed:], ApiError(ErrorCode.LEADER_NOT_AVAILABLE))
    if not allowed:
        return errors
    results = await controller.plan_and_create_topics(
        valid[:allowed], lambda name: controller.plan_topic(name, count, {})
    )
    for result in results.values():
        if not isinstance(result, Exception):
            log_clamped_factor(broker.config, result)
    # A topic that another request has just created has an error here, but is found below.
    errors.update(
        (name, result) for name, result in results.items() if isinstance(result, Exception)
    )
    return errors


async def _create_on_controller(broker: Broker, names: Sequence[str]) -> dict[str, Exception]:
    """Have the controller create topics, by a Metadata request; return the errors.

    The controller responds when this broker has replayed the new topics. If it has not, clients get
    LEADER_NOT_AVAILABLE and ask again, as with Kafka.
    """
    topics = [MetadataRequestTopic(name=name) for name in names]
    try:
        response = await broker.controller_channel.send(
            MetadataRequest(topics=topics), MetadataResponse
        )
    except ApiError as error:
        return dict.fromkeys(names, ApiError(ErrorCode.LEADER_NOT_AVAILABLE, str(error)))
    return {
        topic.name: ApiError(ErrorCode(topic.error_code or ErrorCode.LEADER_NOT_AVAILABLE))
        for topic in response.topics
        if topic.name is not None
    }


def _respond(
    broker: Broker,
    context: RequestContext,
    request: MetadataRequest,
    requested: Iterable[_RequestedTopic],
    creation_errors: Mapping[str, Exception],
) -> MetadataResponse:
    topics = []
    for requested_topic in requested:
        try:
            topic = _find(broker, context, requested_topic, creation_errors)
        except EXPECTED_ERRORS as error:
            topics.append(_error_topic(context.version, requested_topic, error))
        else:
            topics += _describe(broker, context, request, (topic,))
    return _response(broker, context, request, topics)


def _find(
    broker: Broker,
    context: RequestContext,
    requested: _RequestedTopic,
    creation_errors: Mapping[str, Exception],
) -> Topic:
    image = broker.topics.image
    name, topic_id = requested
    if topic_id != NIL_UUID:
        if context.version < _FIRST_VERSION_WITH_TOPIC_ID:
            raise ApiError(ErrorCode.INVALID_REQUEST)
        if topic_id not in image.topics_by_id:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
        topic = image.topics_by_id[topic_id]
        check(broker, context, DESCRIBE, TOPIC, topic.name)
        return topic
    if name is None:
        raise ApiError(ErrorCode.INVALID_REQUEST)
    if not _may_describe(broker, context, name):
        raise ApiError(DENIED[TOPIC])
    if name in creation_errors and name not in image.topics:
        raise creation_errors[name]
    return find_topic(broker, name)


def _error_topic(
    version: int, requested: _RequestedTopic, error: Exception
) -> MetadataResponseTopic:
    name, topic_id = requested
    if version < _FIRST_VERSION_WITH_TOPIC_ID:
        name = name or ""  # Not nullable yet.
    elif topic_id != NIL_UUID:
        name = None
    return MetadataResponseTopic(error_code=error_code_of(error), name=name, topic_id=topic_id)


def _describe(
    broker: Broker, context: RequestContext, request: MetadataRequest, topics: Iterable[Topic]
) -> list[MetadataResponseTopic]:
    includes_operations = request.include_topic_authorized_operations
    alive = broker.cluster.alive
    return [
        MetadataResponseTopic(
            name=topic.name,
            topic_id=topic.id,
            is_internal=topic.is_internal,
            partitions=_partitions_of(broker, topic, alive),
            topic_authorized_operations=authorized_operations(
                broker, context, TOPIC, topic.name, is_requested=includes_operations
            ),
        )
        for topic in topics
    ]


def _partitions_of(
    broker: Broker, topic: Topic, alive: frozenset[int]
) -> Sequence[MetadataResponsePartition]:
    if topic.id in broker.topics.image.partition_states:
        return [
            MetadataResponsePartition(**partition._asdict())
            for partition in replicated_partitions(broker, topic, alive)
        ]
    offline = offline_partitions(broker, topic)
    return _partitions(topic.replicas, alive, offline, broker.topics.leader_epochs)


@lru_cache(maxsize=64)
def _partitions(
    replicas: tuple[tuple[int, ...], ...],
    alive: frozenset[int],
    offline: frozenset[int],
    leader_epochs: tuple[tuple[int, int], ...],
) -> FrozenArray[MetadataResponsePartition]:
    """Return the partitions of a topic; cached, since most topics of a cluster look alike."""
    return FrozenArray(
        MetadataResponsePartition(**partition._asdict())
        for partition in partition_metadata(replicas, alive, offline, dict(leader_epochs))
    )


def _response(
    broker: Broker,
    context: RequestContext,
    request: MetadataRequest,
    topics: list[MetadataResponseTopic],
) -> MetadataResponse:
    operations = authorized_operations(
        broker, context, CLUSTER, is_requested=request.include_cluster_authorized_operations
    )
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=node.id, host=node.host, port=node.port, rack=node.rack)
            for node in broker.cluster.nodes(context)
        ],
        cluster_id=broker.cluster_id,
        controller_id=broker.cluster.advertised_controller_id,
        topics=topics,
        cluster_authorized_operations=operations,
    )
