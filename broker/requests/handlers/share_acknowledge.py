"""ShareAcknowledge: acknowledge records of share partitions (KIP-932).

The response is sent when the acknowledgements are stored. With epoch -1 it closes the share
session: what the member has acquired, and not acknowledged, becomes available to others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from ottla.coord.consumer.partitions import TopicIdPartition
from ottla.protocol.api.share_acknowledge import (
    LeaderIdAndEpoch,
    PartitionData,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
)
from ottla.protocol.errors import ErrorCode

from ...shares.acknowledgements import Outcome, acknowledge_in_slices, error_of
from ...shares.responses import current_leader, node_endpoints, session_key
from ...shares.share_sessions import CLOSE, OPEN, SessionKey
from ..errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping
    from typing import Any

    from ...broker import Broker
    from ..dispatch import RequestContext


def handle(
    broker: Broker, context: RequestContext, request: ShareAcknowledgeRequest
) -> ShareAcknowledgeResponse | Coroutine[Any, Any, ShareAcknowledgeResponse]:
    """Handle ShareAcknowledge."""
    shares, epoch = broker.shares, request.share_session_epoch
    try:
        key = session_key(request)
        if epoch == OPEN:
            raise ApiError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        if epoch == CLOSE:
            shares.sessions.close(key, context.connection)
        else:
            shares.sessions.next(key, epoch, context.connection)
    except ApiError as error:
        return ShareAcknowledgeResponse(error_code=error.code, error_message=str(error))
    return _acknowledge(broker, context, key, request)


async def _acknowledge(
    broker: Broker, context: RequestContext, key: SessionKey, request: ShareAcknowledgeRequest
) -> ShareAcknowledgeResponse:
    outcomes = await acknowledge_in_slices(
        broker,
        context,
        key,
        request.topics,
        is_renew_ack=request.is_renew_ack,
    )
    if request.share_session_epoch == CLOSE:
        broker.shares.release(key)
    lock_duration_ms = broker.shares.config_of(key.group_id).lock_duration_ms
    return await _respond(broker, context, lock_duration_ms, outcomes)


async def _respond(
    broker: Broker,
    context: RequestContext,
    lock_duration_ms: int,
    outcomes: Mapping[TopicIdPartition, Outcome],
) -> ShareAcknowledgeResponse:
    topics: dict[UUID, list[PartitionData]] = {}
    for tp, outcome in outcomes.items():
        error = await error_of(outcome)
        leader = LeaderIdAndEpoch()
        if error is not None and error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            leader = current_leader(broker, tp, error)
        topics.setdefault(tp.topic_id, []).append(
            PartitionData(
                partition_index=tp.partition,
                error_code=ErrorCode.NONE if error is None else error.code,
                error_message=None if error is None else str(error),
                current_leader=leader,
            )
        )
    leaders = (one.current_leader for partitions in topics.values() for one in partitions)
    return ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=lock_duration_ms,
        responses=[
            ShareAcknowledgeTopicResponse(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in topics.items()
        ],
        node_endpoints=node_endpoints(broker, context, leaders),
    )
