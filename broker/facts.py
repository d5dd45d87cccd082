"""What clients are told of topics and the cluster, whichever api they ask by."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
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


def broken_of(broker: Broker, topic: Topic) -> frozenset[int]:
    """Name the partitions of a topic that should be here, and whose logs could not be opened."""
    own = broker.topics.own_partitions(topic)
    return frozenset(index for index, partition in own.items() if partition is None)


def partitions_of(
    replicas: Sequence[tuple[int, ...]], alive: Container[int], broken: Container[int]
) -> Iterator[PartitionFacts]:
    """Give the facts of partitions: who has them, who is up, whose log is broken."""
    for index, brokers in enumerate(replicas):
        if index in broken:
            error = ErrorCode.KAFKA_STORAGE_ERROR
        else:
            error = ErrorCode.NONE if brokers[0] in alive else ErrorCode.LEADER_NOT_AVAILABLE
        if error:
            yield PartitionFacts(index, error, -1, LEADER_EPOCH, brokers, (), brokers)
        else:
            yield PartitionFacts(index, error, brokers[0], LEADER_EPOCH, brokers, brokers, ())
