"""What an admin is told: plain, frozen things."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from uuid import UUID

from ..types import TopicPartition


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic that is to be made; -1 is what the broker has as its default."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)
    #: Which brokers have each partition, the leader first; then the two numbers say nothing.
    assignment: Sequence[Sequence[int]] = ()


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """A topic that was made, or could be; -1 where an old broker does not say."""

    name: str
    id: UUID
    partitions: int
    replication_factor: int


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """Who has a partition; the leader is -1 if there is none right now."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic and its partitions."""

    name: str
    id: UUID
    is_internal: bool
    partitions: tuple[PartitionDescription, ...]

    @property
    def replication_factor(self) -> int:
        """How many brokers have each partition."""
        return max((len(partition.replicas) for partition in self.partitions), default=0)

    @property
    def topic_partitions(self) -> tuple[TopicPartition, ...]:
        """The partitions, by name and number."""
        return tuple(TopicPartition(self.name, one.partition) for one in self.partitions)


class ConfigSource(Enum):
    """Where the value of a setting comes from."""

    UNKNOWN = "unknown"
    TOPIC = "topic"
    BROKER = "broker, altered"
    BROKERS = "all brokers, altered"
    STATIC = "broker, at its start"
    DEFAULT = "default"
    LOGGER = "logger"
    CLIENT_METRICS = "client metrics"
    GROUP = "group"


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A setting. `value` is None where it is a secret, or there is none."""

    name: str
    value: str | None
    source: ConfigSource
    #: In Kafka's words: boolean, string, int, …; "unknown" if the broker is old.
    type: str
    is_read_only: bool
    is_sensitive: bool
    documentation: str

    @property
    def is_default(self) -> bool:
        """Whether nobody has set it."""
        return self.source is ConfigSource.DEFAULT


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group, as its coordinator lists it; what an old broker does not say is empty."""

    group_id: str
    protocol_type: str
    state: str
    type: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group. Topics and assignment are empty if they are not a consumer's."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    topics: tuple[str, ...]
    assignment: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group and its members."""

    group_id: str
    state: str
    protocol_type: str
    #: How the members share the partitions, once they have agreed: "range", …
    assignor: str
    coordinator: int
    members: tuple[MemberDescription, ...]


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far a group is behind in a partition."""

    #: None: it has committed nothing there.
    committed: int | None
    #: The end of the log; None if the partition is not there any more.
    end: int | None
    metadata: str = ""

    @property
    def lag(self) -> int | None:
        """How many offsets are still to be read, where that is known."""
        if self.committed is None or self.end is None:
            return None
        return max(0, self.end - self.committed)


@dataclass(frozen=True, slots=True)
class BrokerDescription:
    """A broker, and where it says that it is."""

    id: int
    host: str
    port: int
    rack: str | None
    is_controller: bool


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The brokers of a cluster."""

    cluster_id: str | None
    #: -1 if there is none right now.
    controller: int
    brokers: tuple[BrokerDescription, ...]


@dataclass(frozen=True, slots=True)
class ApiVersion:
    """An api that a broker serves: the first and last version, and which one we would take."""

    key: int
    #: Empty if we do not know it.
    name: str
    first: int
    last: int
    #: None if there is no version that both sides speak.
    used: int | None
