"""The documents of the REST API."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from ottla.client import (
    AclBinding,
    AclOperation,
    BrokerDescription,
    ConfigEntry,
    ConsumerRecord,
    GroupDescription,
    GroupListing,
    MemberDescription,
    PartitionDescription,
    PatternType,
    PermissionType,
    QuotaEntity,
    QuotaName,
    ResourceType,
    TopicDescription,
    TopicPartition,
    TransactionDescription,
    TransactionListing,
)

from .rendering import Encoding, decode, encode, iso_time

T = TypeVar("T")

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
#: A topic name, as brokers accept it.
TopicName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9._-]+$", max_length=249)]
PartitionId = Annotated[int, Field(ge=0, le=INT32_MAX)]
Offset = Annotated[int, Field(ge=0, le=INT64_MAX)]
#: A group, user, transactional id or client id: anything that fits Kafka's strings.
Name = Annotated[str, Field(min_length=1, max_length=1000)]
_ConfigValues = dict[
    Annotated[str, Field(min_length=1, max_length=249)], Annotated[str, Field(max_length=10_000)]
]


class Model(BaseModel):
    """A document; unknown members of a request are an error."""

    model_config = ConfigDict(extra="forbid")


class ProblemDetails(BaseModel):
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    #: The broker's error code.
    code: str | None = None


class Page(Model, Generic[T]):
    """A part of a list."""

    items: list[T]
    #: How many items there are in all.
    total: int
    offset: int
    limit: int

    @classmethod
    def of(cls, items: list[T], offset: int, limit: int) -> Self:
        """Return a page of a whole list."""
        return cls(
            items=items[offset : offset + limit], total=len(items), offset=offset, limit=limit
        )


class Broker(Model):
    """A broker."""

    id: int
    host: str
    port: int
    rack: str | None
    is_controller: bool
    is_alive: bool
    leaders: int
    replicas: int
    in_sync: int
    #: Bytes of its replicas; null if it does not tell.
    size_bytes: int | None = None

    @classmethod
    def of(cls, broker: BrokerDescription, **counts: Any) -> Broker:
        """Return a broker of the SDK."""
        return cls(
            id=broker.id,
            host=broker.host,
            port=broker.port,
            rack=broker.rack,
            is_controller=broker.is_controller,
            is_alive=broker.is_alive,
            **counts,
        )


class Cluster(Model):
    """The cluster as a whole."""

    cluster_id: str | None
    controller: int
    brokers: int
    brokers_alive: int
    topics: int
    internal_topics: int
    partitions: int
    under_replicated_partitions: int
    offline_partitions: int


class Partition(Model):
    """A partition."""

    partition: int
    #: -1: none.
    leader: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    is_under_replicated: bool
    is_offline: bool
    first_offset: int | None = None
    end_offset: int | None = None
    size_bytes: int | None = None

    @classmethod
    def of(
        cls,
        one: PartitionDescription,
        offsets: tuple[int | None, int | None] = (None, None),
        size_bytes: int | None = None,
    ) -> Partition:
        """Return a partition of the SDK."""
        return cls(
            partition=one.partition,
            leader=one.leader,
            leader_epoch=one.leader_epoch,
            replicas=list(one.replicas),
            isr=list(one.isr),
            is_under_replicated=one.is_under_replicated,
            is_offline=one.is_offline,
            first_offset=offsets[0],
            end_offset=offsets[1],
            size_bytes=size_bytes,
        )


class TopicSummary(Model):
    """A topic in a list."""

    name: str
    is_internal: bool
    partitions: int
    replication_factor: int
    under_replicated_partitions: int
    offline_partitions: int
    #: Bytes of all replicas; null if brokers do not tell.
    size_bytes: int | None
    #: End offsets less first offsets: an upper bound. Null if not looked up, or not known.
    records: int | None = None

    @classmethod
    def of(cls, topic: TopicDescription, size_bytes: int | None) -> TopicSummary:
        """Return a topic of the SDK."""
        return cls(
            name=topic.name,
            is_internal=topic.is_internal,
            partitions=len(topic.partitions),
            replication_factor=topic.replication_factor,
            under_replicated_partitions=sum(one.is_under_replicated for one in topic.partitions),
            offline_partitions=sum(one.is_offline for one in topic.partitions),
            size_bytes=size_bytes,
        )


class Topic(TopicSummary):
    """A topic and its partitions."""

    id: str
    partition_details: list[Partition]


class NewTopicRequest(Model):
    """A topic to create; -1 is the broker's default."""

    name: TopicName
    partitions: Annotated[int, Field(ge=-1, le=100_000)] = -1
    replication_factor: Annotated[int, Field(ge=-1, le=100)] = -1
    configs: _ConfigValues = {}
    #: Check only, and create nothing.
    validate_only: bool = False

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"name": "orders", "partitions": 3, "configs": {"cleanup.policy": "compact"}}
            ]
        },
    )


