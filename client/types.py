"""Records, offsets and partitions, as programs see them."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    # With defaults, which Python has since 3.13.
    from typing_extensions import TypeVar

#: Special timestamps of ListOffsets: the ends of a log.
LATEST, EARLIEST = -1, -2


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class RecordMetadata(NamedTuple):
    """Where a record was written; the offset is -1 if the broker does not return it (acks=0)."""

    topic: str
    partition: int
    offset: int
    #: In milliseconds: the record's, or the broker's with message.timestamp.type=LogAppendTime.
    timestamp: int


class ConsumerRecord(NamedTuple):
    """A record that a consumer returns. Deserializers apply to `key` and `value`."""

    topic: str
    partition: int
    offset: int
    #: In milliseconds.
    timestamp: int
    key: Any
    value: Any
    headers: Sequence[tuple[str, bytes | None]] = ()
    leader_epoch: int = -1


class ShareRecord(NamedTuple):
    """A record that a share consumer returns: a `ConsumerRecord` with its delivery count."""

    topic: str
    partition: int
    offset: int
    #: In milliseconds.
    timestamp: int
    key: Any
    value: Any
    headers: Sequence[tuple[str, bytes | None]] = ()
    leader_epoch: int = -1
    #: How often the record was delivered, this time included.
    delivery_count: int = 1


class AcknowledgeType(IntEnum):
    """What becomes of a record that a share consumer was given."""

    #: It was processed.
    ACCEPT = 1
    #: It is to be delivered again, to any consumer of the group.
    RELEASE = 2
    #: It cannot be processed, and is not delivered again.
    REJECT = 3
    #: It takes longer to process: its acquisition lock starts anew.
    RENEW = 4


class OffsetAndTimestamp(NamedTuple):
    """An offset that was looked up by timestamp."""

    offset: int
    timestamp: int


class OffsetAndMetadata(NamedTuple):
    """An offset that a group commits, with metadata."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class ConsumerGroupMetadata(NamedTuple):
    """A group, and the member that commits offsets in a transaction, if it is one."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    instance_id: str | None = None


#: Headers of a record to send.
Headers = Mapping[str, bytes | None] | Sequence[tuple[str, bytes | None]]
#: What a producer accepts without a serializer.
Buffer = bytes | bytearray | memoryview
#: The types of keys and values that a producer accepts: those of its serializers.
if TYPE_CHECKING:
    K = TypeVar("K", default=Buffer)
    V = TypeVar("V", default=Buffer)
else:
    K, V = typing.TypeVar("K"), typing.TypeVar("V")
#: From a value to bytes, and back.
Serializer = Callable[[V], bytes | None]
Deserializer = Callable[[bytes], Any]
