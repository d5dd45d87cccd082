"""The metadata image: the topics, brokers, configs and producer ids of the cluster.

The image is replayed from the metadata log. A record holds the complete state of its key, so that
only the last record of each key counts, and compaction keeps the log short:

    topic/<name>         {"id": …, "replicas": [[0], …], "configs": {…}}     tombstone: removed
    partition/<topic id>/<n>   the state of a replicated partition: see partition_state.py
    deleted-topic/<id>   {"name": …}           the topic was deleted, its data may be too
    broker/<id>          {"configs": {…}}      dynamic configs of the broker; id -1: of all
    group/<id>           {"configs": {…}}      configs of a group                  tombstone: none
    registration/<id>    {"incarnation": …, "epoch": …, "leader_epoch": …, "directory": …}
    epoch/<n>            {"id": …, "end": …}   a controller epoch: one start of a controller
    producer-ids         {"next": …}           all ids below it may be allocated
    acl/…                {}                    an ACL: see acls.py
    quota/…              {…}                   the quotas of an entity: see quotas.py
    scram/<n>/<user>     {"salt": …, …}        the credential of a user: see scram_credentials.py
    scram-secret         {"secret": …}         for the made-up salts of users that do not exist
    controller           {"next": …, "epoch": …, "id": …, "directory": …}     on a follower only

With a metadata store, its entries are the records, and the log is a copy of them. Registrations
vanish with their leases, and say more; there are no controller epochs of this log:

    registration/<id>    {…, "listeners": {…}, "rack": …, "state": …, "lossy": …}
    active-controller    {"broker": …, "epoch": …}
    store                {"id": …, "revision": …, "directory": …}     how far the log is a copy
    mark                 {"registrations": …}      see store_registration.py; not in the store
    restored             {"generation": …, "copied": […]}    the store was made from copies of it

`replay` is the only method that changes the image: with each record that was appended, and with
all records of the log when a broker starts.

**Identity.** Two metadata logs of one cluster id need not be the same log: a controller may have
been restored from an old copy, or may have started with an empty directory. Each start of a
controller is an epoch, with a number that rises and a random id. A follower remembers the epoch in
which it last fetched, and how far (`MetadataPosition`). A controller's log contains what the
follower has if it has that epoch, with the same id, up to that offset or further. The last
`MAX_EPOCHS` are kept.

**Deletion.** The data of a topic is deleted only if the image has the deletion of its id, never
because the topic is missing. The last `MAX_DELETED_TOPICS` are kept: a broker that was away for
longer sets the data aside.

**Restoration.** A metadata store that was lost is made anew from the copies of the brokers: see
`restoration.py`. Each restoration is a generation, and has what it was copied from, so that a
broker knows whether the new store has everything that the broker knew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from uuid import UUID

from ottla.protocol.scram import ScramCredential, ScramMechanism

from .acls import Acls
from .partition_state import PartitionState
from .quotas import ClientQuotas
from .scram_credentials import credential_record, parse_credential, parse_secret, secret_record

_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
#: Characters of an invalid topic name that an error message quotes.
_MAX_QUOTED_NAME = 60

#: Consumer groups and their committed offsets.
OFFSETS_TOPIC = "__consumer_offsets"
#: Transactional ids and the state of their transactions.
TRANSACTIONS_TOPIC = "__transaction_state"
#: Topics that clients may read, but only the broker writes.
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})
#: The name of the metadata log. It is not a topic.
METADATA_TOPIC = "__cluster_metadata"
#: Its topic id, the same in all clusters, as in Kafka.
METADATA_TOPIC_ID = UUID(int=1)

#: The key and the value of a record; a value of None is a tombstone.
KeyValue = tuple[bytes, bytes | None]

#: Deleted topics that the image remembers.
MAX_DELETED_TOPICS = 10_000
#: The broker id of dynamic configs that all brokers have.
ALL_BROKERS = -1
#: Controller epochs that the image remembers.
MAX_EPOCHS = 1000
#: Restorations that the metadata store remembers.
MAX_RESTORATIONS = 100
#: The id of epochs that have none: those of logs written before there were epochs.
NO_ID = UUID(int=0)
_POSITION_KEY = b"controller"
_STORE_POSITION_KEY = b"store"
_MARK_KEY = b"mark"
#: The key of the restorations of a metadata store.
RESTORED_KEY = b"restored"
#: The key of the metadata store that the controller holds with its lease.
CONTROLLER_KEY = b"active-controller"
#: Kinds of records that a metadata store has, too.
_STORE_KINDS = frozenset(
    {
        "topic",
        "partition",
        "deleted-topic",
        "broker",
        "group",
        "registration",
        "producer-ids",
        "acl",
        "quota",
        "scram",
        "scram-secret",
        "restored",
        CONTROLLER_KEY.decode(),
    }
)


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class InvalidTopicError(ValueError):
    """An invalid name for a new topic."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic. `replicas` has the broker ids of each partition, the preferred leader first.

    A partition without a state has one replica, so that its leader never changes. Its leader epoch
    is that of the leader's registration, and rises with each start of the leader. The replicas of a
    partition with a state are those of the state.
    """

    name: str
    id: UUID
    replicas: tuple[tuple[int, ...], ...]
    configs: Mapping[str, str]

    @property
    def is_internal(self) -> bool:
        """Whether only the broker writes to this topic."""
        return self.name in INTERNAL_TOPICS

    def with_partitions(self, replicas: tuple[tuple[int, ...], ...]) -> Topic:
        """Return the topic with additional partitions."""
        return replace(self, replicas=self.replicas + replicas)

    def with_configs(self, configs: Mapping[str, str]) -> Topic:
        """Return the topic with other configs."""
        return replace(self, configs=configs)


class BrokerRegistration(NamedTuple):
    """The latest start of a broker."""

    #: The process; a random id.
    incarnation: UUID
    #: The metadata offset of the registration.
    broker_epoch: int
    #: The leader epoch of all partitions that the broker leads.
    leader_epoch: int
    #: The data directory of a follower; another one means that all logs of this one are lost.
    directory: UUID | None = None
    #: The advertised address of each listener, as host:port; only with a metadata store.
    listeners: Mapping[str, str] = {}
    rack: str | None = None
    state: str = "up"
    #: Whether the broker may have lost records with its last restart.
    is_lossy: bool = False
    #: If it is lossy: the revision of the metadata store as of which it has all records of topics
    #: with durability=fsync; -1 if it may have lost these, too.
    fsynced_revision: int = -1
    #: Whether these include topics without a durability of their own.
    is_fsynced_by_default: bool = False


class ActiveController(NamedTuple):
    """The broker that holds the controller key of the metadata store."""

    broker_id: int
    epoch: int


class StorePosition(NamedTuple):
    """Of which metadata store the log is a copy, and up to which revision."""

    store_id: str
    revision: int


class Restoration(NamedTuple):
    """How often the metadata store was restored, and from what: the latest restoration is last."""

    generation: int = 0
    copied: tuple[StorePosition, ...] = ()

    def contains(self, generation: int, position: StorePosition) -> bool:
        """Whether a store with these restorations has all that a copy of an earlier one had."""
        index = generation - self.generation
        if not -len(self.copied) <= index < 0:
            return False
        end = self.copied[index]
        return position.store_id == end.store_id and position.revision <= end.revision

    def next(self, position: StorePosition) -> Restoration:
        """Return the restorations after one from a copy."""
        return Restoration(self.generation + 1, (*self.copied, position)[-MAX_RESTORATIONS:])


class ControllerEpoch(NamedTuple):
    """The changes between two starts of a controller; the current one has no end offset."""

    id: UUID
    end_offset: int | None = None


class MetadataPosition(NamedTuple):
    """How far a broker has replayed the metadata log, and in which controller epoch."""

    epoch: int
    epoch_id: UUID
    offset: int


class MetadataImage:
    """The metadata of the cluster, as of the last record that was replayed."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.topics_by_id: dict[UUID, Topic] = {}
        #: The states of replicated partitions, by topic id and index.
        self.partition_states: dict[UUID, dict[int, PartitionState]] = {}
        #: Names of deleted topics by id, oldest first.
        self.deleted_topics: dict[UUID, str] = {}
        self.registrations: dict[int, BrokerRegistration] = {}
        #: Controller epochs by number.
        self.epochs: dict[int, ControllerEpoch] = {}
        #: The dynamic configs of each broker, and those of all brokers under ALL_BROKERS.
        self.broker_configs: dict[int, Mapping[str, str]] = {}
        #: The configs that groups have of their own, by group id.
        self.group_configs: dict[str, Mapping[str, str]] = {}
        #: The first producer id that is not allocated. 0 is never allocated: some clients take it
        #: for "none".
        self.next_producer_id = 1
        #: The credentials of users by name and mechanism.
        self.scram_credentials: dict[tuple[str, ScramMechanism], ScramCredential] = {}
        self.scram_secret: bytes | None = None
        #: On a follower: the end of its copy of the controller's log.
        self.position: MetadataPosition | None = None
        #: On a follower: the id of the data directory.
        self.directory: UUID | None = None
        #: With a metadata store: the controller, and the end of the copy.
        self.active_controller: ActiveController | None = None
        self.store_position: StorePosition | None = None
        self.restoration = Restoration()
        #: The number of registrations that this data directory has seen.
        self.directory_mark = 0
        #: Partitions of all topics.
        self.partition_count = 0
        self.acls = Acls()
        self.quotas = ClientQuotas()
        #: Rises with each change of a topic; not durable.
        self.topics_version = 0
        # Topic names by collision key.
        self._names_by_key: dict[str, str] = {}

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Apply a record. Kinds of newer versions are ignored."""
        kind, _, name = key.decode().partition("/")
        content = None if value is None else json.loads(value)
        if kind == "topic":
            self._replay_topic(name, content)
        elif kind == "partition":
            self._replay_partition_state(name, content)
        elif kind == "deleted-topic":
            self.deleted_topics.pop(UUID(name), None)
            if content is not None:
                self.deleted_topics[UUID(name)] = content["name"]
        elif kind == "registration":
            self.registrations.pop(int(name), None)
            if content is not None:
                self.registrations[int(name)] = _parse_registration(content)
        elif kind == "epoch":
            self.epochs.pop(int(name), None)
            if content is not None:
                self.epochs[int(name)] = ControllerEpoch(UUID(content["id"]), content["end"])
        elif kind == "acl":
            self.acls.replay(name, content)
        elif kind == "quota":
            self.quotas.replay(name, content)
        elif kind == "broker":
            self.broker_configs[int(name)] = (content or {}).get("configs", {})
        elif kind == "group":
            self.group_configs.pop(name, None)
            if content is not None:
                self.group_configs[name] = content["configs"]
        elif kind == "producer-ids" and content is not None:
            self.next_producer_id = max(self.next_producer_id, content["next"])
        elif kind == "scram":
            self._replay_credential(name, content)
        elif kind == "scram-secret" and content is not None:
            self.scram_secret = parse_secret(content)
        elif kind == "controller":
            self._replay_position(content)
        elif key == _MARK_KEY and content is not None:
            self.directory_mark = content["registrations"]
        elif key == RESTORED_KEY:
            self.restoration = Restoration() if content is None else parse_restoration(content)
        elif key == CONTROLLER_KEY:
            self.active_controller = (
                None if content is None else ActiveController(content["broker"], content["epoch"])
            )
        elif key == _STORE_POSITION_KEY and content is not None:
            self.store_position = StorePosition(content["id"], content["revision"])
            self.directory = UUID(content["directory"])

    def records(self) -> Iterator[KeyValue]:
        """Yield the records of a snapshot of the image, without the position."""
        yield from map(topic_record, self.topics.values())
        for topic_id, states in self.partition_states.items():
            for index, state in states.items():
                yield partition_record(topic_id, index, state)
        for topic_id, name in self.deleted_topics.items():
            yield deleted_topic_record(topic_id, name)
        for broker_id, configs in self.broker_configs.items():
            yield broker_record(broker_id, configs)
        for group_id, configs in self.group_configs.items():
            yield group_record(group_id, configs)
        for broker_id, registration in self.registrations.items():
            yield registration_record(broker_id, registration)
        for epoch, content in self.epochs.items():
            yield epoch_record(epoch, content)
        for (user, mechanism), credential in self.scram_credentials.items():
            yield credential_record(user, mechanism, credential)
        if self.scram_secret is not None:
            yield secret_record(self.scram_secret)
        if self.active_controller is not None:
            yield controller_record(self.active_controller)
        if self.restoration.generation:
            yield restoration_record(self.restoration)
        yield producer_ids_record(self.next_producer_id)
        yield from self.acls.records()
        yield from self.quotas.records()

    def contains(self, position: MetadataPosition, end_offset: int) -> bool:
        """Whether the log of this image, which ends at `end_offset`, has all up to a position."""
        epoch = self.epochs.get(position.epoch)
        if epoch is None or epoch.id != position.epoch_id:
            return False
        return position.offset <= (end_offset if epoch.end_offset is None else epoch.end_offset)

    def own_position(self, end_offset: int) -> MetadataPosition | None:
        """Return how far this broker has replayed; None if it knows nothing.

        A broker that was the controller has its own log up to `end_offset`.
        """
        if self.position is not None or end_offset == 0:
            return self.position
        number = max(self.epochs, default=0)
        epoch = self.epochs.get(number, ControllerEpoch(NO_ID))
        return MetadataPosition(number, epoch.id, end_offset)

    def new_epoch_records(self, epoch_id: UUID, end_offset: int) -> tuple[int, list[KeyValue]]:
        """Return the number and the records of a controller epoch that starts at `end_offset`.

        The epoch before it ends there; or, if this broker followed another controller in it, where
        its copy of that controller's log ends.
        """
        records: list[KeyValue] = []
        latest = self.own_position(end_offset)
        if latest is not None:
            records.append(
                epoch_record(latest.epoch, ControllerEpoch(latest.epoch_id, latest.offset))
            )
        if self.position is not None:
            records.append((_POSITION_KEY, None))  # From now on the end of the log is the position.
        number = max([*self.epochs, -1 if latest is None else latest.epoch]) + 1
        records.append(epoch_record(number, ControllerEpoch(epoch_id)))
        surplus = len(self.epochs) + 1 - MAX_EPOCHS
        oldest = sorted(self.epochs)[: max(surplus, 0)]
        records += [(f"epoch/{old}".encode(), None) for old in oldest]
        return number, records

    def deletion_records(self, topic: Topic) -> list[KeyValue]:
        """Return the records that delete a topic and its data, and forget the oldest deletion."""
        records = [topic_tombstone(topic.name), deleted_topic_record(topic.id, topic.name)]
        states = self.partition_states.get(topic.id, ())
        records += [(partition_key(topic.id, index), None) for index in states]
        if len(self.deleted_topics) >= MAX_DELETED_TOPICS:
            records.append((f"deleted-topic/{next(iter(self.deleted_topics))}".encode(), None))
        return records

    def dynamic_configs(self, broker_id: int) -> Mapping[str, str]:
        """Return the effective dynamic configs of a broker: its own before those of all brokers."""
        own = self.broker_configs.get(broker_id, {})
        of_all = self.broker_configs.get(ALL_BROKERS)
        return {**of_all, **own} if of_all else own

    def partition_state(self, topic: Topic, index: int) -> PartitionState | None:
        """Return the state of a replicated partition; None if its only replica leads it."""
        states = self.partition_states.get(topic.id)
        return None if states is None else states.get(index)

    def replicas_of(self, topic: Topic, index: int) -> tuple[int, ...]:
        """Return the replicas of a partition."""
        state = self.partition_state(topic, index)
        return topic.replicas[index] if state is None else state.replicas

    def leader_of(self, topic: Topic, index: int) -> int:
        """Return the leader of a partition; NO_LEADER if it has none."""
        state = self.partition_state(topic, index)
        return topic.replicas[index][0] if state is None else state.leader

    def has_partition(self, topic_name: str, index: int) -> bool:
        """Whether a partition exists."""
        topic = self.topics.get(topic_name)
        return topic is not None and 0 <= index < len(topic.replicas)

    def check_new_topic_name(self, name: str) -> None:
        """Raise InvalidTopicError if a new topic cannot have this name.

        A name becomes part of directory names, and of metric names, where '.' becomes '_'.
        """
        check_topic_name(name)
        check_topic_collision(name, self._names_by_key.get(collision_key(name), name))

    def _replay_credential(self, name: str, content: Any) -> None:
        number, _, user = name.partition("/")
        try:
            key = user, ScramMechanism(int(number))
        except ValueError:
            return  # A mechanism of a newer version.
        if content is None:
            self.scram_credentials.pop(key, None)
        else:
            self.scram_credentials[key] = parse_credential(content)

    def _replay_position(self, content: Any) -> None:
        self.position = self.directory = None
        if content is not None:
            epoch_id = UUID(content.get("id", str(NO_ID)))
            self.position = MetadataPosition(content.get("epoch", 0), epoch_id, content["next"])
            self.directory = UUID(content["directory"]) if content.get("directory") else None

    def _replay_partition_state(self, name: str, content: Any) -> None:
        topic_id, _, index = name.partition("/")
        states = self.partition_states.setdefault(UUID(topic_id), {})
        states.pop(int(index), None)
        if content is not None:
            states[int(index)] = PartitionState.from_content(content)
        if not states:
            del self.partition_states[UUID(topic_id)]

    def _replay_topic(self, name: str, content: Any) -> None:
        self.topics_version += 1
        previous = self.topics.pop(name, None)
        if previous is not None:
            del self.topics_by_id[previous.id]
            self.partition_count -= len(previous.replicas)
        if content is None:
            self._names_by_key.pop(collision_key(name), None)
            return
        topic = _parse_topic(name, content)
        self.topics[name] = self.topics_by_id[topic.id] = topic
        self.partition_count += len(topic.replicas)
        self._names_by_key[collision_key(name)] = name


def parse_partition_key(key: bytes) -> tuple[UUID, int] | None:
    """Parse the key of a partition's state; None for keys of other kinds."""
    kind, _, name = key.decode().partition("/")
    if kind != "partition":
        return None
    topic_id, _, index = name.partition("/")
    return UUID(topic_id), int(index)