class CreatedTopicResponse(Model):
    """A topic that was created, or that could be."""

    name: str
    partitions: int
    replication_factor: int


class PartitionCount(Model):
    """The number of partitions that a topic is to have."""

    total: Annotated[int, Field(ge=1, le=100_000)]
    validate_only: bool = False

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"total": 6}]})


class Config(Model):
    """A config of a topic or broker."""

    name: str
    #: Null if it is sensitive, or not set.
    value: str | None
    source: str
    type: str
    is_default: bool
    is_read_only: bool
    is_sensitive: bool
    documentation: str

    @classmethod
    def of(cls, entry: ConfigEntry) -> Config:
        """Return a config of the SDK."""
        return cls(
            name=entry.name,
            value=entry.value,
            source=entry.source.value,
            type=entry.type,
            is_default=entry.is_default,
            is_read_only=entry.is_read_only,
            is_sensitive=entry.is_sensitive,
            documentation=entry.documentation,
        )


class ConfigChanges(Model):
    """Configs to set, and to reset to their defaults; the others keep their values."""

    set: _ConfigValues = {}
    unset: list[Annotated[str, Field(min_length=1, max_length=249)]] = []
    validate_only: bool = False

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"set": {"retention.ms": "3600000"}}]}
    )


class Bytes(Model):
    """Bytes as text, or as Base64 if they are not UTF-8."""

    encoding: Encoding = "utf-8"
    data: str
    #: Of exported records, for imports.
    size: int | None = None
    is_truncated: bool = False

    def decoded(self) -> bytes:
        """Return the bytes. Raises ValueError."""
        if self.is_truncated:
            raise ValueError("A field is truncated: export records to have them in full")
        return decode(self.data, self.encoding)


class ReadBytes(Model):
    """Bytes of a record: as text, or as Base64 if they are not UTF-8."""

    encoding: Encoding
    data: str
    size: int
    #: Whether `data` has less than `size` bytes of it.
    is_truncated: bool = False

    @classmethod
    def of(cls, data: bytes | None, max_bytes: int | None) -> ReadBytes | None:
        """Return the document of bytes."""
        encoded = encode(data, max_bytes)
        return None if encoded is None else cls(**encoded._asdict())


class ReadHeader(Model):
    """A header of a record."""

    name: str
    value: ReadBytes | None


class Record(Model):
    """A record."""

    partition: int
    offset: int
    #: In milliseconds since 1970.
    timestamp: int
    time: str | None
    key: ReadBytes | None
    value: ReadBytes | None
    headers: list[ReadHeader]

    @classmethod
    def of(cls, record: ConsumerRecord, max_bytes: int | None) -> Record:
        """Return a record of the SDK, its fields cut at `max_bytes`."""
        return cls(
            partition=record.partition,
            offset=record.offset,
            timestamp=record.timestamp,
            time=iso_time(record.timestamp),
            key=ReadBytes.of(record.key, max_bytes),
            value=ReadBytes.of(record.value, max_bytes),
            headers=[
                ReadHeader(name=name, value=ReadBytes.of(value, max_bytes))
                for name, value in record.headers
            ],
        )


class Records(Model):
    """A page of records."""

    items: list[Record]
    #: Pass it to read on, or to older records; null at the end.
    cursor: str | None
    #: What ended the query: limit, end, time, bytes or records.
    stop: str
    scanned: int
    scanned_bytes: int


#: A string is UTF-8.
_Field = str | Bytes | None


class NewHeader(Model):
    """A header of a record to produce."""

    name: Annotated[str, Field(max_length=1000)]
    value: _Field = None


class NewRecord(Model):
    """A record to produce, such as an exported one: its offset and time do not matter."""

    key: _Field = None
    value: _Field = None
    headers: list[NewHeader] = []
    partition: PartitionId | None = None
    #: In milliseconds since 1970.
    timestamp: Offset | None = None
    offset: int | None = None
    time: str | None = None


class NewRecords(Model):
    """Records to produce."""

    records: Annotated[list[NewRecord], Field(min_length=1, max_length=10_000)]

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"records": [{"key": "ann", "value": "tea"}]}]},
    )


