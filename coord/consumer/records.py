"""The records of consumer groups in `__consumer_offsets`, in Kafka's format.

    key version 3      group               value: group epoch, hash of the subscribed topics
    key version 4      group               tombstones only; older versions of Kafka wrote values
    key version 5      group, member       value: who the member is, and what it subscribes to
    key version 6      group               value: assignment epoch
    key version 7      group, member       value: target assignment
    key version 8      group, member       value: current assignment and epochs
    key version 16     group, regex        value: the topics that it matches

A group is removed by tombstones of all its records, those of a member in the order 8, 7, 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple
from uuid import UUID

from ottla.protocol.schema import (
    Array,
    Buffer,
    Bytes,
    Int8,
    Int32,
    Int64,
    Message,
    String,
    Struct,
    Uuid,
    Versions,
    field,
)

from ..metadata_image import KeyValue
from ..records import decode_versioned, encode_versioned, version_of

#: All values: version 0, flexible.
_VALUE = Versions(0, 0, 0)


class RecordType(IntEnum):
    """The kinds of records: the versions of their keys."""

    GROUP = 3
    SUBSCRIPTION_METADATA = 4
    MEMBER = 5
    TARGET = 6
    TARGET_MEMBER = 7
    CURRENT_MEMBER = 8
    REGEX = 16


class ConsumerGroupKey(Message, versions=Versions(3, 6)):
    """The key of a group's own records."""

    group_id: str = field(String)


class ConsumerGroupMemberKey(Message, versions=Versions(5, 8)):
    """The key of a member's records."""

    group_id: str = field(String)
    member_id: str = field(String)


class ConsumerGroupRegexKey(Message, versions=Versions(16, 16)):
    """The key of a resolved regular expression."""

    group_id: str = field(String)
    regular_expression: str = field(String)


class ConsumerGroupMetadataValue(Message, versions=_VALUE):
    """The group epoch, and a hash of the topics that the members subscribe to."""

    epoch: int = field(Int32)
    metadata_hash: int = field(Int64, since=0, tag=0, default=0, ignorable=True)


class ClassicProtocol(Message):
    """A protocol that a member of the classic protocol supports."""

    name: str = field(String)
    metadata: Buffer = field(Bytes)


class ClassicMemberMetadata(Message):
    """What only members of the classic protocol have."""

    session_timeout_ms: int = field(Int32)
    supported_protocols: Sequence[ClassicProtocol] = field(Array(ClassicProtocol))


class ConsumerGroupMemberMetadataValue(Message, versions=_VALUE):
    """A member, and what it subscribes to."""

    instance_id: str | None = field(String, nullable=0, default=None)
    rack_id: str | None = field(String, nullable=0, default=None)
    client_id: str = field(String)
    client_host: str = field(String)
    subscribed_topic_names: Sequence[str] = field(Array(String))
    subscribed_topic_regex: str | None = field(String, nullable=0, default=None)
    rebalance_timeout_ms: int = field(Int32, default=-1)
    server_assignor: str | None = field(String, nullable=0, default=None)
    classic_member_metadata: ClassicMemberMetadata | None = field(
        Struct(ClassicMemberMetadata), since=0, nullable=0, tag=0, default=None, ignorable=True
    )


class ConsumerGroupTargetValue(Message, versions=_VALUE):
    """The epoch of the target assignment, and when it was computed."""

    assignment_epoch: int = field(Int32)
    assignment_timestamp: int = field(Int64, since=0, tag=0, default=0, ignorable=True)


class TargetTopicPartitions(Message):
    """Partitions of one topic in a target assignment."""

    topic_id: UUID = field(Uuid)
    partitions: Sequence[int] = field(Array(Int32))


class ConsumerGroupTargetMemberValue(Message, versions=_VALUE):
    """The partitions that a member is to have."""

    topic_partitions: Sequence[TargetTopicPartitions] = field(Array(TargetTopicPartitions))