def partition_key(topic_id: UUID, index: int) -> bytes:
    """Return the key of a partition's state."""
    return f"partition/{topic_id}/{index}".encode()


def partition_record(topic_id: UUID, index: int, state: PartitionState) -> KeyValue:
    """Return the record of a partition's state."""
    return partition_key(topic_id, index), state.to_json()


def parse_topic_record(record: KeyValue) -> tuple[str, Topic | None] | None:
    """Parse a topic record into its name and the topic, None for a tombstone.

    Returns None for records of other kinds.
    """
    key, value = record
    kind, _, name = key.decode().partition("/")
    if kind != "topic":
        return None
    return name, None if value is None else _parse_topic(name, json.loads(value))


def _parse_topic(name: str, content: Any) -> Topic:
    replicas = tuple(tuple(broker_ids) for broker_ids in content["replicas"])
    return Topic(name, UUID(content["id"]), replicas, content["configs"])


def _parse_registration(content: Any) -> BrokerRegistration:
    directory = content.get("directory")
    return BrokerRegistration(
        UUID(content["incarnation"]),
        content["epoch"],
        content["leader_epoch"],
        UUID(directory) if directory else None,
        content.get("listeners", {}),
        content.get("rack"),
        content.get("state", "up"),
        content.get("lossy", False),
        content.get("fsynced_revision", -1),
        content.get("fsynced_by_default", False),
    )


