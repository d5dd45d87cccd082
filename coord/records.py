"""The records of `__consumer_offsets`, in Kafka's format, so that its tools can read them.

    key version 1      group, topic, partition     value: the committed offset
    key version 2      group                       value: the group, its members and assignments

A key and a value are a version (int16) and a struct, as in `ottla.protocol.consumer`. A value of
None is a tombstone: the offset or the group was removed.

A committed offset has the id of its topic, in version 4: it does not count for another topic that
is created later with the same name. Versions up to 3, of earlier releases, have none.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple, TypeVar
from uuid import UUID

from ottla.protocol.compiler import codec
from ottla.protocol.errors import DecodeError
from ottla.protocol.primitives import NIL_UUID
from ottla.protocol.schema import (
    Array,
    Buffer,
    Bytes,
    Int32,
    Int64,
    Message,
    String,
    Uuid,
    Versions,
    field,
)

from .metadata_image import KeyValue, TopicPartition

M = TypeVar("M", bound=Message)

_VERSION = struct.Struct(">h")
_OFFSET_KEY = 1
_GROUP_KEY = 2
_VALUE = 3
_VALUE_WITH_TOPIC_ID = 4


class OffsetCommitKey(Message, versions=Versions(0, 1)):
    """The key of a committed offset."""

    group: str = field(String)
    topic: str = field(String)
    partition: int = field(Int32)


class OffsetCommitValue(Message, versions=Versions(0, 4, 4)):
    """The value of a committed offset."""

    offset: int = field(Int64)
    leader_epoch: int = field(Int32, since=3, default=-1, ignorable=True)
    metadata: str = field(String)
    commit_timestamp: int = field(Int64)
    expire_timestamp: int = field(Int64, since=1, until=1, default=-1, ignorable=True)
    topic_id: UUID = field(Uuid, since=4, tag=0, default=NIL_UUID, ignorable=True)


class GroupMetadataKey(Message, versions=Versions(2, 2)):
    """The key of a group."""

    group: str = field(String)


class MemberMetadata(Message):
    """A member in the record of its group."""

    member_id: str = field(String)
    group_instance_id: str | None = field(String, since=3, nullable=3, default=None, ignorable=True)
    client_id: str = field(String)
    client_host: str = field(String)
    rebalance_timeout: int = field(Int32, since=1, default=-1, ignorable=True)
    session_timeout: int = field(Int32)
    subscription: Buffer = field(Bytes)
    assignment: Buffer = field(Bytes)


class GroupMetadataValue(Message, versions=Versions(0, 3)):
    """The value of a group: one generation of it."""

    protocol_type: str = field(String)
    generation: int = field(Int32)
    protocol: str | None = field(String, nullable=0)
    leader: str | None = field(String, nullable=0)
    current_state_timestamp: int = field(Int64, since=2, default=-1, ignorable=True)
    members: Sequence[MemberMetadata] = field(Array(MemberMetadata))


class CommittedOffset(NamedTuple):
    """An offset that a group committed for a partition."""

    offset: int
    leader_epoch: int
    metadata: str
    timestamp_ms: int
    topic_id: UUID = NIL_UUID


class OffsetRecord(NamedTuple):
    """An offset that a group committed; None for a tombstone."""

    group_id: str
    topic_partition: TopicPartition
    committed: CommittedOffset | None


class GroupRecord(NamedTuple):
    """A group in one generation; None for a tombstone."""

    group_id: str
    metadata: GroupMetadataValue | None


CoordinatorRecord = OffsetRecord | GroupRecord


def encode_record(record: CoordinatorRecord) -> KeyValue:
    """Encode a record for the log."""
    if isinstance(record, GroupRecord):
        key = encode_versioned(GroupMetadataKey(group=record.group_id), _GROUP_KEY)
        return key, None if record.metadata is None else encode_versioned(record.metadata, _VALUE)
    topic, partition = record.topic_partition
    offset_key = OffsetCommitKey(group=record.group_id, topic=topic, partition=partition)
    committed = record.committed
    if committed is None:
        return encode_versioned(offset_key, _OFFSET_KEY), None
    value = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.timestamp_ms,
        topic_id=committed.topic_id,
    )
    version = _VALUE if committed.topic_id == NIL_UUID else _VALUE_WITH_TOPIC_ID
    return encode_versioned(offset_key, _OFFSET_KEY), encode_versioned(value, version)


def decode_record(key: bytes, value: bytes | None) -> CoordinatorRecord | None:
    """Decode a record of the log; None for a key of an unknown version. Raises DecodeError."""
    decoded = decode_key(key)
    if isinstance(decoded, OffsetCommitKey):
        return OffsetRecord(
            decoded.group,
            TopicPartition(decoded.topic, decoded.partition),
            None if value is None else decode_offset(value),
        )
    if isinstance(decoded, GroupMetadataKey):
        return GroupRecord(decoded.group, None if value is None else decode_group(value))
    return None


def decode_key(key: bytes) -> OffsetCommitKey | GroupMetadataKey | None:
    """Decode the key of a record; None for an unknown version. Raises DecodeError."""
    version = version_of(key)
    if version in (0, _OFFSET_KEY):
        return decode_versioned(OffsetCommitKey, key)
    if version == _GROUP_KEY:
        return decode_versioned(GroupMetadataKey, key)
    return None


def decode_offset(value: bytes) -> CommittedOffset:
    """Decode the value of a committed offset. Raises DecodeError."""
    decoded = decode_versioned(OffsetCommitValue, value)
    return CommittedOffset(
        decoded.offset,
        decoded.leader_epoch,
        decoded.metadata,
        decoded.commit_timestamp,
        decoded.topic_id,
    )


def decode_group(value: bytes) -> GroupMetadataValue:
    """Decode the value of a group. Raises DecodeError."""
    return decode_versioned(GroupMetadataValue, value)


def encode_versioned(message: Message, version: int) -> bytes:
    """Encode a key or a value: its version, and the struct."""
    parts: list[Buffer] = []
    tail = codec(type(message), version).encode(message, bytearray(_VERSION.pack(version)), parts)
    return b"".join([*parts, tail])


def version_of(data: bytes) -> int:
    """Return the version of an encoded key or value. Raises DecodeError."""
    if len(data) < _VERSION.size:
        raise DecodeError(f"{len(data)} bytes are too few for a version")
    version: int = _VERSION.unpack_from(data)[0]
    return version


def decode_versioned(kind: type[M], data: bytes) -> M:
    """Decode a key or a value. Raises DecodeError."""
    version = version_of(data)
    if kind.versions is None or version not in kind.versions:
        raise DecodeError(f"version {version} is not supported", kind.__name__)
    message: M
    message, _end = codec(kind, version).decode(memoryview(data), _VERSION.size)
    return message