class CurrentTopicPartitions(Message):
    """Partitions of one topic that a member has, and the epochs in which they were assigned."""

    topic_id: UUID = field(Uuid)
    partitions: Sequence[int] = field(Array(Int32))
    assignment_epochs: Sequence[int] | None = field(
        Array(Int32), since=0, nullable=0, tag=0, default=None, ignorable=True
    )


class ConsumerGroupCurrentMemberValue(Message, versions=_VALUE):
    """The partitions that a member has, and how far it is with those of the target."""

    member_epoch: int = field(Int32)
    previous_member_epoch: int = field(Int32)
    state: int = field(Int8)
    assigned_partitions: Sequence[CurrentTopicPartitions] = field(Array(CurrentTopicPartitions))
    partitions_pending_revocation: Sequence[CurrentTopicPartitions] = field(
        Array(CurrentTopicPartitions)
    )


class ConsumerGroupRegexValue(Message, versions=_VALUE):
    """The topics that a regular expression matches, as of a version of the metadata."""

    topics: Sequence[str] = field(Array(String))
    version: int = field(Int64)
    timestamp: int = field(Int64)


class ConsumerRecord(NamedTuple):
    """A record of a consumer group; a value of None is a tombstone."""

    group_id: str
    type: RecordType
    #: The member id, or the regular expression; "" in a record of the group.
    name: str
    value: Message | None


_GROUP_TYPES = (RecordType.GROUP, RecordType.SUBSCRIPTION_METADATA, RecordType.TARGET)
_VALUES: dict[RecordType, type[Message]] = {
    RecordType.GROUP: ConsumerGroupMetadataValue,
    RecordType.MEMBER: ConsumerGroupMemberMetadataValue,
    RecordType.TARGET: ConsumerGroupTargetValue,
    RecordType.TARGET_MEMBER: ConsumerGroupTargetMemberValue,
    RecordType.CURRENT_MEMBER: ConsumerGroupCurrentMemberValue,
    RecordType.REGEX: ConsumerGroupRegexValue,
}


def is_consumer_key(version: int) -> bool:
    """Whether the key of this version belongs to a consumer group."""
    return version in RecordType.__members__.values()


def encode_consumer_record(record: ConsumerRecord) -> KeyValue:
    """Encode a record for the log."""
    group_id, kind, name, value = record
    key: Message
    if kind in _GROUP_TYPES:
        key = ConsumerGroupKey(group_id=group_id)
    elif kind is RecordType.REGEX:
        key = ConsumerGroupRegexKey(group_id=group_id, regular_expression=name)
    else:
        key = ConsumerGroupMemberKey(group_id=group_id, member_id=name)
    return encode_versioned(key, kind), None if value is None else encode_versioned(value, 0)


def decode_consumer_record(key: bytes, value: bytes | None) -> ConsumerRecord:
    """Decode a record of the log. Raises DecodeError."""
    kind = RecordType(version_of(key))
    if kind in _GROUP_TYPES:
        group_id, name = decode_versioned(ConsumerGroupKey, key).group_id, ""
    elif kind is RecordType.REGEX:
        regex = decode_versioned(ConsumerGroupRegexKey, key)
        group_id, name = regex.group_id, regex.regular_expression
    else:
        member = decode_versioned(ConsumerGroupMemberKey, key)
        group_id, name = member.group_id, member.member_id
    decoded: Message | None = None
    if value is not None and kind in _VALUES:
        decoded = decode_versioned(_VALUES[kind], value)
    return ConsumerRecord(group_id, kind, name, decoded)


def tombstone(group_id: str, kind: RecordType, name: str = "") -> ConsumerRecord:
    """Return the record that removes another one."""
    return ConsumerRecord(group_id, kind, name, None)


def member_tombstones(group_id: str, member_id: str) -> list[ConsumerRecord]:
    """Return the records that remove a member."""
    return [
        tombstone(group_id, kind, member_id)
        for kind in (RecordType.CURRENT_MEMBER, RecordType.TARGET_MEMBER, RecordType.MEMBER)
    ]
