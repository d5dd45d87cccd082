"""ListPartitionReassignments: the partitions that are being moved to other brokers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ottla.coord.metadata_image import Topic
from ottla.protocol.api.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext


def handle(
    broker: Broker, _context: RequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """Handle ListPartitionReassignments. Unknown topics are not being reassigned."""
    image = broker.topics.image
    requested: dict[str, set[int] | None] = dict.fromkeys(image.topics)
    if request.topics is not None:
        requested = {topic.name: set(topic.partition_indexes) for topic in request.topics}
    found = []
    for name, indexes in requested.items():
        topic = image.topics.get(name)
        if topic is not None and (partitions := list(_reassigning(broker, topic, indexes))):
            found.append(OngoingTopicReassignment(name=name, partitions=partitions))
    return ListPartitionReassignmentsResponse(topics=found)


def _reassigning(
    broker: Broker, topic: Topic, indexes: set[int] | None
) -> Iterator[OngoingPartitionReassignment]:
    states = broker.topics.image.partition_states.get(topic.id, {})
    for index, state in states.items():
        if state.is_reassigning and (indexes is None or index in indexes):
            yield OngoingPartitionReassignment(
                partition_index=index,
                replicas=state.replicas,
                adding_replicas=state.adding_replicas,
                removing_replicas=state.removing_replicas,
            )
