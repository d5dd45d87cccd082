"""The records of `__consumer_offsets`, in Kafka's own format, so that its tools can read them.

    key version 1      group, topic, partition     value: the committed offset
    key version 2      group                       value: the group, its members and assignments

A key and a value are a version (int16) and a struct, as in `ottla.protocol.consumer`. A value of
None says that the offset, or the group, is gone.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ottla.protocol.compiler import codec
from ottla.protocol.errors import DecodeError
from ottla.protocol.schema import (
    Array,
    Buffer,
    Bytes,
    Int32,
    Int64,
    Message,
    String,
    Versions,
    field,
)

from .member import Member
from .metadata_image import KeyValue

if TYPE_CHECKING:
    from .group import Group

M = TypeVar("M", bound=Message)

_VERSION = struct.Struct(">h")
_OFFSET_KEY = 1
_GROUP_KEY = 2
_VALUE = 3


class OffsetCommitKey(Message, versions=Versions(0, 1)):
    """Of which group, and of which partition, an offset is."""

    group: str = field(String)
    topic: str = field(String)
    partition: int = field(Int32)


class OffsetCommitValue(Message, versions=Versions(0, 3)):
    """A committed offset."""

    offset: int = field(Int64)
    leader_epoch: int = field(Int32, since=3, default=-1, ignorable=True)
    metadata: str = field(String)
    commit_timestamp: int = field(Int64)
    expire_timestamp: int = field(Int64, since=1, until=1, default=-1, ignorable=True)


class GroupMetadataKey(Message, versions=Versions(2, 2)):
    """Which group it is."""

    group: str = field(String)


class MemberMetadata(Message):
    """A member of a group."""

    member_id: str = field(String)
    group_instance_id: str | None = field(String, since=3, nullable=3, default=None, ignorable=True)
    client_id: str = field(String)
    client_host: str = field(String)
    rebalance_timeout: int = field(Int32, since=1, default=-1, ignorable=True)
    session_timeout: int = field(Int32)
    subscription: Buffer = field(Bytes)
    assignment: Buffer = field(Bytes)


class GroupMetadataValue(Message, versions=Versions(0, 3)):
    """A group, in one generation."""

    protocol_type: str = field(String)
    generation: int = field(Int32)
    protocol: str | None = field(String, nullable=0)
    leader: str | None = field(String, nullable=0)
    current_state_timestamp: int = field(Int64, since=2, default=-1, ignorable=True)
    members: Sequence[MemberMetadata] = field(Array(MemberMetadata))


class CommittedOffset(NamedTuple):
    """An offset that a group has committed."""

    offset: int
    leader_epoch: int
    metadata: str
    timestamp_ms: int


def offset_key(group: str, topic: str, partition: int) -> bytes:
    """Give the key of a committed offset."""
    return _encode(OffsetCommitKey(group=group, topic=topic, partition=partition), _OFFSET_KEY)


def offset_record(group: str, topic: str, partition: int, committed: CommittedOffset) -> KeyValue:
    """Say what a group has committed."""
    value = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.timestamp_ms,
    )
    return offset_key(group, topic, partition), _encode(value, _VALUE)


def group_key(group: str) -> bytes:
    """Give the key of a group."""
    return _encode(GroupMetadataKey(group=group), _GROUP_KEY)


def group_record(group: Group, time_ms: int, given: Mapping[str, bytes] | None = None) -> KeyValue:
    """Say what a group is like; with assignments that it is about to hand out, if any are given."""
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=group.protocol,
        leader=group.leader,
        current_state_timestamp=time_ms,
        members=[
            MemberMetadata(
                member_id=member.id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.metadata(group.protocol),
                assignment=member.assignment if given is None else given.get(member.id, b""),
            )
            for member in group.members.values()
        ],
    )
    return group_key(group.id), _encode(value, _VALUE)


def decode_key(key: bytes) -> OffsetCommitKey | GroupMetadataKey | None:
    """Give the key of a record; None for one of a version that is not known. Raises DecodeError."""
    version = _version(key)
    if version in (0, _OFFSET_KEY):
        return _decode(OffsetCommitKey, key)
    if version == _GROUP_KEY:
        return _decode(GroupMetadataKey, key)
    return None


def decode_offset(value: bytes) -> CommittedOffset:
    """Give the committed offset of a record. Raises DecodeError."""
    found = _decode(OffsetCommitValue, value)
    return CommittedOffset(found.offset, found.leader_epoch, found.metadata, found.commit_timestamp)


def decode_group(value: bytes) -> GroupMetadataValue:
    """Give the group of a record. Raises DecodeError."""
    return _decode(GroupMetadataValue, value)


def members_of(value: GroupMetadataValue) -> list[Member]:
    """Give the members that a record speaks of. Of their protocols only the chosen one is known."""
    return [
        Member(
            id=member.member_id,
            instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            session_timeout_ms=member.session_timeout,
            # Version 0 does not say.
            rebalance_timeout_ms=(
                member.session_timeout if member.rebalance_timeout < 0 else member.rebalance_timeout
            ),
            protocols=((value.protocol or "", bytes(member.subscription)),),
            assignment=bytes(member.assignment),
        )
        for member in value.members
    ]


def _encode(message: Message, version: int) -> bytes:
    parts: list[Buffer] = []
    tail = codec(type(message), version).encode(message, bytearray(_VERSION.pack(version)), parts)
    return b"".join([*parts, tail])


def _version(data: bytes) -> int:
    if len(data) < _VERSION.size:
        raise DecodeError(f"{len(data)} bytes have no version")
    version: int = _VERSION.unpack_from(data)[0]
    return version


def _decode(kind: type[M], data: bytes) -> M:
    version = _version(data)
    if kind.versions is None or version not in kind.versions:
        raise DecodeError(f"version {version} is not known", kind.__name__)
    message: M
    message, _end = codec(kind, version).decode(memoryview(data), _VERSION.size)
    return message
