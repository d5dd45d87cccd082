"""Partition metadata (leader, replicas, ISR), as Metadata and DescribeTopicPartitions return it."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ottla.coord.metadata_image import Topic
from ottla.protocol.errors import ErrorCode

from ..partitions.partition import LEADER_EPOCH

if TYPE_CHECKING:
    from ..broker import Broker


class PartitionMetadata(NamedTuple):
    """The replicas of a partition and its leader; -1 if there is none."""

    partition: int
    error_code: ErrorCode
    leader_id: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...]


def offline_partitions(broker: Broker, topic: Topic) -> frozenset[int]:
    """Return the partitions of a topic that this broker leads and whose logs failed to open."""
    led = broker.topics.led_partitions(topic)
    return frozenset(index for index, partition in led.items() if partition is None)


def partition_metadata(
    replicas: Sequence[tuple[int, ...]], alive: Container[int], offline: Container[int]
) -> Iterator[PartitionMetadata]:
    """Yield the metadata of each partition.

    `alive` are the ids of brokers that are up, `offline` the indexes of partitions without a log.
    """
    for index, brokers in enumerate(replicas):
        if index in offline:
            error = ErrorCode.KAFKA_STORAGE_ERROR
        else:
            error = ErrorCode.NONE if brokers[0] in alive else ErrorCode.LEADER_NOT_AVAILABLE
        if error:
            yield PartitionMetadata(index, error, -1, LEADER_EPOCH, brokers, (), brokers)
        else:
            yield PartitionMetadata(index, error, brokers[0], LEADER_EPOCH, brokers, brokers, ())
