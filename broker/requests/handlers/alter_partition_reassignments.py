"""AlterPartitionReassignments: move partitions to other replicas, or cancel that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ottla.coord.metadata_image import Topic, TopicPartition
from ottla.protocol.api.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from ottla.protocol.errors import ErrorCode

from ...cluster.elections import PlannedElection
from ...cluster.reassignments import (
    check_static_reassignment,
    plan_cancellation,
    plan_reassignment,
)
from ..errors import ApiError, error_code_of, error_message_of

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext


async def handle(
    broker: Broker, _context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    """Handle AlterPartitionReassignments."""
    targets = {
        TopicPartition(topic.name, partition.partition_index): partition.replicas
        for topic in request.topics
        for partition in topic.partitions
    }
    allows_factor_change = request.allow_replication_factor_change
    if broker.store is None:
        outcomes = {tp: _static_error(broker, tp, target) for tp, target in targets.items()}
    else:
        outcomes = await _reassign(broker, targets, allows_factor_change=allows_factor_change)
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=allows_factor_change,
        responses=[
            ReassignableTopicResponse(
                name=name,
                partitions=[
                    _result(tp.partition, outcomes[tp]) for tp in targets if tp.topic == name
                ],
            )
            for name in dict.fromkeys(topic.name for topic in request.topics)
        ],
    )


async def _reassign(
    broker: Broker,
    targets: Mapping[TopicPartition, Sequence[int] | None],
    *,
    allows_factor_change: bool,
) -> dict[TopicPartition, Exception | None]:
    image = broker.topics.image

    def planner(index: int, target: Sequence[int] | None) -> Callable[[Topic], Any]:
        def plan(topic: Topic) -> PlannedElection | None:
            min_isr = broker.topics.config_of(topic).min_insync_replicas
            if target is None:
                return plan_cancellation(image, topic, index, min_isr)
            return plan_reassignment(
                image, topic, index, target, min_isr, allows_factor_change=allows_factor_change
            )

        return plan

    controller: Any = broker.controller
    outcomes: dict[TopicPartition, Exception | None] = await controller.change_partitions(
        {tp: planner(tp.partition, target) for tp, target in targets.items()}
    )
    return outcomes


def _static_error(
    broker: Broker, tp: TopicPartition, target: Sequence[int] | None
) -> Exception | None:
    topic = broker.topics.image.topics.get(tp.topic)
    if topic is None or not 0 <= tp.partition < len(topic.replicas):
        return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    try:
        check_static_reassignment(topic, tp.partition, target, broker.cluster.broker_ids)
    except ApiError as error:
        return error
    return None


def _result(index: int, error: Exception | None) -> ReassignablePartitionResponse:
    if error is None:
        return ReassignablePartitionResponse(partition_index=index)
    return ReassignablePartitionResponse(
        partition_index=index,
        error_code=error_code_of(error),
        error_message=error_message_of(error),
    )
