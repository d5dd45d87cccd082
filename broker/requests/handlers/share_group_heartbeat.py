"""ShareGroupHeartbeat: join, stay in or leave a share group (KIP-932)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ottla.coord.share.coordinator import ShareHeartbeat, share_heartbeat_error
from ottla.protocol.api.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from ottla.protocol.errors import ErrorCode

from ..authorization import DENIED, DESCRIBE, TOPIC, allows

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext


def handle(
    broker: Broker, context: RequestContext, request: ShareGroupHeartbeatRequest
) -> ShareGroupHeartbeatResponse | asyncio.Future[ShareGroupHeartbeatResponse]:
    """Handle ShareGroupHeartbeat."""
    for name, value in (("GroupId", request.group_id), ("RackId", request.rack_id)):
        if value == "":
            return share_heartbeat_error(ErrorCode.INVALID_REQUEST, f"{name} must not be empty")
    topics = request.subscribed_topic_names
    for name in topics or ():
        if not allows(broker, context, DESCRIBE, TOPIC, name):
            return share_heartbeat_error(DENIED[TOPIC])
    heartbeat = ShareHeartbeat(
        group_id=request.group_id,
        member_id=request.member_id,
        epoch=request.member_epoch,
        client_id=context.client_id or "",
        client_host=f"/{context.connection.peer}",
        rack_id=request.rack_id,
        topics=None if topics is None else tuple(topics),
    )
    return broker.groups.submit(
        request.group_id,
        lambda shard, token, now: shard.share_heartbeat(heartbeat, token, now),
        share_heartbeat_error,
    )
