"""What there is in the cluster: topics, settings of brokers, producer ids.

The image is what a log of records says. A record is the whole of one thing under its key, so
that the last one of each key is all there is to know, and compaction keeps the log short:

    topic/<name>       {"id": …, "replicas": [[0], …], "configs": {…}}     none: it was deleted
    broker/<id>        {"configs": {…}}      settings that were altered while it ran
    producer-ids       {"next": …}           all ids below it may have been given out
    controller         {"next": …}           in a copy: how far the controller's log was followed

`replay` is the only way to change it: with a record that was just written, and with all of them
when a broker starts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from uuid import UUID

_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
#: What consumer groups have committed.
OFFSETS_TOPIC = "__consumer_offsets"
#: Topics of the broker's own, which clients may read but not write.
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, "__transaction_state"})
#: The log of this image, which is no topic.
METADATA_TOPIC = "__cluster_metadata"

#: The key and the value of a record; a value of None is a tombstone.
KeyValue = tuple[bytes, bytes | None]


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class InvalidTopicError(ValueError):
    """A name that no topic can have."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic. `replicas` are, for each partition, the brokers that have it, its owner first.

    There is one of each for now, and so there never is another leader: the epoch is 0.
    """

    name: str
    id: UUID
    replicas: tuple[tuple[int, ...], ...]
    configs: Mapping[str, str]

    @property
    def is_internal(self) -> bool:
        """Whether the broker keeps this topic for itself."""
        return self.name in INTERNAL_TOPICS

    def with_partitions(self, replicas: tuple[tuple[int, ...], ...]) -> Topic:
        """Give the topic with these partitions behind those that it has."""
        return replace(self, replicas=self.replicas + replicas)

    def with_configs(self, configs: Mapping[str, str]) -> Topic:
        """Give the topic with other settings."""
        return replace(self, configs=configs)


class MetadataImage:
    """All that the records said."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.topics_by_id: dict[UUID, Topic] = {}
        #: Names of topics that were deleted, and are not there again.
        self.deleted: set[str] = set()
        self.broker_configs: dict[int, Mapping[str, str]] = {}
        #: The first producer id that was never given out. 0 is left out: some clients say it for
        #: "none".
        self.next_producer_id = 1
        #: The end of the controller's log, as far as this is a copy of it.
        self.controller_offset = 0
        #: Partitions of all topics.
        self.partition_count = 0
        self._collision_keys: dict[str, str] = {}

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Take a record in."""
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
        # Anything else is of a newer version, which knows what it is.

    def records(self) -> Iterator[KeyValue]:
        """Give the records that say all this, but for how far it was followed."""
        yield from map(topic_record, self.topics.values())
        for broker_id, configs in self.broker_configs.items():
            yield broker_record(broker_id, configs)
        yield producer_ids_record(self.next_producer_id)

    def has_partition(self, topic_name: str, index: int) -> bool:
        """Whether a partition exists."""
        topic = self.topics.get(topic_name)
        return topic is not None and 0 <= index < len(topic.replicas)

    def check_new_name(self, name: str) -> None:
        """Raise InvalidTopicError for a name that a new topic cannot have.

        Names become names of directories, and, with dots for underscores, of metrics.
        """
        check_topic_name(name)
        check_topic_collision(name, self._collision_keys.get(collision_key(name), name))

    def _replay_topic(self, name: str, content: Any) -> None:
        before = self.topics.pop(name, None)
        if before is not None:
            del self.topics_by_id[before.id]
            self.partition_count -= len(before.replicas)
        if content is None:
            self.deleted.add(name)
            self._collision_keys.pop(collision_key(name), None)
            return
        topic = _topic(name, content)
        self.topics[name] = self.topics_by_id[topic.id] = topic
        self.partition_count += len(topic.replicas)
        self._collision_keys[collision_key(name)] = name
        self.deleted.discard(name)


def parse_topic_record(record: KeyValue) -> tuple[str, Topic | None] | None:
    """Give the topic that a record is about, by name, and what it says of it, if it is there."""
    key, value = record
    kind, _, name = key.decode().partition("/")
    if kind != "topic":
        return None
    return name, None if value is None else _topic(name, json.loads(value))


def _topic(name: str, content: Any) -> Topic:
    replicas = tuple(tuple(brokers) for brokers in content["replicas"])
    return Topic(name, UUID(content["id"]), replicas, content["configs"])


def topic_record(topic: Topic) -> KeyValue:
    """Say that a topic is there, and what it is."""
    content = {"id": str(topic.id), "replicas": topic.replicas, "configs": dict(topic.configs)}
    return f"topic/{topic.name}".encode(), _json(content)


def topic_tombstone(name: str) -> KeyValue:
    """Say that a topic is deleted."""
    return f"topic/{name}".encode(), None


def broker_record(broker_id: int, configs: Mapping[str, str]) -> KeyValue:
    """Say what was altered of a broker's settings."""
    return f"broker/{broker_id}".encode(), _json({"configs": dict(configs)})


def producer_ids_record(next_id: int) -> KeyValue:
    """Say that all producer ids below this may have been given out."""
    return b"producer-ids", _json({"next": next_id})


def controller_offset_record(offset: int) -> KeyValue:
    """Say how far the controller's log was followed."""
    return b"controller", _json({"next": offset})


def check_topic_name(name: str) -> None:
    """Raise InvalidTopicError for a name that no topic can have."""
    if name in (".", "..") or not _NAME.fullmatch(name):
        shown = name if len(name) <= 60 else f"{name[:60]}… ({len(name)} characters)"
        raise InvalidTopicError(
            f"{shown!r} is no name for a topic: 1 to 249 characters of a-z, A-Z, 0-9, '.', '_'"
            " and '-' are, but for '.' and '..'"
        )


def check_topic_collision(name: str, other: str) -> None:
    """Raise InvalidTopicError for a name that would be taken for that of another topic."""
    if name != other and collision_key(name) == collision_key(other):
        raise InvalidTopicError(
            f"{name!r} looks like the topic {other!r}, as '.' and '_' are alike in metrics"
        )


def collision_key(name: str) -> str:
    """Give what all names have in common that look like this one."""
    return name.replace(".", "_")


def _json(content: Any) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()
