"""OffsetCommit: commit the offsets of a group. Acknowledged once they are in the log.

Version 9 introduces GROUP_ID_NOT_FOUND; before it is ILLEGAL_GENERATION.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container
from typing import TYPE_CHECKING

from ottla.coord.effects import Reply
from ottla.coord.group_shard import MemberIdentity, PartitionErrors
from ottla.coord.metadata_image import TopicPartition
from ottla.coord.records import CommittedOffset
from ottla.protocol.api.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.protocol.errors import ErrorCode

from ..authorization import DENIED, GROUP, READ, TOPIC, allows

if TYPE_CHECKING:
    from ottla.protocol.api.txn_offset_commit import TxnOffsetCommitRequest

    from ...broker import Broker
    from ..dispatch import RequestContext


def handle(
    broker: Broker, context: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse | asyncio.Future[OffsetCommitResponse]:
    """Handle OffsetCommit."""
    group_id = request.group_id
    if not group_id:
        return _response(request, {}, ErrorCode.INVALID_GROUP_ID)
    if not allows(broker, context, READ, GROUP, group_id):
        return _response(request, {}, DENIED[GROUP])
    denied = denied_partitions(broker, context, request)
    identity = MemberIdentity(
        request.member_id, request.group_instance_id, request.generation_id_or_member_epoch
    )
    offsets = offsets_of_existing_partitions(broker, request, denied)
    return broker.groups.submit(
        group_id,
        lambda shard, token, now: shard.commit(
            group_id,
            identity,
            offsets,
            lambda codes: Reply(token, _response(request, {**codes, **denied})),
            now,
            version=context.version,
        ),
        lambda code: _response(request, {}, code),
    )


def denied_partitions(
    broker: Broker,
    context: RequestContext,
    request: OffsetCommitRequest | TxnOffsetCommitRequest,
) -> dict[TopicPartition, ErrorCode]:
    """Return the partitions of topics that the client may not read, with the error."""
    if broker.authorizer is None:
        return {}
    return {
        TopicPartition(topic.name, partition.partition_index): DENIED[TOPIC]
        for topic in request.topics
        if not allows(broker, context, READ, TOPIC, topic.name)
        for partition in topic.partitions
    }


def offsets_of_existing_partitions(
    broker: Broker,
    request: OffsetCommitRequest | TxnOffsetCommitRequest,
    denied: Container[TopicPartition] = (),
) -> dict[TopicPartition, CommittedOffset]:
    """Return the offsets to commit, without those of partitions that are denied or do not exist."""
    time_ms = broker.now_ms()
    image = broker.topics.image
    return {
        TopicPartition(topic.name, partition.partition_index): CommittedOffset(
            partition.committed_offset,
            partition.committed_leader_epoch,
            partition.committed_metadata or "",
            time_ms,
            image.topics[topic.name].id,
        )
        for topic in request.topics
        for partition in topic.partitions
        if image.has_partition(topic.name, partition.partition_index)
        and (topic.name, partition.partition_index) not in denied
    }


def _response(
    request: OffsetCommitRequest,
    codes: PartitionErrors,
    default: ErrorCode = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=codes.get(
                            TopicPartition(topic.name, partition.partition_index), default
                        ),
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
