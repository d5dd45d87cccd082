"""Topics and their partitions (leader, replicas, ISR), as metadata responses return them."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ottla.coord.metadata_image import Topic, check_topic_name
from ottla.coord.partition_state import NO_LEADER, PartitionState
from ottla.protocol.errors import ErrorCode

from .errors import ApiError

if TYPE_CHECKING:
    from ..broker import Broker


class PartitionMetadata(NamedTuple):
    """A partition's leader (-1 if none) and replicas; the fields are named as in responses."""

    error_code: ErrorCode
    partition_index: int
    leader_id: int
    leader_epoch: int
    replica_nodes: tuple[int, ...]
    isr_nodes: tuple[int, ...]
    offline_replicas: tuple[int, ...]

    @classmethod
    def of_state(
        cls, index: int, state: PartitionState, alive: Container[int]
    ) -> PartitionMetadata:
        """Return the metadata of a replicated partition.

        A leader that is not alive any more is none: its address is not in the response.
        """
        leader = state.leader if state.leader in alive else NO_LEADER
        return cls(
            ErrorCode.LEADER_NOT_AVAILABLE if leader == NO_LEADER else ErrorCode.NONE,
            index,
            leader,
            state.leader_epoch,
            state.replicas,
            state.isr,
            tuple(broker_id for broker_id in state.replicas if broker_id not in alive),
        )


def find_topic(broker: Broker, name: str) -> Topic:
    """Return a topic by its name. Raises InvalidTopicError or ApiError if there is none."""
    topic = broker.topics.image.topics.get(name)
    if topic is None:
        check_topic_name(name)
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unknown topic {name!r}")
    return topic


def offline_partitions(broker: Broker, topic: Topic) -> frozenset[int]:
    """Return the partitions of a topic that this broker leads and whose logs failed to open."""
    led = broker.topics.led_partitions(topic)
    return frozenset(index for index, partition in led.items() if partition is None)


def replicated_partitions(
    broker: Broker, topic: Topic, alive: Container[int]
) -> Iterator[PartitionMetadata]:
    """Yield the metadata of each partition of a topic whose partitions have states.

    This broker does not name itself the leader of a partition if another one may have been elected:
    its registration has expired, and the followers fetch from it no longer.
    """
    states = broker.topics.image.partition_states[topic.id]
    for index in range(len(topic.replicas)):
        if index in states:
            metadata = PartitionMetadata.of_state(index, states[index], alive)
            if metadata.leader_id == broker.id and not _may_lead(broker, topic, index):
                metadata = metadata._replace(
                    error_code=ErrorCode.LEADER_NOT_AVAILABLE, leader_id=NO_LEADER
                )
            yield metadata


def _may_lead(broker: Broker, topic: Topic, index: int) -> bool:
    if broker.replicas is None:
        return True
    partition = broker.topics.led_partitions(topic).get(index)
    return partition is not None and broker.may_lead(partition)


def partition_metadata(
    replicas: Sequence[tuple[int, ...]],
    alive: Container[int],
    offline: Container[int],
    leader_epochs: Mapping[int, int],
) -> Iterator[PartitionMetadata]:
    """Yield the metadata of each partition.

    `alive` are the ids of brokers that are up, `offline` the indexes of partitions without a log,
    `leader_epochs` those of all brokers.
    """
    for index, brokers in enumerate(replicas):
        if index in offline:
            error = ErrorCode.KAFKA_STORAGE_ERROR
        else:
            error = ErrorCode.NONE if brokers[0] in alive else ErrorCode.LEADER_NOT_AVAILABLE
        epoch = leader_epochs.get(brokers[0], 0)
        if error:
            yield PartitionMetadata(error, index, -1, epoch, brokers, (), brokers)
        else:
            yield PartitionMetadata(error, index, brokers[0], epoch, brokers, brokers, ())