def bytes_of(field: _Field) -> bytes | None:
    """Return the bytes of a key, value or header. Raises ValueError."""
    if field is None:
        return None
    return field.encode() if isinstance(field, str) else field.decoded()


class Produced(Model):
    """Where a record was written."""

    partition: int
    offset: int


class DeleteRecords(Model):
    """The offsets before which records are deleted, by partition; null: all of them."""

    before: Annotated[dict[PartitionId, Offset | None], Field(min_length=1, max_length=10_000)]

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"before": {"0": 1000}}]}
    )


class Group(Model):
    """A group in a list."""

    group_id: str
    state: str
    type: str
    protocol_type: str
    coordinator: int

    @classmethod
    def of(cls, group: GroupListing) -> Group:
        """Return a group of the SDK."""
        return cls(
            group_id=group.group_id,
            state=group.state,
            type=group.type,
            protocol_type=group.protocol_type,
            coordinator=group.coordinator,
        )


class TopicPartitionName(Model):
    """A partition of a topic."""

    topic: TopicName
    partition: PartitionId

    @classmethod
    def of(cls, tp: TopicPartition) -> TopicPartitionName:
        """Return a partition of the SDK, whatever its name."""
        return cls.model_construct(topic=tp.topic, partition=tp.partition)


class Member(Model):
    """A member of a group."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    topics: list[str]
    assignment: list[TopicPartitionName]
    epoch: int | None

    @classmethod
    def of(cls, member: MemberDescription) -> Member:
        """Return a member of the SDK."""
        return cls(
            member_id=member.member_id,
            instance_id=member.instance_id,
            client_id=member.client_id,
            host=member.host,
            topics=list(member.topics),
            assignment=[TopicPartitionName.of(tp) for tp in member.assignment],
            epoch=member.epoch,
        )


class GroupDetails(Group):
    """A group and its members."""

    assignor: str
    epoch: int | None
    members: list[Member]

    @classmethod
    def described(cls, group: GroupDescription) -> GroupDetails:
        """Return a group of the SDK."""
        return cls(
            group_id=group.group_id,
            state=group.state,
            type=group.type,
            protocol_type=group.protocol_type,
            coordinator=group.coordinator,
            assignor=group.assignor,
            epoch=group.epoch,
            members=[Member.of(one) for one in group.members],
        )


class GroupOffset(Model):
    """The committed offset of a partition, and its lag."""

    topic: str
    partition: int
    committed: int | None
    end: int | None
    lag: int | None
    metadata: str
    #: The member that has the partition.
    member_id: str | None = None
    client_id: str | None = None


class GroupOffsets(Model):
    """The committed offsets of a group."""

    group_id: str
    #: The sum of the lags that are known.
    lag: int
    items: list[GroupOffset]


class TopicConsumer(Model):
    """A group that has committed offsets of a topic, or a share group that reads it."""

    group_id: str
    state: str
    type: str
    lag: int
    partitions: int


class OffsetReset(Model):
    """New committed offsets of a group without members."""

    to: Literal["start", "end", "offset", "time", "shift"]
    #: For offset, time and shift: a number, ISO 8601 or @MILLISECONDS, a number.
    value: Annotated[str, Field(max_length=100)] | None = None
    #: Without topics and partitions: all that the group has committed.
    topics: Annotated[list[TopicName], Field(max_length=1000)] = []
    partitions: Annotated[list[TopicPartitionName], Field(max_length=10_000)] = []
    #: Show the plan only.
    dry_run: bool = True

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"to": "start", "topics": ["orders"], "dry_run": True}]},
    )


class ResetOffset(Model):
    """The committed offset of a partition before and after a reset."""

    topic: str
    partition: int
    before: int | None
    after: int


class ResetResult(Model):
    """What a reset did, or would do."""

    dry_run: bool
    items: list[ResetOffset]


class DeleteOffsets(Model):
    """Committed offsets to delete."""

    partitions: Annotated[list[TopicPartitionName], Field(min_length=1, max_length=10_000)]

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"partitions": [{"topic": "orders", "partition": 0}]}]},
    )


class Transaction(Model):
    """A transactional id."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int

    @classmethod
    def of(cls, one: TransactionListing) -> Transaction:
        """Return a listing of the SDK."""
        return cls(
            transactional_id=one.transactional_id,
            producer_id=one.producer_id,
            state=one.state,
            coordinator=one.coordinator,
        )


