"""The records of share groups in `__consumer_offsets`.

    key version 10       group, member                value: who it is, what it subscribes to
    key version 11       group                        value: group epoch, hash of subscribed topics
    key version 1000     group, topic id, partition   value: the state of the share partition

The first two are in Kafka's format. Kafka stores assignments too: here they follow from the members
(see `group`). It keeps the state of share partitions in a topic of its own, `__share_group_state`,
as snapshots and updates of them: the value here is its snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple
from uuid import UUID

from ottla.protocol.errors import DecodeError
from ottla.protocol.schema import (
    Array,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    String,
    Uuid,
    Versions,
    field,
)

from ..consumer.partitions import TopicIdPartition
from ..metadata_image import KeyValue
from ..records import decode_versioned, encode_versioned, version_of
from .state import RecordState, ShareState, StateBatch

#: All values: version 0, flexible.
_VALUE = Versions(0, 0, 0)


class ShareRecordType(IntEnum):
    """The kinds of records: the versions of their keys."""

    MEMBER = 10
    GROUP = 11
    STATE = 1000


class ShareGroupMemberMetadataKey(Message, versions=Versions(10, 10)):
    """The key of a member."""

    group_id: str = field(String)
    member_id: str = field(String)


class ShareGroupMetadataKey(Message, versions=Versions(11, 11)):
    """The key of a group."""

    group_id: str = field(String)


class ShareStateKey(Message, versions=Versions(1000, 1000)):
    """The key of the state of a share partition."""

    group_id: str = field(String)
    topic_id: UUID = field(Uuid)
    partition: int = field(Int32)


class ShareGroupMemberMetadataValue(Message, versions=_VALUE):
    """Who a member is, and what it subscribes to."""

    rack_id: str | None = field(String, nullable=0)
    client_id: str = field(String)
    client_host: str = field(String)
    subscribed_topic_names: Sequence[str] = field(Array(String))


class ShareGroupMetadataValue(Message, versions=_VALUE):
    """The group epoch, and a hash of the topics that the members subscribe to."""

    epoch: int = field(Int32)
    metadata_hash: int = field(Int64)


class SnapshotBatch(Message):
    """Consecutive offsets with the same state and delivery count."""

    first_offset: int = field(Int64)
    last_offset: int = field(Int64)
    delivery_state: int = field(Int8)
    delivery_count: int = field(Int16)


class ShareSnapshotValue(Message, versions=_VALUE):
    """The state of a share partition."""

    snapshot_epoch: int = field(Int32)
    state_epoch: int = field(Int32)
    leader_epoch: int = field(Int32)
    start_offset: int = field(Int64)
    delivery_complete_count: int = field(Int32, since=0, tag=0, default=-1, ignorable=True)
    create_timestamp: int = field(Int64)
    write_timestamp: int = field(Int64)
    state_batches: Sequence[SnapshotBatch] = field(Array(SnapshotBatch))


class ShareMemberMetadata(NamedTuple):
    """Who a member is, and what it subscribes to."""

    rack_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]


class ShareEpoch(NamedTuple):
    """The group epoch, and a hash of the topics that the members subscribe to."""

    epoch: int
    metadata_hash: int


class ShareMemberRecord(NamedTuple):
    """A member of a group; None: it left."""

    group_id: str
    member_id: str
    metadata: ShareMemberMetadata | None


class ShareGroupRecord(NamedTuple):
    """The epoch of a group; None: it was deleted."""

    group_id: str
    value: ShareEpoch | None


class ShareStateRecord(NamedTuple):
    """The state of a share partition; None: it was deleted."""

    group_id: str
    partition: TopicIdPartition
    state: ShareState | None


ShareRecord = ShareMemberRecord | ShareGroupRecord | ShareStateRecord


def encode_share_record(record: ShareRecord) -> KeyValue:
    """Encode a record for the log."""
    key: Message
    value: Message | None = None
    if isinstance(record, ShareMemberRecord):
        kind = ShareRecordType.MEMBER
        key = ShareGroupMemberMetadataKey(group_id=record.group_id, member_id=record.member_id)
        if record.metadata is not None:
            rack_id, client_id, client_host, topics = record.metadata
            value = ShareGroupMemberMetadataValue(
                rack_id=rack_id,
                client_id=client_id,
                client_host=client_host,
                subscribed_topic_names=topics,
            )
    elif isinstance(record, ShareGroupRecord):
        kind = ShareRecordType.GROUP
        key = ShareGroupMetadataKey(group_id=record.group_id)
        if record.value is not None:
            epoch, metadata_hash = record.value
            value = ShareGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    else:
        kind = ShareRecordType.STATE
        topic_id, index = record.partition
        key = ShareStateKey(group_id=record.group_id, topic_id=topic_id, partition=index)
        if record.state is not None:
            value = _snapshot_of(record.state)
    return encode_versioned(key, kind), None if value is None else encode_versioned(value, 0)


def decode_share_record(key: bytes, value: bytes | None) -> ShareRecord:
    """Decode a record of the log. Raises DecodeError."""
    kind = ShareRecordType(version_of(key))
    if kind is ShareRecordType.MEMBER:
        member = decode_versioned(ShareGroupMemberMetadataKey, key)
        metadata = None
        if value is not None:
            decoded = decode_versioned(ShareGroupMemberMetadataValue, value)
            metadata = ShareMemberMetadata(
                decoded.rack_id,
                decoded.client_id,
                decoded.client_host,
                tuple(decoded.subscribed_topic_names),
            )
        return ShareMemberRecord(member.group_id, member.member_id, metadata)
    if kind is ShareRecordType.GROUP:
        group_id = decode_versioned(ShareGroupMetadataKey, key).group_id
        if value is None:
            return ShareGroupRecord(group_id, None)
        group = decode_versioned(ShareGroupMetadataValue, value)
        return ShareGroupRecord(group_id, ShareEpoch(group.epoch, group.metadata_hash))
    of_state = decode_versioned(ShareStateKey, key)
    return ShareStateRecord(
        of_state.group_id,
        TopicIdPartition(of_state.topic_id, of_state.partition),
        None if value is None else _state_of(decode_versioned(ShareSnapshotValue, value)),
    )


def _snapshot_of(state: ShareState) -> ShareSnapshotValue:
    return ShareSnapshotValue(
        snapshot_epoch=0,
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=state.start_offset,
        delivery_complete_count=state.done_count,
        create_timestamp=state.created_ms,
        write_timestamp=state.written_ms,
        state_batches=[
            SnapshotBatch(
                first_offset=first,
                last_offset=last,
                delivery_state=delivery_state,
                delivery_count=delivery_count,
            )
            for first, last, delivery_state, delivery_count in state.batches
        ],
    )


def _state_of(value: ShareSnapshotValue) -> ShareState:
    try:
        batches = tuple(
            StateBatch(
                batch.first_offset,
                batch.last_offset,
                RecordState(batch.delivery_state),
                batch.delivery_count,
            )
            for batch in value.state_batches
        )
    except ValueError as error:
        raise DecodeError(str(error), "ShareSnapshotValue") from None
    return ShareState(
        value.state_epoch,
        value.leader_epoch,
        value.start_offset,
        batches,
        value.create_timestamp,
        value.write_timestamp,
    )