def store_record(key: bytes, value: bytes, create_revision: int) -> KeyValue | None:
    """Return an entry of the metadata store as a record; None if the image has no such kind.

    The epochs of brokers and of the controller are the create revisions of their keys.
    """
    kind = key.decode().partition("/")[0]
    if kind not in _STORE_KINDS:
        return None
    if kind == "registration":
        content = {**json.loads(value), "epoch": create_revision}
        broker_id = int(key.decode().partition("/")[2])
        return registration_record(broker_id, _parse_registration(content))
    if key == CONTROLLER_KEY:
        broker_id = json.loads(value)["broker"]
        return controller_record(ActiveController(broker_id, create_revision))
    return key, value


def is_store_key(key: bytes) -> bool:
    """Whether a record of the image is an entry of the metadata store."""
    return key.decode().partition("/")[0] in _STORE_KINDS


def topic_record(topic: Topic) -> KeyValue:
    """Return the record of a topic that was created or changed."""
    content = {"id": str(topic.id), "replicas": topic.replicas, "configs": dict(topic.configs)}
    return f"topic/{topic.name}".encode(), _json(content)


def topic_tombstone(name: str) -> KeyValue:
    """Return the record of a topic that no longer exists. By itself it deletes no data."""
    return f"topic/{name}".encode(), None


