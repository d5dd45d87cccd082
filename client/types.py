"""What is sent, what comes back, and where it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

#: The times by which ListOffsets is asked for the ends of a log.
LATEST, EARLIEST = -1, -2


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class RecordMetadata(NamedTuple):
    """Where a record is that was sent; -1 where the broker did not say (acks=0)."""

    topic: str
    partition: int
    offset: int
    #: In milliseconds: the record's own time, or the broker's where the topic wants that.
    timestamp: int


class ConsumerRecord(NamedTuple):
    """A record that was read. `key` and `value` are what the deserializers made of them."""

    topic: str
    partition: int
    offset: int
    #: In milliseconds.
    timestamp: int
    key: Any
    value: Any
    headers: Sequence[tuple[str, bytes | None]] = ()
    leader_epoch: int = -1


class OffsetAndTimestamp(NamedTuple):
    """An offset that was looked up by time."""

    offset: int
    timestamp: int


class OffsetAndMetadata(NamedTuple):
    """What a group has committed."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


#: What a record may be given as headers.
Headers = Mapping[str, bytes | None] | Sequence[tuple[str, bytes | None]]
#: From a program's value to bytes, and back.
Serializer = Callable[[Any], bytes | None]
Deserializer = Callable[[bytes], Any]
