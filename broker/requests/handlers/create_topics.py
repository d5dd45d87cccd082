"""CreateTopics: make topics, all of a request in one go; one that cannot be harms no other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ottla.coord.metadata_image import INTERNAL_TOPICS, Topic
from ottla.protocol.api.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.primitives import NIL_UUID

from ...config.dynamic_configs import ConfigDescriber, check_no_duplicates
from ..errors import ApiError, error_code_of, error_message_of

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext

_DEFAULT = -1
_FIRST_WITH_CONFIGS = 5


async def handle(
    broker: Broker, context: RequestContext, request: CreateTopicsRequest
) -> CreateTopicsResponse:
    """Answer CreateTopics."""
    wanted = {topic.name: topic for topic in request.topics}
    times_named = Counter(topic.name for topic in request.topics)

    def plan(name: str) -> Topic:
        if times_named[name] > 1:
            raise ApiError(ErrorCode.INVALID_REQUEST, "the request names this topic twice")
        return _plan(broker, wanted[name])

    outcomes = await broker.controller.plan_and_create_topics(
        wanted, plan, validate_only=request.validate_only
    )
    describer = ConfigDescriber(broker.config) if context.version >= _FIRST_WITH_CONFIGS else None
    return CreateTopicsResponse(
        topics=[
            _failed(name, outcome)
            if isinstance(outcome, Exception)
            else _created(outcome, describer, is_there=not request.validate_only)
            for name, outcome in outcomes.items()
        ]
    )


def _plan(broker: Broker, wanted: CreatableTopic) -> Topic:
    if wanted.name in INTERNAL_TOPICS:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{wanted.name} is the broker's own")
    check_no_duplicates(config.name for config in wanted.configs)
    configs = {}
    for config in wanted.configs:
        if config.value is None:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"{config.name}: it has no value")
        configs[config.name] = config.value
    count, factor = wanted.num_partitions, wanted.replication_factor
    if wanted.assignments:
        if (count, factor) != (_DEFAULT, _DEFAULT):
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                "a topic with assignments must have -1 for its partitions and replication factor",
            )
        replicas = _assigned(broker, wanted.assignments)
        return broker.controller.plan_topic(wanted.name, len(replicas), configs, replicas)
    if factor not in (_DEFAULT, 1):
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"a replication factor of {factor}: a partition has one owner, and no other replica",
        )
    count = broker.config.num_partitions if count == _DEFAULT else count
    return broker.controller.plan_topic(wanted.name, count, configs)


def _assigned(
    broker: Broker, assignments: Sequence[CreatableReplicaAssignment]
) -> list[Sequence[int]]:
    """Give the replicas of each partition, of which there is one."""
    by_index = {assigned.partition_index: assigned.broker_ids for assigned in assignments}
    if sorted(by_index) != list(range(len(assignments))):
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "the partitions of the assignments must be 0, 1, 2 and so on, each once",
        )
    replicas = [by_index[index] for index in range(len(by_index))]
    check_replicas(broker, replicas)
    return replicas


def check_replicas(broker: Broker, replicas: Sequence[Sequence[int]]) -> None:
    """Raise ApiError for partitions that are assigned to other brokers than there are."""
    ids = broker.cluster.broker_ids
    for brokers in replicas:
        if len(brokers) != 1 or brokers[0] not in ids:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"replicas on {list(brokers)[:10]}: it must be one broker, of"
                f" {', '.join(map(str, ids))}",
            )


def _created(
    topic: Topic, describer: ConfigDescriber | None, *, is_there: bool
) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=topic.name,
        topic_id=topic.id if is_there else NIL_UUID,
        error_message=None,
        num_partitions=len(topic.replicas),
        replication_factor=len(topic.replicas[0]),
        configs=[
            CreatableTopicConfigs(
                name=described.key.name,
                value=described.value,
                read_only=described.is_read_only,
                config_source=described.source,
            )
            for described in (describer.topic(topic.configs) if describer else ())
        ],
    )


def _failed(name: str, error: Exception) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=name, error_code=error_code_of(error), error_message=error_message_of(error)
    )