def deleted_topic_record(topic_id: UUID, name: str) -> KeyValue:
    """Return the record by which all brokers delete the data of a topic."""
    return f"deleted-topic/{topic_id}".encode(), _json({"name": name})


def registration_record(broker_id: int, registration: BrokerRegistration) -> KeyValue:
    """Return the record of the latest start of a broker."""
    directory = registration.directory
    content: dict[str, Any] = {
        "incarnation": str(registration.incarnation),
        "epoch": registration.broker_epoch,
        "leader_epoch": registration.leader_epoch,
        "directory": None if directory is None else str(directory),
    }
    if registration.listeners:
        content |= {
            "listeners": dict(registration.listeners),
            "rack": registration.rack,
            "state": registration.state,
            "lossy": registration.is_lossy,
        }
    if registration.fsynced_revision >= 0:
        content |= {
            "fsynced_revision": registration.fsynced_revision,
            "fsynced_by_default": registration.is_fsynced_by_default,
        }
    return f"registration/{broker_id}".encode(), _json(content)


def controller_record(controller: ActiveController) -> KeyValue:
    """Return the record of the broker that is the controller."""
    return CONTROLLER_KEY, _json({"broker": controller.broker_id, "epoch": controller.epoch})


def store_position_record(position: StorePosition, directory: UUID) -> KeyValue:
    """Return the record of how far the log is a copy of the metadata store."""
    content = {
        "id": position.store_id,
        "revision": position.revision,
        "directory": str(directory),
    }
    return _STORE_POSITION_KEY, _json(content)


