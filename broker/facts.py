"""What clients are told of topics and the cluster, whichever api they ask by."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from ottla.coord.catalogue import Topic
from ottla.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from .broker import Broker


class AclOperation(IntEnum):
    """What a client may do, by Kafka's numbers; a set of them is a bit for each."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


def _bits(*operations: AclOperation) -> int:
    return sum(1 << operation for operation in operations)


# Nobody is kept from anything, so whoever asks may do all that there is to do.
TOPIC_OPERATIONS = _bits(
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.CREATE,
    AclOperation.DELETE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
)
CLUSTER_OPERATIONS = _bits(
    AclOperation.CREATE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.CLUSTER_ACTION,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
    AclOperation.IDEMPOTENT_WRITE,
)
GROUP_OPERATIONS = _bits(AclOperation.READ, AclOperation.DELETE, AclOperation.DESCRIBE)
#: An owner is fixed, so there never is another leader.
LEADER_EPOCH = 0
#: The set of operations, where it was not asked for.
NOT_ASKED = -(2**31)


class PartitionFacts(NamedTuple):
    """Who has a partition, and who leads it; -1 if nobody can."""

    partition: int
    error_code: ErrorCode
    leader_id: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    offline: tuple[int, ...]


def partitions_of(broker: Broker, topic: Topic, start: int = 0) -> Iterator[PartitionFacts]:
    """Give the facts of a topic's partitions, from one of them on."""
    own, alive = broker.topics.own_partitions(topic), broker.cluster.alive
    for index in range(start, len(topic.replicas)):
        replicas = topic.replicas[index]
        if index in own:
            error = ErrorCode.KAFKA_STORAGE_ERROR if own[index] is None else ErrorCode.NONE
        else:
            is_up = replicas[0] in alive
            error = ErrorCode.NONE if is_up else ErrorCode.LEADER_NOT_AVAILABLE
        if error:
            yield PartitionFacts(index, error, -1, LEADER_EPOCH, replicas, (), replicas)
        else:
            yield PartitionFacts(index, error, replicas[0], LEADER_EPOCH, replicas, replicas, ())
