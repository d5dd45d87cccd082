"""Other people's clients, each behind the same few verbs: so that one story can be told of all.

A verb that a client has not is not defined in its class, and the stories that need it are not told
of that client. None of them is in a group: what to read is assigned.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from golden.corpus import Record

#: Longer than anything takes, unless something is wrong.
PATIENCE_SECONDS = 30
#: A topic and the number of one of its partitions.
Place = tuple[str, int]
#: Where to read from; None: from the start.
Starts = Mapping[Place, int | None]
Records = Sequence[Record]


class Row(NamedTuple):
    """A record, as somebody read it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Cluster(NamedTuple):
    """What a client believes the cluster to be."""

    id: str
    controller: int
    brokers: list[tuple[int, str]]


class RefusedError(Exception):
    """What a client was told instead of an answer: Kafka's number for it, if it has one."""

    def __init__(self, code: int | None, message: object) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Wishes(NamedTuple):
    """How records are to be written."""

    codec: str = "none"
    acks: str = "all"
    idempotent: bool = False
    #: None: the client chooses, by the key.
    partition: int | None = 0


class Client:
    """What all of them have."""

    #: Its name in the golden corpus.
    name: ClassVar[str]
    #: The codecs that it can read.
    reads: ClassVar[frozenset[str]] = frozenset({"none", "gzip", "snappy", "lz4", "zstd"})
    #: Asked for the offset of a time after the last record, it gives the end of the log.
    gives_the_end_for_a_later_time: ClassVar[bool] = False
    #: It alters one setting by saying all of them; what is not said becomes the default.
    alters_configs_as_a_whole: ClassVar[bool] = False

    def __init__(self, address: str) -> None:
        self.address = address
        #: How long a topic that is not there is waited for by who writes to it.
        self.topic_seconds: float = PATIENCE_SECONDS
        #: Set when a read has got something; an agent does not tell until it has all.
        self.has_read = threading.Event()

    @staticmethod
    def missing() -> str | None:
        """Say what of it is not installed here."""
        return None

    def close(self) -> None:
        """Let go of connections, threads and processes."""

    def write(self, topic: str, records: Records, **wishes: Any) -> list[int | None]:
        """Write records, as `Wishes` says; give the offset of each, None: not told."""
        offsets = self._write(topic, records, Wishes(**wishes))
        return [None if offset is None or offset < 0 else offset for offset in offsets]

    def _write(self, topic: str, records: Records, wishes: Wishes) -> Sequence[int | None]:
        raise NotImplementedError

    # Verbs that are only typed here.

    read: Any
    """({place: offset or None for the start}, count, max_wait_ms) -> {place: rows}"""
    ends: Any
    """(topic) -> where partition 0 starts and ends"""
    offset_at: Any
    """(topic, timestamp) -> the first offset of partition 0 that is not older, or None"""
    youngest: Any
    """(topic) -> the offset of the record of partition 0 with the greatest timestamp"""
    topics: Any
    """() -> {topic: number of partitions}, without the broker's own topics"""
    cluster: Any
    """() -> Cluster"""
    create_topic: Any
    """(topic, partitions, configs)"""
    delete_topic: Any
    """(topic)"""
    add_partitions: Any
    """(topic, how many there are to be)"""
    configs: Any
    """(topic) -> {name: value}"""
    alter_configs: Any
    """(topic, {name: value})"""
    delete_records: Any
    """(topic, offset) -> where partition 0 starts now"""


def without_internal(topics: Mapping[str, int]) -> dict[str, int]:
    """Leave out the topics that a broker makes for itself when there is need."""
    return {name: count for name, count in topics.items() if not name.startswith("__")}


def folder_from(variable: str) -> str | None:
    """Give the folder that a variable of the environment names, if there is one."""
    folder = os.environ.get(variable, "")
    return folder if os.path.isdir(folder) else None