class TransactionDetails(Transaction):
    """A transactional id, and its transaction."""

    producer_epoch: int
    timeout_ms: int
    started: str | None
    partitions: list[TopicPartitionName]

    @classmethod
    def described(cls, one: TransactionDescription) -> TransactionDetails:
        """Return a description of the SDK."""
        return cls(
            transactional_id=one.transactional_id,
            producer_id=one.producer_id,
            state=one.state,
            coordinator=one.coordinator,
            producer_epoch=one.producer_epoch,
            timeout_ms=one.timeout_ms,
            started=iso_time(one.started_ms),
            partitions=[TopicPartitionName.of(tp) for tp in one.partitions],
        )


class Acl(Model):
    """An ACL, with Kafka's names."""

    resource_type: Literal["TOPIC", "GROUP", "CLUSTER", "TRANSACTIONAL_ID", "USER"]
    resource_name: Name
    pattern_type: Literal["LITERAL", "PREFIXED"] = "LITERAL"
    #: User:NAME, or User:* for everybody.
    principal: Annotated[str, Field(pattern="^[A-Za-z]+:.+$", max_length=1000)]
    host: Annotated[str, Field(min_length=1, max_length=255)] = "*"
    operation: Literal[
        "ALL",
        "READ",
        "WRITE",
        "CREATE",
        "DELETE",
        "ALTER",
        "DESCRIBE",
        "CLUSTER_ACTION",
        "DESCRIBE_CONFIGS",
        "ALTER_CONFIGS",
        "IDEMPOTENT_WRITE",
        "CREATE_TOKENS",
        "DESCRIBE_TOKENS",
    ]
    permission: Literal["ALLOW", "DENY"] = "ALLOW"

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "resource_type": "TOPIC",
                    "resource_name": "orders",
                    "principal": "User:alice",
                    "operation": "READ",
                }
            ]
        },
    )

    @classmethod
    def of(cls, acl: AclBinding) -> Acl:
        """Return an ACL of the SDK, whatever a newer broker has in it."""
        return cls.model_construct(
            resource_type=acl.resource_type.name,
            resource_name=acl.resource_name,
            pattern_type=acl.pattern_type.name,
            principal=acl.principal,
            host=acl.host,
            operation=acl.operation.name,
            permission=acl.permission.name,
        )

    def binding(self) -> AclBinding:
        """Return the ACL of the SDK."""
        return AclBinding(
            ResourceType[self.resource_type],
            self.resource_name,
            self.principal,
            AclOperation[self.operation],
            PermissionType[self.permission],
            self.host,
            PatternType[self.pattern_type],
        )


class User(Model):
    """A user of SCRAM, and the iterations of each mechanism."""

    name: str
    mechanisms: dict[str, int]


class Password(Model):
    """A new user, or a new password of one."""

    password: Annotated[str, Field(min_length=1, max_length=1000)]
    mechanisms: Annotated[
        list[Literal["SCRAM-SHA-256", "SCRAM-SHA-512"]], Field(min_length=1, max_length=2)
    ] = ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    iterations: Annotated[int, Field(ge=4096, le=16384)] = 8192

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"password": "correct horse"}]}
    )


_DEFAULT = "<default>"


class Entity(Model):
    """What has quotas; `<default>` is the entity without quotas of its own."""

    user: Name | None = None
    client_id: Name | None = None
    ip: Name | None = None

    @classmethod
    def of(cls, entity: QuotaEntity) -> Entity:
        """Return an entity of the SDK."""
        user, client_id, ip = (
            None if part is None else str(part)
            for part in (entity.user, entity.client_id, entity.ip)
        )
        return cls.model_construct(user=user, client_id=client_id, ip=ip)

    def entity(self) -> QuotaEntity:
        """Return the entity of the SDK."""
        parts = (
            QuotaName.DEFAULT if name == _DEFAULT else name
            for name in (self.user, self.client_id, self.ip)
        )
        return QuotaEntity(*parts)


class Quota(Model):
    """The quotas of an entity, by Kafka's names."""

    entity: Entity
    quotas: dict[str, float]


class QuotaChanges(Model):
    """Quotas to set, and to remove."""

    entity: Entity
    set: dict[
        Annotated[str, Field(min_length=1, max_length=249)],
        Annotated[float, Field(ge=0, allow_inf_nan=False)],
    ] = {}
    unset: list[Annotated[str, Field(min_length=1, max_length=249)]] = []

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"entity": {"client_id": "batch"}, "set": {"producer_byte_rate": 1_000_000}}
            ]
        },
    )


def entries_of(configs: Iterable[ConfigEntry]) -> list[Config]:
    """Return configs by name, overridden ones first."""
    return [Config.of(one) for one in sorted(configs, key=lambda one: (one.is_default, one.name))]
