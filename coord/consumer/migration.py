"""A group changes its protocol: from classic to consumer, and back, with its members and offsets.

An upgrade keeps generation and assignments: the generation becomes the epoch of the group and of
its members. They remain members of the classic protocol until each restarts with the other one. A
downgrade turns the epoch into the generation, and starts a rebalance.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from ottla.protocol.compiler import codec
from ottla.protocol.consumer import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from ottla.protocol.consumer import TopicPartitions as NamedPartitions
from ottla.protocol.errors import DecodeError, ErrorCode
from ottla.protocol.schema import Buffer

from ..config import MigrationPolicy
from ..errors import GroupError
from ..metadata_image import MetadataImage
from ..records import GroupMetadataValue, GroupRecord, encode_versioned
from ..records import MemberMetadata as ClassicMemberRecord
from .group import ConsumerGroup, Draft
from .member import ClassicMember, ConsumerMember, CurrentAssignment, MemberMetadata
from .partitions import Partitions, TopicIdPartition, by_topic

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..group import Group
    from ..member import Member

_VERSION = Struct(">h")
_ASSIGNMENT_VERSION = 0
#: Client-side assignors that do without the user data of assignments; librdkafka sends some.
_KNOWN_ASSIGNORS = frozenset({"range", "roundrobin", "sticky", "cooperative-sticky"})


def upgraded(group: Group, policy: MigrationPolicy, image: MetadataImage, time_ms: int) -> Draft:
    """Return the consumer group that a classic group becomes. Raises GroupError.

    The draft is empty for a group without members and generation.
    """
    draft = Draft(ConsumerGroup(group.id))
    if not group.members:
        if group.generation > 0:
            draft.set_epoch(group.generation, 0)
        return draft
    if not policy.upgrades:
        raise _not_upgradable(group, "group.consumer.migration.policy does not allow it")
    if group.protocol_type != "consumer":
        raise _not_upgradable(group, f"its protocol type is {group.protocol_type!r}")
    epoch = max(group.generation, 1)
    held: set[TopicIdPartition] = set()
    assignments: dict[str, Partitions] = {}
    for member in group.members.values():
        try:
            metadata = _metadata_of(member)
            assigned = _parse_assignment(member.assignment, image, group.protocol)
        except DecodeError as error:
            raise _not_upgradable(group, f"member {member.id} sent what {error}") from None
        draft.set_metadata(member.id, metadata)
        assignments[member.id] = assigned - held
        held |= assigned
    draft.set_epoch(epoch, draft.group.hash_topics(image))
    draft.set_targets(assignments, epoch, time_ms)
    for member_id, assigned in assignments.items():
        current = CurrentAssignment(epoch, epoch, assigned=dict.fromkeys(assigned, epoch))
        draft.set_current(member_id, current)
    return draft


def downgraded(
    group: ConsumerGroup, protocol: str, image: MetadataImage, time_ms: int
) -> GroupRecord:
    """Return the record of the classic group that a group of classic members becomes."""
    members = []
    for member in group.members.values():
        metadata = member.metadata
        assert metadata.classic is not None
        members.append(
            ClassicMemberRecord(
                member_id=member.id,
                group_instance_id=metadata.instance_id,
                client_id=metadata.client_id,
                client_host=metadata.client_host,
                rebalance_timeout=metadata.rebalance_timeout_ms,
                session_timeout=metadata.classic.session_timeout_ms,
                subscription=dict(metadata.classic.protocols).get(protocol, b""),
                assignment=encode_assignment(member.current.assigned, image),
            )
        )
    return GroupRecord(
        group.id,
        GroupMetadataValue(
            protocol_type="consumer",
            generation=group.epoch,
            protocol=protocol,
            leader=members[0].member_id,
            current_state_timestamp=time_ms,
            members=members,
        ),
    )


def common_protocols(members: Iterable[ConsumerMember]) -> list[str]:
    """Return the protocols that all classic members support, as the first one prefers them."""
    supported = [
        [name for name, _metadata in member.metadata.classic.protocols]
        for member in members
        if member.metadata.classic is not None
    ]
    if not supported:
        return []
    return [name for name in supported[0] if all(name in names for names in supported)]


class Subscription:
    """What the metadata of a classic member says. Raises DecodeError."""

    def __init__(self, metadata: bytes) -> None:
        versions = ConsumerProtocolSubscription.versions
        assert versions is not None
        version = min(_version_of(metadata), versions.last)
        decoded, _end = codec(ConsumerProtocolSubscription, version).decode(
            memoryview(metadata), _VERSION.size
        )
        self.topics: tuple[str, ...] = tuple(sorted(set(decoded.topics)))
        self.rack_id: str | None = decoded.rack_id
        self._owned = decoded.owned_partitions

    def owned(self, image: MetadataImage) -> Partitions:
        """Return the partitions that the member has."""
        return _partitions(self._owned, image)


def encode_assignment(assigned: Iterable[TopicIdPartition], image: MetadataImage) -> bytes:
    """Encode partitions as SyncGroup responses have them."""
    topics = image.topics_by_id
    message = ConsumerProtocolAssignment(
        assigned_partitions=[
            NamedPartitions(topic=topics[topic_id].name, partitions=indexes)
            for topic_id, indexes in by_topic(assigned).items()
            if topic_id in topics
        ],
        user_data=None,
    )
    return encode_versioned(message, _ASSIGNMENT_VERSION)


def _metadata_of(member: Member) -> MemberMetadata:
    """Return the metadata of a classic member. Raises DecodeError."""
    protocols = member.protocols
    subscription = Subscription(protocols[0][1]) if protocols else None
    return MemberMetadata(
        member.instance_id,
        None if subscription is None else subscription.rack_id,
        member.client_id,
        member.client_host,
        () if subscription is None else subscription.topics,
        None,
        member.rebalance_timeout_ms,
        None,
        ClassicMember(member.session_timeout_ms, protocols),
    )


def _parse_assignment(data: bytes, image: MetadataImage, protocol: str | None) -> Partitions:
    if not data:
        return frozenset()
    versions = ConsumerProtocolAssignment.versions
    assert versions is not None
    version = min(_version_of(data), versions.last)
    decoded, _end = codec(ConsumerProtocolAssignment, version).decode(
        memoryview(data), _VERSION.size
    )
    if decoded.user_data and protocol not in _KNOWN_ASSIGNORS:
        raise DecodeError("has user data: only the member's own assignor understands that")
    return _partitions(decoded.assigned_partitions, image)


def _partitions(topics: Iterable[NamedPartitions], image: MetadataImage) -> Partitions:
    return frozenset(
        TopicIdPartition(image.topics[topic.topic].id, index)
        for topic in topics
        if topic.topic in image.topics
        for index in topic.partitions
    )


def _version_of(data: Buffer) -> int:
    if len(data) < _VERSION.size:
        raise DecodeError(f"has {len(data)} bytes, too few for a version")
    version = int(_VERSION.unpack_from(data)[0])
    if version < 0:
        raise DecodeError(f"has the invalid version {version}")
    return version


def _not_upgradable(group: Group, why: str) -> GroupError:
    return GroupError(
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Group {group.id!r} has members of the classic protocol and cannot be upgraded: {why}",
    )
