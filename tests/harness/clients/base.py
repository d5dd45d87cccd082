"""Kafka clients behind the same methods, so that one test runs with all of them.

A method that a client lacks is not defined in its class, and tests that need it skip that client.
None of them consumes in a group: partitions are assigned. Group members are in tests/groups.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from golden.corpus import Record

#: Longer than anything takes on a busy machine; a test that waits this long hangs.
TIMEOUT_SECONDS = 30
#: A topic and a partition's index.
Partition = tuple[str, int]
#: Where to start reading each partition; None: from the beginning.
StartOffsets = Mapping[Partition, int | None]
Records = Sequence[Record]


class ConsumedRecord(NamedTuple):
    """A record as a client read it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class ClusterDescription(NamedTuple):
    """The cluster as a client describes it."""

    id: str
    controller: int
    brokers: list[tuple[int, str]]


class GroupDescription(NamedTuple):
    """A consumer group as a client describes it."""

    state: str
    assignor: str
    #: By client id: the assigned partitions of each topic.
    assignments: dict[str, dict[str, list[int]]]


class RequestError(Exception):
    """An error that a client reported: Kafka's error code, if the client says it."""

    def __init__(self, code: int | None, message: object) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class ProduceOptions(NamedTuple):
    """How to produce records."""

    codec: str = "none"
    acks: str = "all"
    idempotent: bool = False
    #: None: the client's partitioner chooses, by key.
    partition: int | None = 0


class Client:
    """What all clients have."""

    #: Its name in the golden corpus.
    name: ClassVar[str]
    #: The compression codecs that it can decode.
    readable_codecs: ClassVar[frozenset[str]] = frozenset({"none", "gzip", "snappy", "lz4", "zstd"})
    #: For a timestamp after the last record, `offset_for_time` returns the end offset, not None.
    returns_end_for_later_time: ClassVar[bool] = False
    #: It sends AlterConfigs, which resets every config that it does not name.
    replaces_all_configs: ClassVar[bool] = False

    def __init__(self, address: str) -> None:
        self.address = address
        #: How long `produce` waits for the metadata of an unknown topic.
        self.topic_timeout_seconds: float = TIMEOUT_SECONDS
        #: Set when `consume` has received a record. Agents report only the end of a call.
        self.has_consumed = threading.Event()

    @staticmethod
    def missing() -> str | None:
        """Return why the client is not available here; None: it is."""
        return None

    def close(self) -> None:
        """Close connections, threads and processes."""

    def produce(self, topic: str, records: Records, **options: Any) -> list[int | None]:
        """Produce records with `ProduceOptions`; return their offsets, None where unknown."""
        offsets = self._produce(topic, records, ProduceOptions(**options))
        return [None if offset is None or offset < 0 else offset for offset in offsets]

    def _produce(
        self, topic: str, records: Records, options: ProduceOptions
    ) -> Sequence[int | None]:
        raise NotImplementedError

    # Only declared here: a client may lack any of these. Offsets are those of partition 0.

    consume: Any
    """({partition: start offset or None}, count, max_wait_ms) -> {partition: records}"""
    watermarks: Any
    """(topic) -> (log start offset, high watermark)"""
    offset_for_time: Any
    """(topic, timestamp) -> the first offset with at least that timestamp, or None"""
    max_timestamp_offset: Any
    """(topic) -> the offset of the record with the greatest timestamp"""
    topics: Any
    """() -> {topic: number of partitions}, without internal topics"""
    cluster: Any
    """() -> ClusterDescription"""
    create_topic: Any
    """(topic, partitions, configs)"""
    delete_topic: Any
    """(topic)"""
    create_partitions: Any
    """(topic, new total)"""
    configs: Any
    """(topic) -> {name: value}"""
    alter_configs: Any
    """(topic, {name: value})"""
    delete_records: Any
    """(topic, offset) -> log start offset"""
    list_groups: Any
    """() -> group ids"""
    describe_group: Any
    """(group) -> GroupDescription"""
    group_offsets: Any
    """(group, topic) -> {partition: committed offset}"""
    alter_group_offsets: Any
    """(group, topic, {partition: offset})"""
    delete_group_offsets: Any
    """(group, topic, partitions)"""
    delete_group: Any
    """(group)"""
    remove_member: Any
    """(group, group instance id)"""


def without_internal(topics: Mapping[str, int]) -> dict[str, int]:
    """Return topics without internal ones such as __consumer_offsets."""
    return {name: count for name, count in topics.items() if not name.startswith("__")}


def kafka_libs() -> str | None:
    """Return the folder of Apache Kafka's jars, TEST_KAFKA_LIBS, if it exists."""
    folder = os.environ.get("TEST_KAFKA_LIBS", "")
    return folder if os.path.isdir(folder) else None


def node_modules(package: str = "kafkajs") -> str | None:
    """Return the folder of TEST_NODE_MODULES or NODE_PATH that has a package, if there is one."""
    for variable in ("TEST_NODE_MODULES", "NODE_PATH"):
        folder = os.environ.get(variable, "")
        if folder and os.path.isdir(os.path.join(folder, package)):
            return folder
    return None
