"""ElectLeaders: elect preferred leaders, or any replica of partitions without a leader.

Without a metadata store a partition has one replica, so that no election is ever needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ottla.coord.metadata_image import Topic, TopicPartition
from ottla.protocol.api.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from ottla.protocol.errors import ErrorCode

from ...cluster.elections import PlannedElection, plan_preferred_election, plan_unclean_election
from ..errors import ApiError, error_code_of, error_message_of

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext

_PREFERRED, _UNCLEAN = 0, 1
#: What a live and a dead leader of a partition with one replica mean, by election type.
_NO_LEADER_CODES = {
    _PREFERRED: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    _UNCLEAN: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
}


async def handle(
    broker: Broker, _context: RequestContext, request: ElectLeadersRequest
) -> ElectLeadersResponse:
    """Handle ElectLeaders."""
    if request.election_type not in _NO_LEADER_CODES:
        return ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST)
    is_for_all = request.topic_partitions is None
    partitions = dict.fromkeys(
        _all_partitions(broker) if is_for_all else _requested_partitions(request)
    )
    outcomes = await _elect(broker, partitions, request.election_type)
    results: dict[str, list[PartitionResult]] = {tp.topic: [] for tp in partitions}
    for tp in partitions:
        error = outcomes[tp]
        code = ErrorCode.NONE if error is None else error_code_of(error)
        if is_for_all and code is ErrorCode.ELECTION_NOT_NEEDED:
            continue
        message = None if error is None else error_message_of(error)
        results[tp.topic].append(
            PartitionResult(partition_id=tp.partition, error_code=code, error_message=message)
        )
    return ElectLeadersResponse(
        replica_election_results=[
            ReplicaElectionResult(topic=topic, partition_result=some)
            for topic, some in results.items()
        ]
    )


def _all_partitions(broker: Broker) -> Iterable[TopicPartition]:
    for topic in broker.topics.image.topics.values():
        for index in range(len(topic.replicas)):
            yield TopicPartition(topic.name, index)


def _requested_partitions(request: ElectLeadersRequest) -> Iterable[TopicPartition]:
    for topic in request.topic_partitions or ():
        for index in topic.partitions:
            yield TopicPartition(topic.topic, index)


async def _elect(
    broker: Broker, partitions: Iterable[TopicPartition], election_type: int
) -> Mapping[TopicPartition, Exception | None]:
    image = broker.topics.image
    if broker.store is None:
        return {tp: _static_error(broker, tp, election_type) for tp in partitions}
    plan = plan_preferred_election if election_type == _PREFERRED else plan_unclean_election

    def planner(index: int) -> Callable[[Topic], PlannedElection]:
        return lambda topic: plan(image, topic, index)

    controller: Any = broker.controller
    outcomes: Mapping[TopicPartition, Exception | None] = await controller.change_partitions(
        {tp: planner(tp.partition) for tp in partitions}
    )
    return outcomes


def _static_error(broker: Broker, tp: TopicPartition, election_type: int) -> ApiError:
    topic = broker.topics.image.topics.get(tp.topic)
    if topic is None or not 0 <= tp.partition < len(topic.replicas):
        return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    leader = topic.replicas[tp.partition][0]
    if leader in broker.cluster.alive:
        return ApiError(ErrorCode.ELECTION_NOT_NEEDED)
    return ApiError(
        _NO_LEADER_CODES[election_type], f"The only replica is on broker {leader}, which is down"
    )
