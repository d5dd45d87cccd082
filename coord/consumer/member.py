"""A member of a consumer group: what it subscribes to, and the partitions that it has.

Members are immutable: a record that is replayed replaces one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple

from ..member import Protocols
from .partitions import TopicIdPartition, by_topic
from .records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberValue,
    ConsumerGroupMemberMetadataValue,
    CurrentTopicPartitions,
)

#: Epochs of requests: join, leave, and leave as a static member that is expected to return.
JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_STATIC_EPOCH = -2

#: Estimated memory of a member, and of a partition that it has.
_MEMBER_BYTES = 2048
PARTITION_BYTES = 250


class MemberState(IntEnum):
    """How far a member is with its target assignment; numbers of the records."""

    STABLE = 0
    """It has all partitions of the target."""

    UNREVOKED_PARTITIONS = 1
    """It has to revoke partitions before its epoch rises."""

    UNRELEASED_PARTITIONS = 2
    """It waits for partitions that other members have not released yet."""


class ClassicMember(NamedTuple):
    """What only a member of the classic protocol has."""

    session_timeout_ms: int
    protocols: Protocols


class MemberMetadata(NamedTuple):
    """Who a member is, and what it subscribes to."""

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    #: None, or an expression that the whole name of a topic has to match.
    regex: str | None
    rebalance_timeout_ms: int
    #: The assignor that it prefers; None: no preference.
    assignor: str | None
    #: None for a member of the consumer protocol.
    classic: ClassicMember | None = None

    def has_subscription_of(self, other: MemberMetadata) -> bool:
        """Whether both subscribe to the same topics."""
        return self.regex == other.regex and (
            self.topics == other.topics or set(self.topics) == set(other.topics)
        )

    @property
    def size_bytes(self) -> int:
        """The estimated memory of the member."""
        protocols = () if self.classic is None else self.classic.protocols
        return (
            _MEMBER_BYTES
            + sum(60 + len(topic) for topic in self.topics)
            + sum(100 + len(name) + len(data) for name, data in protocols)
            + len(self.client_id)
            + len(self.regex or "")
        )

    @classmethod
    def from_record(cls, value: ConsumerGroupMemberMetadataValue) -> MemberMetadata:
        """Return what a record says."""
        classic = value.classic_member_metadata
        return cls(
            value.instance_id,
            value.rack_id,
            value.client_id,
            value.client_host,
            tuple(value.subscribed_topic_names),
            value.subscribed_topic_regex or None,
            value.rebalance_timeout_ms,
            value.server_assignor,
            None
            if classic is None
            else ClassicMember(
                classic.session_timeout_ms,
                tuple((one.name, bytes(one.metadata)) for one in classic.supported_protocols),
            ),
        )

    def to_record(self) -> ConsumerGroupMemberMetadataValue:
        """Return the value of the member's record."""
        return ConsumerGroupMemberMetadataValue(
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            subscribed_topic_names=list(self.topics),
            subscribed_topic_regex=self.regex,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            server_assignor=self.assignor,
            classic_member_metadata=None
            if self.classic is None
            else ClassicMemberMetadata(
                session_timeout_ms=self.classic.session_timeout_ms,
                supported_protocols=[
                    ClassicProtocol(name=name, metadata=data)
                    for name, data in self.classic.protocols
                ],
            ),
        )


@dataclass(frozen=True, slots=True)
class CurrentAssignment:
    """The partitions that a member has, by the epoch in which it was assigned them."""

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Mapping[TopicIdPartition, int] = field(default_factory=dict)
    #: Partitions that the member was told to revoke, and may still have.
    pending_revocation: Mapping[TopicIdPartition, int] = field(default_factory=dict)

    @property
    def held(self) -> Set[TopicIdPartition]:
        """The partitions that no other member may be assigned."""
        if not self.pending_revocation:
            return self.assigned.keys()
        return self.assigned.keys() | self.pending_revocation.keys()

    @classmethod
    def from_record(cls, value: ConsumerGroupCurrentMemberValue) -> CurrentAssignment:
        """Return what a record says."""
        epoch = value.member_epoch
        return cls(
            epoch,
            value.previous_member_epoch,
            MemberState(value.state),
            _parse_partitions(value.assigned_partitions, epoch),
            _parse_partitions(value.partitions_pending_revocation, epoch),
        )

    def to_record(self) -> ConsumerGroupCurrentMemberValue:
        """Return the value of the member's record."""
        return ConsumerGroupCurrentMemberValue(
            member_epoch=self.epoch,
            previous_member_epoch=self.previous_epoch,
            state=self.state,
            assigned_partitions=_partition_messages(self.assigned),
            partitions_pending_revocation=_partition_messages(self.pending_revocation),
        )


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """A member of a consumer group."""

    id: str
    metadata: MemberMetadata
    current: CurrentAssignment = field(default_factory=CurrentAssignment)

    @property
    def instance_id(self) -> str | None:
        """The id of a static member, which survives its restarts."""
        return self.metadata.instance_id

    @property
    def is_classic(self) -> bool:
        """Whether it uses the classic protocol."""
        return self.metadata.classic is not None

    def with_metadata(self, metadata: MemberMetadata) -> ConsumerMember:
        """Return the member with another subscription."""
        return replace(self, metadata=metadata)

    def with_current(self, current: CurrentAssignment) -> ConsumerMember:
        """Return the member with other partitions."""
        return replace(self, current=current)


def _parse_partitions(
    topics: Iterable[CurrentTopicPartitions], member_epoch: int
) -> dict[TopicIdPartition, int]:
    """Return partitions with their epochs. Records of older versions have none: the member's."""
    return {
        TopicIdPartition(topic.topic_id, index): epoch
        for topic in topics
        for index, epoch in zip(
            topic.partitions,
            topic.assignment_epochs or [member_epoch] * len(topic.partitions),
            strict=False,
        )
    }


def _partition_messages(partitions: Mapping[TopicIdPartition, int]) -> list[CurrentTopicPartitions]:
    return [
        CurrentTopicPartitions(
            topic_id=topic_id,
            partitions=indexes,
            assignment_epochs=[partitions[TopicIdPartition(topic_id, index)] for index in indexes],
        )
        for topic_id, indexes in by_topic(partitions).items()
    ]
