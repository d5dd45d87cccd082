"""What the responses of ShareFetch and ShareAcknowledge have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ottla.protocol.api.share_acknowledge import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    ShareAcknowledgeRequest,
)
from ottla.protocol.errors import ErrorCode

from ..requests.errors import ApiError, NotLeaderError
from .share_sessions import SessionKey

if TYPE_CHECKING:
    from ottla.coord.consumer.partitions import TopicIdPartition
    from ottla.protocol.api.share_fetch import ShareFetchRequest

    from ..broker import Broker
    from ..requests.dispatch import RequestContext

_MAX_MEMBER_ID_LENGTH = 36


def session_key(request: ShareFetchRequest | ShareAcknowledgeRequest) -> SessionKey:
    """Return whose request it is. Raises ApiError."""
    if not request.group_id:
        raise ApiError(ErrorCode.INVALID_GROUP_ID)
    if not request.member_id or len(request.member_id) > _MAX_MEMBER_ID_LENGTH:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"MemberId must have 1 to {_MAX_MEMBER_ID_LENGTH} characters",
        )
    return SessionKey(request.group_id, request.member_id)


def current_leader(broker: Broker, tp: TopicIdPartition, error: ApiError) -> LeaderIdAndEpoch:
    """Return the leader of a partition that is not led here."""
    if not isinstance(error, NotLeaderError):
        try:
            broker.topics.find_by_id(*tp)
        except ApiError as current:
            error = current
    if isinstance(error, NotLeaderError):
        return LeaderIdAndEpoch(leader_id=error.leader_id, leader_epoch=error.leader_epoch)
    return LeaderIdAndEpoch()


def node_endpoints(
    broker: Broker, context: RequestContext, leaders: Iterable[LeaderIdAndEpoch]
) -> list[NodeEndpoint]:
    """Return the endpoints of other leaders, so that clients need no Metadata request."""
    ids = {one.leader_id for one in leaders if one != LeaderIdAndEpoch()}
    return [
        NodeEndpoint(node_id=node.id, host=node.host, port=node.port)
        for node in broker.cluster.known_nodes(ids, context)
    ]
