"""The embedded protocol of consumer groups: subscriptions and assignments as bytes.

Members put them into JoinGroup and SyncGroup; the broker passes them on unread.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Collection, Iterable, Sequence

from ottla.protocol.api.join_group import JoinGroupResponseMember
from ottla.protocol.compiler import codec
from ottla.protocol.consumer import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartitions,
)
from ottla.protocol.errors import DecodeError
from ottla.protocol.schema import Buffer

from ..offsets import group_by_topic
from ..types import TopicPartition
from .assignors import Member

logger = logging.getLogger(__name__)

# The versions that are written; newer ones of other clients are read as far as they are known.
# Version 2 of the subscription has all that is used.
_SUBSCRIPTION_VERSION = 2
_ASSIGNMENT_VERSION = 0
_VERSION = struct.Struct(">h")
_GENERATION = struct.Struct(">i")


def encode_subscription(
    topics: Sequence[str],
    owned: Collection[TopicPartition],
    generation_id: int,
    *,
    with_user_data: bool,
) -> bytes:
    """Encode what a member subscribes to, and the partitions that it has.

    With user data, the generation is in there too: older versions of Java's cooperative assignor
    look for it there.
    """
    message = ConsumerProtocolSubscription(
        topics=topics,
        user_data=_GENERATION.pack(generation_id) if with_user_data else None,
        owned_partitions=_topic_partitions(owned),
        generation_id=generation_id if owned else -1,
    )
    version = bytearray(_VERSION.pack(_SUBSCRIPTION_VERSION))
    encoder = codec(ConsumerProtocolSubscription, _SUBSCRIPTION_VERSION)
    return bytes(encoder.encode(message, version, []))


def decode_member(joined: JoinGroupResponseMember) -> Member:
    """Decode the subscription of a member; an invalid one counts as empty."""
    assert ConsumerProtocolSubscription.versions is not None
    try:
        view = memoryview(joined.metadata)
        version = min(_version_of(view), ConsumerProtocolSubscription.versions.last)
        decoder = codec(ConsumerProtocolSubscription, version)
        subscription, _end = decoder.decode(view, _VERSION.size)
    except DecodeError as error:
        logger.warning("invalid subscription of member %s: %s", joined.member_id, error)
        subscription = ConsumerProtocolSubscription()
    return Member(
        joined.member_id,
        frozenset(subscription.topics),
        joined.group_instance_id,
        frozenset(_flattened(subscription.owned_partitions)),
        subscription.generation_id,
    )


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """Encode the partitions that a member is assigned."""
    message = ConsumerProtocolAssignment(
        assigned_partitions=_topic_partitions(partitions), user_data=b""
    )
    version = bytearray(_VERSION.pack(_ASSIGNMENT_VERSION))
    encoder = codec(ConsumerProtocolAssignment, _ASSIGNMENT_VERSION)
    return bytes(encoder.encode(message, version, []))


def decode_assignment(data: Buffer) -> frozenset[TopicPartition]:
    """Decode an assignment; no bytes are no partitions. Raises DecodeError."""
    view = memoryview(data)
    if not view:
        return frozenset()
    _version_of(view)
    decoder = codec(ConsumerProtocolAssignment, _ASSIGNMENT_VERSION)
    assignment, _end = decoder.decode(view, _VERSION.size)
    return frozenset(_flattened(assignment.assigned_partitions))


def _version_of(view: memoryview) -> int:
    if len(view) < _VERSION.size:
        raise DecodeError(f"{len(view)} bytes are too short for a version ({_VERSION.size} bytes)")
    version = int(_VERSION.unpack_from(view)[0])
    if version < 0:
        raise DecodeError(f"Invalid version {version}")
    return version


def _topic_partitions(partitions: Iterable[TopicPartition]) -> list[TopicPartitions]:
    return [
        TopicPartitions(topic=topic, partitions=[tp.partition for tp in tps])
        for topic, tps in group_by_topic(partitions)
    ]


def _flattened(topics: Iterable[TopicPartitions]) -> Iterable[TopicPartition]:
    for topic in topics:
        for index in topic.partitions:
            yield TopicPartition(topic.topic, index)