def directory_mark_record(registrations: int) -> KeyValue:
    """Return the record of how many registrations a data directory has seen."""
    return _MARK_KEY, _json({"registrations": registrations})


def restoration_record(restoration: Restoration) -> KeyValue:
    """Return the record of how often the metadata store was restored, and from what."""
    copied = [{"id": one.store_id, "revision": one.revision} for one in restoration.copied]
    return RESTORED_KEY, _json({"generation": restoration.generation, "copied": copied})


def parse_restoration(content: Any) -> Restoration:
    """Return the restorations of parsed JSON."""
    copied = tuple(StorePosition(one["id"], one["revision"]) for one in content["copied"])
    return Restoration(content["generation"], copied)


def epoch_record(number: int, epoch: ControllerEpoch) -> KeyValue:
    """Return the record of a controller epoch."""
    return f"epoch/{number}".encode(), _json({"id": str(epoch.id), "end": epoch.end_offset})


def broker_record(broker_id: int, configs: Mapping[str, str]) -> KeyValue:
    """Return the record of a broker's dynamic configs."""
    return f"broker/{broker_id}".encode(), _json({"configs": dict(configs)})


def group_record(group_id: str, configs: Mapping[str, str]) -> KeyValue:
    """Return the record of a group's own configs; none are a tombstone."""
    content = _json({"configs": dict(configs)}) if configs else None
    return f"group/{group_id}".encode(), content


