"""Generate requests from the message schemas.

`Generator` walks the fields of a request and fills each from the domain of its name: mostly values
that exist in the sequence's world, and sometimes boundary values, unknown names, nulls and
duplicates. A field without a domain gets a boundary value of its type.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from differential.world import DAMAGES, TIME_MS, BatchSpec, Ref, World
from ottla.protocol import registry
from ottla.protocol.registry import Api
from ottla.protocol.schema import Array, Bool, Bytes, Field, Message, String, Struct, Uuid

_LOG = (
    *(registry.PRODUCE,) * 5,
    *(registry.FETCH,) * 4,
    *(registry.LIST_OFFSETS,) * 3,
    *(registry.DELETE_RECORDS,) * 2,
    registry.INIT_PRODUCER_ID,
    registry.OFFSET_FOR_LEADER_EPOCH,
    registry.DESCRIBE_PRODUCERS,
)
_GROUPS = (
    *(registry.JOIN_GROUP,) * 5,
    *(registry.SYNC_GROUP,) * 3,
    *(registry.HEARTBEAT,) * 2,
    *(registry.OFFSET_COMMIT,) * 3,
    *(registry.OFFSET_FETCH,) * 3,
    *(registry.LEAVE_GROUP,) * 2,
    registry.DESCRIBE_GROUPS,
    registry.LIST_GROUPS,
    registry.DELETE_GROUPS,
    registry.OFFSET_DELETE,
    registry.FIND_COORDINATOR,
)
_CONSUMER_GROUPS = (
    *(registry.CONSUMER_GROUP_HEARTBEAT,) * 12,
    *(registry.CONSUMER_GROUP_DESCRIBE,) * 2,
    *(registry.OFFSET_COMMIT,) * 2,
    *(registry.OFFSET_FETCH,) * 2,
    registry.DESCRIBE_GROUPS,
    registry.LIST_GROUPS,
    registry.DELETE_GROUPS,
    registry.OFFSET_DELETE,
)
_ADMIN = (
    *(registry.CREATE_TOPICS,) * 3,
    *(registry.DELETE_TOPICS,) * 2,
    *(registry.CREATE_PARTITIONS,) * 2,
    *(registry.METADATA,) * 4,
    *(registry.INCREMENTAL_ALTER_CONFIGS,) * 3,
    *(registry.ALTER_CONFIGS,) * 2,
    *(registry.DESCRIBE_CONFIGS,) * 3,
    *(registry.DESCRIBE_TOPIC_PARTITIONS,) * 2,
    registry.DESCRIBE_CLUSTER,
    registry.DESCRIBE_LOG_DIRS,
    registry.PRODUCE,
    registry.FETCH,
    registry.LIST_OFFSETS,
    registry.DELETE_RECORDS,
    registry.API_VERSIONS,
)
_TRANSACTIONS = (
    *(registry.INIT_PRODUCER_ID,) * 4,
    *(registry.ADD_PARTITIONS_TO_TXN,) * 3,
    *(registry.PRODUCE,) * 4,
    *(registry.ADD_OFFSETS_TO_TXN,) * 2,
    *(registry.TXN_OFFSET_COMMIT,) * 3,
    *(registry.END_TXN,) * 4,
    *(registry.FETCH,) * 2,
    *(registry.LIST_OFFSETS,) * 2,
    *(registry.DESCRIBE_TRANSACTIONS,) * 2,
    registry.LIST_TRANSACTIONS,
    registry.OFFSET_FETCH,
    registry.DESCRIBE_PRODUCERS,
    registry.FIND_COORDINATOR,
)
THEMES: Sequence[Sequence[Api]] = (
    *(_LOG, _GROUPS, _ADMIN, _TRANSACTIONS),
    (*_LOG, *_GROUPS, *_ADMIN, *_TRANSACTIONS),
    _CONSUMER_GROUPS,
)

#: Requests after which Apache Kafka's brokers lag behind its controller: sent alone.
CHANGES_METADATA = frozenset(
    api.key
    for api in (
        registry.CREATE_TOPICS,
        registry.DELETE_TOPICS,
        registry.CREATE_PARTITIONS,
        registry.ALTER_CONFIGS,
        registry.INCREMENTAL_ALTER_CONFIGS,
        registry.METADATA,
    )
)
#: Requests after which a transaction may be on its way to another state: sent alone.
CHANGES_TRANSACTIONS = frozenset(
    api.key
    for api in (
        registry.INIT_PRODUCER_ID,
        registry.ADD_PARTITIONS_TO_TXN,
        registry.ADD_OFFSETS_TO_TXN,
        registry.TXN_OFFSET_COMMIT,
        registry.END_TXN,
    )
)
#: Requests that may wait for those of other connections: sent alone.
MAY_PARK = frozenset((registry.JOIN_GROUP.key, registry.SYNC_GROUP.key))


class Call(NamedTuple):
    """A request in a version, or a frame that is damaged as `damage` says."""

    request: Any
    version: int
    damage: str = ""

    def __str__(self) -> str:
        name = type(self.request).__name__.removesuffix("Request")
        fields = repr(self.request).partition("(")[2]
        fields = re.sub(r"x{50,}", lambda run: f"x*{len(run[0])}", fields)
        damage = f" [{self.damage}]" if self.damage else ""
        return f"{name} v{self.version}{damage} ({fields}"


class Step(NamedTuple):
    """Requests that are sent in one segment over one of the connections."""

    connection: int
    calls: Sequence[Call]


def generate(seed: int, prefix: str) -> list[Step]:
    """Return the sequence of a seed: 5 to 20 requests, on one to three connections."""
    rng = random.Random(seed)
    apis, connections = rng.choice(THEMES), rng.randint(1, 3)
    generator = Generator(
        World(prefix, rng),
        rng,
        has_transactions=apis is THEMES[3],
        has_consumer_protocol=apis is _CONSUMER_GROUPS,
    )
    steps: list[Step] = []
    remaining = rng.randint(5, 20)
    while remaining > 0:
        call = generator.call(rng.choice(apis))
        calls = [call]
        while _may_share(call) and rng.random() < 0.2:
            call = generator.call(rng.choice(apis))
            if not _may_share(call):
                break
            calls.append(call)
        steps.append(Step(rng.randrange(connections), calls))
        remaining -= len(calls)
    return steps


def _may_share(call: Call) -> bool:
    key = call.request.api.key
    alone = CHANGES_METADATA | CHANGES_TRANSACTIONS | MAY_PARK
    return key not in alone and not call.damage


#: The ids that members of the consumer protocol choose, and the first OffsetFetch with them.
_MEMBERS = ("m-x", "m-x", "m-x", "m-y", "m-y", "m-z")
_FIRST_FETCH_WITH_MEMBERS = 9
_COMMIT_GENERATION = "generation_id_or_member_epoch"
_INT32 = (0, 1, -1, -2, 2**31 - 1, -(2**31))
_INT64 = (0, 1, -1, -2, 2**63 - 1, -(2**63))
CONFIGS: dict[str, Sequence[str]] = {
    "retention.ms": ("-1", "604800000", "-2", "x", ""),
    "retention.bytes": ("-1", "100000", "-2"),
    "cleanup.policy": ("delete", "compact", "compact,delete", "delete,compact", "none", ""),
    "segment.bytes": ("1048576", "14", "1", "-1", "99999999999"),
    "max.message.bytes": ("1000", "1000000", "-1", "0"),
    "compression.type": ("producer", "gzip", "zstd", "uncompressed", "rar"),
    "message.timestamp.type": ("CreateTime", "LogAppendTime", "createtime"),
    "min.insync.replicas": ("1", "2", "0"),
    "min.cleanable.dirty.ratio": ("0.5", "0", "1.1", "nan"),
    "no.such.config": ("1",),
    "": ("1",),
}


class Generator:
    """Fills requests, field by field."""

    def __init__(
        self,
        world: World,
        rng: random.Random,
        *,
        has_transactions: bool = False,
        has_consumer_protocol: bool = False,
    ) -> None:
        self._world = world
        self._rng = rng
        #: Whether most producers are transactional, and consumers read what is committed.
        self._has_transactions = has_transactions
        #: Whether members use the consumer protocol.
        self._has_consumer_protocol = has_consumer_protocol
        self._config = ""
        self._domains: dict[str, Callable[[], Any]] = {
            "topic": world.topic,
            "topic_name": world.topic,
            "topic_names": world.topic,
            "topic_id": world.topic_id,
            "partition": world.partition,
            "index": world.partition,
            "partition_index": world.partition,
            "partition_indexes": world.partition,
            "partitions": world.partition,
            "group_id": world.group,
            "groups": world.group,
            "groups_names": world.group,
            "key": world.group,
            "coordinator_keys": world.group,
            "client_software_name": self._one_of("ottla", "a b", ""),
            "client_software_version": self._one_of("1.0", "-", ""),
            "key_type": self._mostly(0, 1, 2, 3, -1),
            "group_ids": world.group,
            "subscribed_topic_names": world.topic,
            "instance_id": self._mostly(None, "i", ""),
            "group_instance_id": self._mostly(None, "i", ""),
            "reason": self._one_of(None, "why"),
            "member_epoch": self._mostly(-1, 0, 5),
            "timeout_ms": self._mostly(5000, 30_000),
            "acks": self._mostly(-1, 1, 0, 2, -2),
            "v3_and_below_transactional_id": world.transactional_id,
            "transactional_ids": world.transactional_id,
            "state_filters": self._one_of("Ongoing", "Empty", "CompleteCommit", "nonsense"),
            "producer_id_filters": self._one_of(Ref("producer", f"{world.prefix}-x"), 999_999),
            "duration_filter": self._mostly(-1, 0, 3_600_000),
            "transaction_timeout_ms": self._mostly(60_000, 0, -1),
            "producer_id": self._mostly(-1, 0, 999_999),
            "producer_epoch": self._mostly(-1, 0, 5),
            "replica_id": self._mostly(-1, -2),
            "max_wait_ms": self._mostly(0, 1, 20, -1),
            "min_bytes": self._mostly(1, 0, -1, 2**31 - 1),
            "max_bytes": self._mostly(1_000_000, 0, 1, 150, -1, 2**31 - 1),
            "partition_max_bytes": self._mostly(1_000_000, 0, 1, 100, -1),
            "isolation_level": self._mostly(0, 1, 2, weight=0.4 if has_transactions else 0.9),
            "session_id": self._mostly(0, Ref("session", "last"), 12345, weight=0.5),
            "session_epoch": self._one_of(-1, -1, -1, 0, 0, 1, 1, 2, 3, -2),
            "fetch_offset": self._one_of(0, 0, 0, 1, 2, 3, 5, -1, 1000, 2**63 - 1),
            "log_start_offset": self._mostly(-1, 0),
            "current_leader_epoch": self._mostly(-1, 0, 1, -2),
            "leader_epoch": self._one_of(0, 0, 0, 1, -1, -2, 100),
            "last_fetched_epoch": self._mostly(-1, 0, 1),
            "rack_id": self._one_of("", "r"),
            "cluster_id": self._mostly(None),
            "timestamp": self._one_of(
                *(-1, -1, -2, -2, -3, -4, -5, -6, -7, 0, 1),
                *(TIME_MS, TIME_MS + 1, TIME_MS + 2, TIME_MS + 10, 2**63 - 1, -(2**63)),
            ),
            "offset": self._one_of(0, 1, 1, 2, 3, -1, -2, 1000),
            "committed_offset": self._one_of(0, 1, 5, 100, -1, -2, 2**63 - 1),
            "committed_leader_epoch": self._mostly(-1, 0, 7, -2),
            "committed_metadata": self._one_of("", "m", None, "x" * 4096, "x" * 4097),
            "retention_time_ms": self._mostly(-1, 100_000_000),
            # Longer than a sequence: which of two timeouts comes first is left to chance otherwise.
            "session_timeout_ms": self._mostly(60_000, 30_000, 0, 5_999, 2**31 - 1),
            # Kafka takes -1 literally, and removes the member at once.
            "rebalance_timeout_ms": self._mostly(10_000, 30_000),
            "protocol_type": self._mostly("consumer", "connect", ""),
            "protocol_name": self._mostly("range", "roundrobin", None),
            "states_filter": self._one_of("Stable", "Empty", "stable", "Dead", "nonsense"),
            "types_filter": self._one_of("classic", "consumer", "Classic", "nonsense"),
            "num_partitions": self._mostly(1, 2, 3, -1, 0, -2),
            "replication_factor": self._mostly(1, -1, 0, 2, -2),
            "count": self._one_of(2, 3, 4, 4, 5, 1, 0, -1),
            "broker_ids": self._mostly(0, 1, -1),
            "resource_type": self._mostly(2, 2, 4, 0, 3, 99, weight=0.85),
            "configuration_keys": self._config_name,
            "config_operation": self._mostly(0, 1, 2, 3, 4, weight=0.6),
            "response_partition_limit": self._mostly(2000, 1, 2, 0, -1),
            "endpoint_type": self._mostly(1, 0, 3),
            "metadata": lambda: b"\0\1\0\0\0\0\xff\xff\xff\xff",
            "assignment": self._one_of(b"", b"assigned"),
            "server_assignor": self._mostly(None, "uniform", "range", "nope", weight=0.7),
            "validate_only": self._mostly(False, True),
            "require_stable": self._one_of(False, True),
        }

    def call(self, api: Api) -> Call:
        # Later versions of AddPartitionsToTxn are for brokers only.
        version = self._rng.choice(range(api.versions.first, api.advertised.last + 1))
        request = self._message(api.request, version)
        damage = ""
        if self._rng.random() < 0.01:
            damage = self._rng.choice(("truncated", "trailing bytes", "version", "api key"))
        return Call(request, version, damage)

    def _transactional_id(self) -> str | None:
        weight = 0.85 if self._has_transactions else 0.03
        return self._world.transactional_id() if self._rng.random() < weight else None

    def _one_of(self, *values: Any) -> Callable[[], Any]:
        return lambda: self._rng.choice(values)

    def _mostly(self, usual: Any, *others: Any, weight: float = 0.9) -> Callable[[], Any]:
        values = others or (usual,)
        return lambda: usual if self._rng.random() < weight else self._rng.choice(values)

    def _config_name(self) -> str:
        self._config = self._rng.choice(list(CONFIGS))
        return self._config

    def _config_value(self) -> str | None:
        values = CONFIGS[self._config]
        return None if self._rng.random() < 0.05 else self._rng.choice(values)

    def _message(self, kind: type[Message], version: int) -> Any:
        fields = {
            name: self._field(kind, name, spec, version)
            for name, spec in kind.fields.items()
            if spec.exists_in(version)
        }
        message: Any = kind(**fields)
        return self._adjusted(message, version)

    def _adjusted(self, message: Any, version: int) -> Any:
        """Make fields agree that have to, for requests to get beyond the first check."""
        fields = {name: getattr(message, name) for name in message.fields}
        name = type(message).__name__
        # Kafka lets clients delete its offsets topic, and with it the groups of all sequences.
        if name == "DeleteTopicsRequest":
            fields["topic_names"] = [n for n in message.topic_names if not n.startswith("__")]
        elif name == "DeleteTopicState":
            if (message.name or "").startswith("__"):
                fields["name"] = "."
            if self._rng.random() < 0.9:
                by_name = self._rng.random() < 0.5
                fields["topic_id" if by_name else "name"] = message.fields[
                    "topic_id" if by_name else "name"
                ].default
        elif name == "MetadataRequestTopic":
            if self._rng.random() < 0.9 and message.name is not None:
                fields["topic_id"] = message.fields["topic_id"].default
        elif name in ("JoinGroupRequest", "SyncGroupRequest", "HeartbeatRequest"):
            fields["member_id"] = self._member_of(message.group_id)
            if name == "JoinGroupRequest":
                # Kafka does not respond to a member that lists a protocol twice.
                fields["protocols"] = list({p.name: p for p in message.protocols}.values())
        elif name == "ProduceRequest":
            fields |= self._transactional(message)
        elif name in ("OffsetCommitRequest", "TxnOffsetCommitRequest"):
            generation = "generation_id" if "generation_id" in fields else _COMMIT_GENERATION
            if self._rng.random() < 0.5:
                fields |= {"member_id": "", generation: -1}
            else:
                fields["member_id"] = self._member_of(message.group_id)
            if self._has_consumer_protocol and self._rng.random() < 0.8:
                fields |= self._membership(message.group_id, _COMMIT_GENERATION)
        elif name == "OffsetFetchRequestGroup" and version >= _FIRST_FETCH_WITH_MEMBERS:
            fields |= {"member_id": None, "member_epoch": -1}
            if self._has_consumer_protocol and self._rng.random() < 0.5:
                fields |= self._membership(message.group_id, "member_epoch")
        elif name == "ConsumerGroupHeartbeatRequest":
            fields |= self._heartbeat(message.group_id)
        elif name == "CreatableTopic" and message.assignments and self._rng.random() < 0.8:
            fields |= {"num_partitions": -1, "replication_factor": -1}
        elif name in ("AlterConfigsResource", "DescribeConfigsResource"):
            fields["resource_name"] = (
                self._world.topic()
                if message.resource_type == 2
                else self._rng.choice(("99", "abc", "-1"))
            )
            # Kafka lets clients alter its internal topics, which all sequences use.
            if name == "AlterConfigsResource" and fields["resource_name"].startswith("__"):
                fields["resource_name"] = "."
        self._set_producer(fields)
        if "generation_id" in fields or name == "OffsetCommitRequest":
            field = "generation_id" if "generation_id" in fields else _COMMIT_GENERATION
            if fields[field] == 1:
                fields[field] = Ref("generation", message.group_id)
        specs = message.fields
        return type(message)(**{n: v for n, v in fields.items() if specs[n].exists_in(version)})

    def _membership(self, group: str, epoch: str) -> dict[str, Any]:
        """Return the identity of a member of the consumer protocol."""
        member = self._rng.choice(_MEMBERS)
        known = Ref("member epoch", f"{group} {member}")
        return {"member_id": member, epoch: self._mostly(known, 0, -1, 1000)()}

    def _heartbeat(self, group: str) -> dict[str, Any]:
        """Return the fields of a heartbeat: mostly of a member that joins, stays or leaves."""
        rng = self._rng
        fields = self._membership(group, "member_epoch")
        owned = Ref("owned", f"{group} {fields['member_id']}")
        chance = rng.random()
        if chance < 0.35:
            names = rng.choice((["-a"], ["-b"], ["-b"], ["-a", "-b"], [], ["-c"], None))
            return fields | {
                "member_epoch": 0,
                "rebalance_timeout_ms": self._mostly(60_000, -1)(),
                "subscribed_topic_names": names and [self._world.prefix + one for one in names],
                "subscribed_topic_regex": self._mostly(None, "", "(", "a(?=b)")(),
                "topic_partitions": self._mostly([], None, owned, weight=0.95)(),
                "rack_id": self._mostly(None, "r", "")(),
            }
        quiet = {
            "rebalance_timeout_ms": -1,
            "subscribed_topic_names": None,
            "subscribed_topic_regex": None,
            "server_assignor": None,
            "topic_partitions": None,
            "rack_id": None,
        }
        if chance < 0.5:
            return fields | quiet | {"member_epoch": rng.choice((-1, -1, -1, -2, -3))}
        if chance < 0.95:
            return fields | quiet | {"topic_partitions": rng.choice((owned, owned, None))}
        # Everything, as after an error; maybe with another subscription.
        return fields | {
            "rebalance_timeout_ms": 60_000,
            "subscribed_topic_names": [self._world.prefix + rng.choice(("-a", "-b"))],
            "subscribed_topic_regex": None,
            "topic_partitions": owned,
            "rack_id": None,
        }

    def _set_producer(self, fields: dict[str, Any]) -> None:
        """Have a transactional request name the producer that its transactional id has."""
        for prefix in ("", "v3_and_below_"):
            transactional_id = fields.get(f"{prefix}transactional_id")
            # InitProducerId mostly names none.
            weight = 0.3 if "transaction_timeout_ms" in fields else 0.93
            if (
                transactional_id is not None
                and f"{prefix}producer_id" in fields
                and self._rng.random() < weight
            ):
                fields[f"{prefix}producer_id"] = Ref("producer", transactional_id)
                fields[f"{prefix}producer_epoch"] = Ref("epoch", transactional_id)

    def _transactional(self, message: Any) -> dict[str, Any]:
        """Return the topics of a Produce with the batches of its transactional producer."""
        transactional_id = message.transactional_id
        if transactional_id is None or self._rng.random() < 0.1:
            return {}
        for topic in message.topic_data:
            for partition in topic.partition_data:
                key = (transactional_id, str(topic.name or topic.topic_id), partition.index)
                sequence = self._world.next_sequence.get(key, 0)
                self._world.next_sequence[key] = sequence + partition.records.count
                partition.records = partition.records._replace(
                    producer=Ref("producer", transactional_id),
                    epoch=Ref("epoch", transactional_id),
                    sequence=sequence if self._rng.random() < 0.9 else 0,
                    transactional=self._rng.random() < 0.95,
                )
        return {}

    def _member_of(self, group: str) -> Any:
        if self._rng.random() < 0.92:
            return Ref("member", f"{group} {self._rng.choice('xxxyy')}")
        return self._rng.choice(("", "no-such-member"))

    def _field(self, kind: type[Message], name: str, spec: Field, version: int) -> Any:
        if spec.nullable_in(version) and self._rng.random() < 0.06 and name != "records":
            return None
        if isinstance(spec.type, Array):
            return self._array(kind, name, spec.type, version)
        if isinstance(spec.type, Struct):
            return self._message(spec.type.message, version)
        return self._primitive(kind.__name__, name, spec)

    def _array(self, kind: type[Message], name: str, array: Array[Any], version: int) -> list[Any]:
        count = self._rng.choice((0, 1, 1, 1, 1, 1, 1, 2, 2, 3))
        rarely = ("assignments", "forgotten_topics_data", "states_filter", "types_filter")
        if name in rarely and kind.__name__ != "SyncGroupRequest" and self._rng.random() < 0.8:
            count = 0
        if name == "configs" and kind.__name__ == "CreatableTopic" and self._rng.random() < 0.5:
            count = 0
        if name == "protocols" and self._rng.random() < 0.9:
            count = max(count, 1)
        elements = [self._element(name, array, version) for _ in range(count)]
        if elements and self._rng.random() < 0.03:
            elements.append(elements[0])
        return elements

    def _element(self, name: str, array: Array[Any], version: int) -> Any:
        if isinstance(array.element, Struct):
            return self._message(array.element.message, version)
        return self._domains[name]()

    def _primitive(self, kind: str, name: str, spec: Field) -> Any:
        if name == "records":
            return self._batch()
        if name == "name":
            if kind == "JoinGroupRequestProtocol":
                return self._rng.choice(("range", "range", "roundrobin", ""))
            if "Config" in kind:
                return self._config_name()
            if kind == "CreatableTopic" and self._rng.random() < 0.6:
                return self._rng.choice(self._world.new_topics)
            return self._world.topic()
        if name == "value":
            return self._config_value()
        if name == "transactional_id":
            is_optional = kind in ("InitProducerIdRequest", "ProduceRequest")
            return self._transactional_id() if is_optional else self._world.transactional_id()
        if name == "member_id":
            return self._world.member()
        if name in ("generation_id", "generation_id_or_member_epoch"):
            return self._rng.choice((1, 1, 1, 1, 1, 1, 1, 0, -1, 7))
        if name in self._domains:
            return self._domains[name]()
        if spec.type is Bool:
            return self._rng.random() < 0.5
        if spec.type is Uuid:
            return self._world.topic_id()
        if spec.type is String:
            return self._rng.choice(("", "x"))
        if spec.type is Bytes:
            return self._rng.choice((b"", b"x"))
        return self._rng.choice(_INT32[:3])

    def _batch(self) -> BatchSpec:
        rng = self._rng
        producer: dict[str, Any] = {}
        if rng.random() < 0.3:
            slot = rng.choice("01")
            sequence = self._world.next_sequence.setdefault((slot, "", 0), 0)
            producer = {
                "producer": Ref("producer", slot),
                "epoch": rng.choice((0, 0, 0, 0, 0, 1, -1)),
                "sequence": rng.choice((sequence, sequence, 0, sequence + 1)),
            }
        count = rng.choice((1, 1, 1, 2, 3))
        if producer:
            self._world.next_sequence[producer["producer"].key, "", 0] = (
                producer["sequence"] + count
            )
        return BatchSpec(
            count=count,
            key=None if rng.random() < 0.2 else b"k",
            value_bytes=rng.choice((0, 10, 10, 10, 2000)),
            time_ms=rng.choice((TIME_MS, TIME_MS, TIME_MS + 5, 0, -1, 2**50)),
            compression=rng.choice((0, 0, 0, 0, 1, 2, 3, 4)),
            damage=rng.choice(DAMAGES) if rng.random() < 0.08 else "",
            **producer,
        )
