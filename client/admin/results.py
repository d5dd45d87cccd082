"""Results of the admin client, as frozen dataclasses; `topics` has those of topics."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ..types import TopicPartition


class ConfigSource(Enum):
    """Where the value of a config comes from, named as in Kafka."""

    UNKNOWN = "unknown"
    DYNAMIC_TOPIC = "dynamic topic config"
    DYNAMIC_BROKER = "dynamic broker config"
    DYNAMIC_DEFAULT_BROKER = "dynamic default broker config"
    STATIC_BROKER = "static broker config"
    DEFAULT = "default"
    DYNAMIC_BROKER_LOGGER = "dynamic broker logger config"
    DYNAMIC_CLIENT_METRICS = "dynamic client metrics config"
    DYNAMIC_GROUP = "dynamic group config"


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A config. `value` is None if it is sensitive, or not set."""

    name: str
    value: str | None
    source: ConfigSource
    #: As in Kafka: boolean, string, int, …; "unknown" with an old broker.
    type: str
    is_read_only: bool
    is_sensitive: bool
    documentation: str

    @property
    def is_default(self) -> bool:
        """Whether the value is the default."""
        return self.source is ConfigSource.DEFAULT


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group, as its coordinator lists it; empty strings where an old broker returns nothing."""

    group_id: str
    protocol_type: str
    state: str
    type: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group. Topics and assignment are empty if it is not a consumer group."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    topics: tuple[str, ...]
    assignment: tuple[TopicPartition, ...]
    #: Of the consumer protocol: None for members of classic groups.
    epoch: int | None = None
    #: The partitions that the member is to have when the rebalance ends.
    target: tuple[TopicPartition, ...] = ()
    #: The regular expression that it subscribes to, "" if none.
    regex: str = ""
    #: The protocol of the member: a consumer group may have classic members while it is migrated.
    type: str = "classic"


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group and its members."""

    group_id: str
    state: str
    protocol_type: str
    #: The assignor that the group selected: "range", …
    assignor: str
    coordinator: int
    members: tuple[MemberDescription, ...]
    #: The group's protocol: classic, consumer or share.
    type: str = "classic"
    #: None in the classic protocol: group epoch, and the one that the assignment was computed for.
    epoch: int | None = None
    assignment_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """The committed and end offset of a partition."""

    #: None if the group has not committed an offset.
    committed: int | None
    #: The log end offset; None if the partition does not exist any more.
    end: int | None
    metadata: str = ""

    @property
    def lag(self) -> int | None:
        """The offsets still to be read; None if not known."""
        if self.committed is None or self.end is None:
            return None
        return max(0, self.end - self.committed)


@dataclass(frozen=True, slots=True)
class BrokerDescription:
    """A broker and its advertised address."""

    id: int
    host: str
    port: int
    rack: str | None
    is_controller: bool
    #: False if it is known to the cluster, but down; older brokers list live ones only.
    is_alive: bool = True


@dataclass(frozen=True, slots=True)
class ReplicaLogDir:
    """A replica on the disk of a broker."""

    broker: int
    log_dir: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The brokers of a cluster."""

    cluster_id: str | None
    #: -1 if there is none.
    controller: int
    brokers: tuple[BrokerDescription, ...]


@dataclass(frozen=True, slots=True)
class ApiVersion:
    """An API of a broker: its first and last version, and the one we would use."""

    key: int
    #: Empty if the API is not known.
    name: str
    first: int
    last: int
    #: None if there is no version that both sides support.
    used: int | None