def producer_ids_record(next_id: int, allocated_by: UUID | None = None) -> KeyValue:
    """Return the record that allocates all producer ids below `next_id`."""
    content: dict[str, Any] = {"next": next_id}
    if allocated_by is not None:
        content["by"] = str(allocated_by)
    return b"producer-ids", _json(content)


def position_record(position: MetadataPosition, directory: UUID) -> KeyValue:
    """Return the record of how far a follower has copied the controller's log."""
    content = {
        "next": position.offset,
        "epoch": position.epoch,
        "id": str(position.epoch_id),
        "directory": str(directory),
    }
    return _POSITION_KEY, _json(content)


def check_topic_name(name: str) -> None:
    """Raise InvalidTopicError if no topic can have this name."""
    if name in (".", "..") or not _TOPIC_NAME.fullmatch(name):
        quoted = repr(name[:_MAX_QUOTED_NAME])
        if len(name) > _MAX_QUOTED_NAME:
            quoted += f"… ({len(name)} characters)"
        raise InvalidTopicError(
            f"Invalid topic name {quoted}: use 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-', and"
            " neither '.' nor '..'"
        )


def check_topic_collision(name: str, other: str) -> None:
    """Raise InvalidTopicError if two topic names collide in metric names."""
    if name != other and collision_key(name) == collision_key(other):
        raise InvalidTopicError(
            f"Topic name {name!r} collides with topic {other!r}: '.' and '_' are the same in"
            " metric names"
        )


def collision_key(name: str) -> str:
    """Return a key that is the same for all topic names that collide."""
    return name.replace(".", "_")


def _json(content: Any) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()
