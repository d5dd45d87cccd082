"""Metadata: the brokers, the topics, and who leads each partition.

A topic that is asked for and not there is created, if the broker and the client want that, before
the answer: so the answer has it, where Kafka's tells the client to ask again. If nothing is to be
created, which is nearly always, the answer is given at once.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from ottla.coord.metadata_image import INTERNAL_TOPICS, METADATA_TOPIC, Topic, check_topic_name
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

from ..authorized_operations import CLUSTER_OPERATIONS, NOT_REQUESTED, TOPIC_OPERATIONS
from ..errors import EXPECTED_ERRORS, ApiError, error_code_of
from ..partition_metadata import offline_partitions, partition_metadata

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext

_FIRST_WITH_NULL_FOR_ALL = 1
_FIRST_BY_ID = 12
#: What is not made because somebody asked for it: the broker makes it when there is need.
_OWN = INTERNAL_TOPICS | {METADATA_TOPIC}


class _Wanted(NamedTuple):
    """A topic that is asked for, by its id or, if that is nil, by its name."""

    name: str | None
    topic_id: UUID


def handle(
    broker: Broker, context: RequestContext, request: MetadataRequest
) -> MetadataResponse | Coroutine[Any, Any, MetadataResponse]:
    """Answer Metadata."""
    if request.topics is None or (
        context.version < _FIRST_WITH_NULL_FOR_ALL and not request.topics
    ):
        topics = broker.topics.image.topics.values()
        return _response(broker, context, request, _describe(broker, request, topics))
    # Each once: an answer is far longer than a question.
    wanted = list(dict.fromkeys(_Wanted(topic.name, topic.topic_id) for topic in request.topics))
    if request.allow_auto_topic_creation and broker.config.auto_create_topics_enable:
        missing = list(_missing(broker, wanted))
        if missing:
            return _create_and_answer(broker, context, request, wanted, missing)
    return _answer(broker, context, request, wanted, {})


def _missing(broker: Broker, wanted: Iterable[_Wanted]) -> Iterator[str]:
    for name, topic_id in wanted:
        if name is None or topic_id != NIL_UUID or name in _OWN:
            continue
        if name not in broker.topics.image.topics:
            yield name


async def _create_and_answer(
    broker: Broker,
    context: RequestContext,
    request: MetadataRequest,
    wanted: Iterable[_Wanted],
    missing: Iterable[str],
) -> MetadataResponse:
    make = _create if broker.cluster.is_controller else _have_created
    failures = await make(broker, missing)
    return _answer(broker, context, request, wanted, failures)


async def _create(broker: Broker, missing: Iterable[str]) -> dict[str, Exception]:
    """Create topics; give what went wrong."""
    controller, count = broker.controller, broker.config.num_partitions
    outcomes = await controller.plan_and_create_topics(
        missing, lambda name: controller.plan_topic(name, count, {})
    )
    # If somebody else was faster it is there, and no error when it is looked for below.
    return {name: one for name, one in outcomes.items() if isinstance(one, Exception)}


async def _have_created(broker: Broker, missing: Iterable[str]) -> dict[str, Exception]:
    """Have the controller create topics, by asking it for them; give what went wrong.

    When it has answered they are here too: it has waited for this broker. If it has not, the client
    is told to ask again, as by Kafka.
    """
    names = list(missing)
    topics = [MetadataRequestTopic(name=name) for name in names]
    try:
        answer = await broker.controller_channel.request(
            MetadataRequest(topics=topics), MetadataResponse
        )
    except ApiError as error:
        return dict.fromkeys(names, ApiError(ErrorCode.LEADER_NOT_AVAILABLE, str(error)))
    return {
        topic.name: ApiError(ErrorCode(topic.error_code or ErrorCode.LEADER_NOT_AVAILABLE))
        for topic in answer.topics
        if topic.name is not None
    }


def _answer(
    broker: Broker,
    context: RequestContext,
    request: MetadataRequest,
    wanted: Iterable[_Wanted],
    failures: Mapping[str, Exception],
) -> MetadataResponse:
    """Answer for each topic that is asked for; `failures` are of those that were to be created."""
    answers = []
    for one in wanted:
        try:
            topic = _find(broker, context.version, one, failures)
        except EXPECTED_ERRORS as error:
            answers.append(_failed(context.version, one, error))
        else:
            answers += _describe(broker, request, (topic,))
    return _response(broker, context, request, answers)


def _find(
    broker: Broker, version: int, wanted: _Wanted, failures: Mapping[str, Exception]
) -> Topic:
    image = broker.topics.image
    name, topic_id = wanted
    if topic_id != NIL_UUID:
        if version < _FIRST_BY_ID:
            raise ApiError(ErrorCode.INVALID_REQUEST)
        if topic_id not in image.topics_by_id:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
        return image.topics_by_id[topic_id]
    if name is None:
        raise ApiError(ErrorCode.INVALID_REQUEST)
    topic = image.topics.get(name)
    if topic is not None:
        return topic
    if name in failures:
        raise failures[name]
    check_topic_name(name)
    raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def _failed(version: int, wanted: _Wanted, error: Exception) -> MetadataResponseTopic:
    name, topic_id = wanted
    if version < _FIRST_BY_ID:
        name = name or ""  # there is no null yet
    elif topic_id != NIL_UUID:
        name = None
    return MetadataResponseTopic(error_code=error_code_of(error), name=name, topic_id=topic_id)


def _describe(
    broker: Broker, request: MetadataRequest, topics: Iterable[Topic]
) -> list[MetadataResponseTopic]:
    operations = TOPIC_OPERATIONS if request.include_topic_authorized_operations else NOT_REQUESTED
    alive = broker.cluster.alive
    return [
        MetadataResponseTopic(
            name=topic.name,
            topic_id=topic.id,
            is_internal=topic.is_internal,
            partitions=_partitions(topic.replicas, alive, offline_partitions(broker, topic)),
            topic_authorized_operations=operations,
        )
        for topic in topics
    ]


@lru_cache(maxsize=16)
def _partitions(
    replicas: tuple[tuple[int, ...], ...], alive: frozenset[int], broken: frozenset[int]
) -> tuple[MetadataResponsePartition, ...]:
    """Describe partitions. Most topics are like some other: one in a cluster has few forms."""
    return tuple(
        MetadataResponsePartition(
            error_code=facts.error_code,
            partition_index=facts.partition,
            leader_id=facts.leader_id,
            leader_epoch=facts.leader_epoch,
            replica_nodes=facts.replicas,
            isr_nodes=facts.isr,
            offline_replicas=facts.offline_replicas,
        )
        for facts in partition_metadata(replicas, alive, broken)
    )


def _response(
    broker: Broker,
    context: RequestContext,
    request: MetadataRequest,
    topics: list[MetadataResponseTopic],
) -> MetadataResponse:
    is_asked = request.include_cluster_authorized_operations
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=node.id, host=node.host, port=node.port, rack=node.rack)
            for node in broker.cluster.nodes(context)
        ],
        cluster_id=broker.cluster_id,
        controller_id=broker.cluster.advertised_controller_id,
        topics=topics,
        cluster_authorized_operations=CLUSTER_OPERATIONS if is_asked else NOT_REQUESTED,
    )
