"""The metadata image: the topics, broker configs and producer ids of the cluster.

The image is replayed from the metadata log. A record holds the complete state of its key, so that
only the last record of each key counts, and compaction keeps the log short:

    topic/<name>       {"id": …, "replicas": [[0], …], "configs": {…}}     tombstone: deleted
    broker/<id>        {"configs": {…}}      dynamic configs of the broker
    producer-ids       {"next": …}           all ids below it may be allocated
    controller         {"next": …}           on a follower: how much of the controller's log it has

`replay` is the only method that changes the image: with each record that was appended, and with
all records of the log when a broker starts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from uuid import UUID

_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
#: Characters of an invalid topic name that an error message quotes.
_MAX_QUOTED_NAME = 60

#: Consumer groups and their committed offsets.
OFFSETS_TOPIC = "__consumer_offsets"
#: Topics that clients may read, but only the broker writes.
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, "__transaction_state"})
#: The name of the metadata log. It is not a topic.
METADATA_TOPIC = "__cluster_metadata"

#: The key and the value of a record; a value of None is a tombstone.
KeyValue = tuple[bytes, bytes | None]


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class InvalidTopicError(ValueError):
    """An invalid name for a new topic."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic. `replicas` has the broker ids of each partition, the leader first.

    A partition has one replica, so that its leader never changes: the leader epoch is 0.
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


class MetadataImage:
    """The metadata of the cluster, as of the last record that was replayed."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.topics_by_id: dict[UUID, Topic] = {}
        #: Names of topics that were deleted, and not created again.
        self.deleted: set[str] = set()
        self.broker_configs: dict[int, Mapping[str, str]] = {}
        #: The first producer id that is not allocated. 0 is never allocated: some clients take it
        #: for "none".
        self.next_producer_id = 1
        #: On a follower: the end of its copy of the controller's log.
        self.controller_offset = 0
        #: Partitions of all topics.
        self.partition_count = 0
        # Topic names by collision key.
        self._names_by_key: dict[str, str] = {}

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Apply a record. Kinds of newer versions are ignored."""
        kind, _, name = key.decode().partition("/")
        content = None if value is None else json.loads(value)
        if kind == "topic":
            self._replay_topic(name, content)
        elif kind == "broker":
            self.broker_configs[int(name)] = (content or {}).get("configs", {})
        elif kind == "producer-ids" and content is not None:
            self.next_producer_id = content["next"]
        elif kind == "controller" and content is not None:
            self.controller_offset = content["next"]

    def records(self) -> Iterator[KeyValue]:
        """Yield the records of a snapshot of the image, without the controller offset."""
        yield from map(topic_record, self.topics.values())
        for broker_id, configs in self.broker_configs.items():
            yield broker_record(broker_id, configs)
        yield producer_ids_record(self.next_producer_id)

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

    def _replay_topic(self, name: str, content: Any) -> None:
        previous = self.topics.pop(name, None)
        if previous is not None:
            del self.topics_by_id[previous.id]
            self.partition_count -= len(previous.replicas)
        if content is None:
            self.deleted.add(name)
            self._names_by_key.pop(collision_key(name), None)
            return
        topic = _parse_topic(name, content)
        self.topics[name] = self.topics_by_id[topic.id] = topic
        self.partition_count += len(topic.replicas)
        self._names_by_key[collision_key(name)] = name
        self.deleted.discard(name)


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


def topic_record(topic: Topic) -> KeyValue:
    """Return the record of a topic that was created or changed."""
    content = {"id": str(topic.id), "replicas": topic.replicas, "configs": dict(topic.configs)}
    return f"topic/{topic.name}".encode(), _json(content)


def topic_tombstone(name: str) -> KeyValue:
    """Return the record of a topic that was deleted."""
    return f"topic/{name}".encode(), None


def broker_record(broker_id: int, configs: Mapping[str, str]) -> KeyValue:
    """Return the record of a broker's dynamic configs."""
    return f"broker/{broker_id}".encode(), _json({"configs": dict(configs)})


def producer_ids_record(next_id: int) -> KeyValue:
    """Return the record that allocates all producer ids below `next_id`."""
    return b"producer-ids", _json({"next": next_id})


def controller_offset_record(offset: int) -> KeyValue:
    """Return the record of how far a follower has copied the controller's log."""
    return b"controller", _json({"next": offset})


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
