"""OffsetCommit: write down how far a group has come. What is acked is in the log."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ottla.coord.effects import Effect, Reply
from ottla.coord.group import Now
from ottla.coord.group_shard import Codes, MemberIdentity, TopicPartition
from ottla.coord.records import CommittedOffset
from ottla.protocol.api.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext

_FIRST_WITH_MISSING_GROUPS = 9


def handle(
    broker: Broker, context: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse | asyncio.Future[OffsetCommitResponse]:
    """Answer OffsetCommit."""
    groups, group_id = broker.groups, request.group_id
    if not group_id:
        return _response(request, {}, ErrorCode.INVALID_GROUP_ID)
    identity = MemberIdentity(
        request.member_id, request.group_instance_id, request.generation_id_or_member_epoch
    )
    offsets = _known(broker, request)

    def event(token: asyncio.Future[OffsetCommitResponse], now: Now) -> list[Effect]:
        return groups.coordinator.commit(
            group_id,
            identity,
            offsets,
            lambda codes: Reply(token, _response(request, codes)),
            now,
            knows_missing_groups=context.version >= _FIRST_WITH_MISSING_GROUPS,
        )

    return groups.ask(group_id, event, lambda code: _response(request, {}, code))


def _known(broker: Broker, request: OffsetCommitRequest) -> dict[TopicPartition, CommittedOffset]:
    """Give what is committed of partitions that there are."""
    time_ms = broker.now_ms()
    topics = broker.topics.image.topics
    found = {}
    for wanted in request.topics:
        topic = topics.get(wanted.name)
        for partition in wanted.partitions:
            if topic is None or not 0 <= partition.partition_index < len(topic.replicas):
                continue
            found[wanted.name, partition.partition_index] = CommittedOffset(
                partition.committed_offset,
                partition.committed_leader_epoch,
                partition.committed_metadata or "",
                time_ms,
            )
    return found


def _response(
    request: OffsetCommitRequest,
    codes: Codes,
    otherwise: ErrorCode = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=codes.get((topic.name, partition.partition_index), otherwise),
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
