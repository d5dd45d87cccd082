"""CreateTopics: create the topics of a request together; an invalid one fails alone."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
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
from ..authorization import CLUSTER, CREATE, DENIED, DESCRIBE_CONFIGS, TOPIC, allows, check
from ..errors import ApiError, error_code_of, error_message_of

if TYPE_CHECKING:
    from ...broker import Broker
    from ...config.broker_config import BrokerConfig
    from ..dispatch import RequestContext

logger = logging.getLogger(__name__)

_DEFAULT = -1
_FIRST_VERSION_WITH_CONFIGS = 5
_FIRST_VERSION_WITH_QUOTA_ERROR = 6


async def handle(
    broker: Broker, context: RequestContext, request: CreateTopicsRequest
) -> CreateTopicsResponse:
    """Handle CreateTopics."""
    requested = {topic.name: topic for topic in request.topics}
    counts = Counter(topic.name for topic in request.topics)

    mutation = None
    if broker.dispatcher.quotas is not None and not request.validate_only:
        is_strict = context.version >= _FIRST_VERSION_WITH_QUOTA_ERROR
        mutation = broker.dispatcher.quotas.mutation(context, is_strict=is_strict)
    charged: set[str] = set()
    may_create_all = allows(broker, context, CREATE, CLUSTER, logs=False)

    def plan(name: str) -> Topic:
        if not may_create_all:
            check(broker, context, CREATE, TOPIC, name)
        if counts[name] > 1:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic in the request")
        topic = _plan(broker, requested[name])
        if mutation is not None and name not in charged:
            mutation.take(len(topic.replicas))
            charged.add(name)
        return topic

    results = await broker.controller.plan_and_create_topics(
        requested, plan, validate_only=request.validate_only
    )
    for result in results.values():
        if isinstance(result, Exception) and error_code_of(result) == ErrorCode.KAFKA_STORAGE_ERROR:
            broker.disk_space.count(result)
    if not request.validate_only:
        _log_clamped(broker, request, results)
    describer = None
    if context.version >= _FIRST_VERSION_WITH_CONFIGS:
        describer = ConfigDescriber(broker.config, broker.topics.image)
    return CreateTopicsResponse(
        throttle_time_ms=0 if mutation is None else mutation.throttle_ms,
        topics=[
            _error_result(name, result)
            if isinstance(result, Exception)
            else _result(
                result,
                describer,
                is_created=not request.validate_only,
                is_described=allows(broker, context, DESCRIBE_CONFIGS, TOPIC, name, logs=False),
            )
            for name, result in results.items()
        ],
    )


def _plan(broker: Broker, topic: CreatableTopic) -> Topic:
    if topic.name in INTERNAL_TOPICS:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} is an internal topic")
    check_no_duplicates(config.name for config in topic.configs)
    configs = {}
    for config in topic.configs:
        if config.value is None:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"Config {config.name} has no value")
        configs[config.name] = config.value
    count, factor = topic.num_partitions, topic.replication_factor
    if topic.assignments:
        if (count, factor) != (_DEFAULT, _DEFAULT):
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                "With replica assignments, the number of partitions and the replication factor"
                " must be -1",
            )
        replicas = _assigned_replicas(broker, topic.assignments)
        return broker.controller.plan_topic(topic.name, len(replicas), configs, replicas)
    if broker.store is not None:
        count = broker.config.num_partitions if count == _DEFAULT else count
        requested = None if factor == _DEFAULT else factor
        return broker.controller.plan_topic(
            topic.name, count, configs, replication_factor=requested
        )
    if factor not in (_DEFAULT, 1) and not (factor > 1 and broker.config.clamps_replication_factor):
        advice = "; replication.factor.policy=clamp creates the topic with 1" if factor > 1 else ""
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Invalid replication factor {factor}: only 1 is supported{advice}",
        )
    count = broker.config.num_partitions if count == _DEFAULT else count
    return broker.controller.plan_topic(topic.name, count, configs)


def _log_clamped(
    broker: Broker, request: CreateTopicsRequest, results: Mapping[str, Topic | Exception]
) -> None:
    """Log the topics that were created with fewer replicas than requested."""
    for topic in request.topics:
        result = results[topic.name]
        if isinstance(result, Topic) and not topic.assignments:
            requested = topic.replication_factor
            log_clamped_factor(broker.config, result, None if requested == _DEFAULT else requested)


def log_clamped_factor(config: BrokerConfig, topic: Topic, requested: int | None = None) -> None:
    """Log a new topic with fewer replicas than requested; None is the default factor."""
    requested = config.default_replication_factor if requested is None else requested
    used = len(topic.replicas[0])
    if requested > used:
        logger.info(
            "replication factor clamped",
            extra={"topic": topic.name, "requested": requested, "replication_factor": used},
        )


def _assigned_replicas(
    broker: Broker, assignments: Sequence[CreatableReplicaAssignment]
) -> list[Sequence[int]]:
    """Return the replicas of each partition."""
    by_index = {assignment.partition_index: assignment.broker_ids for assignment in assignments}
    if sorted(by_index) != list(range(len(assignments))):
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Replica assignments must be for partitions 0, 1, 2 and so on, without gaps",
        )
    replicas = [by_index[index] for index in range(len(by_index))]
    check_replicas(broker, replicas)
    return replicas


def check_replicas(broker: Broker, replicas: Sequence[Sequence[int]]) -> None:
    """Raise ApiError unless each partition is assigned to one broker of the cluster.

    With a metadata store: to as many distinct brokers as the first one.
    """
    broker_ids = broker.cluster.broker_ids
    if broker.store is not None:
        for assigned in replicas:
            if (
                len(assigned) != len(replicas[0])
                or len(set(assigned)) != len(assigned)
                or not assigned
                or not set(assigned) <= set(broker_ids)
            ):
                raise ApiError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"Invalid replicas {list(assigned)[:10]}: expected {len(replicas[0])} distinct"
                    f" brokers of {', '.join(map(str, broker_ids))}",
                )
        return
    for assigned in replicas:
        if len(assigned) != 1 or assigned[0] not in broker_ids:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Invalid replicas {list(assigned)[:10]}: expected one of the brokers"
                f" {', '.join(map(str, broker_ids))}",
            )


def _result(
    topic: Topic, describer: ConfigDescriber | None, *, is_created: bool, is_described: bool
) -> CreatableTopicResult:
    if not is_described:
        return CreatableTopicResult(
            name=topic.name,
            topic_id=topic.id if is_created else NIL_UUID,
            error_message=None,
            topic_config_error_code=DENIED[TOPIC],
        )
    return CreatableTopicResult(
        name=topic.name,
        topic_id=topic.id if is_created else NIL_UUID,
        error_message=None,
        num_partitions=len(topic.replicas),
        replication_factor=len(topic.replicas[0]),
        configs=[
            CreatableTopicConfigs(
                name=config.key.name,
                value=config.value,
                read_only=config.is_read_only,
                config_source=config.source,
            )
            for config in (describer.topic(topic.configs) if describer else ())
        ],
    )


def _error_result(name: str, error: Exception) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=name, error_code=error_code_of(error), error_message=error_message_of(error)
    )
