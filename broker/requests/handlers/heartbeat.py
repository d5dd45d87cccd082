"""Heartbeat: keep a member's session alive, and learn whether its group is rebalancing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ottla.coord.group_shard import MemberIdentity
from ottla.protocol.api.heartbeat import HeartbeatRequest, HeartbeatResponse

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext


def handle(
    broker: Broker, _context: RequestContext, request: HeartbeatRequest
) -> HeartbeatResponse | asyncio.Future[HeartbeatResponse]:
    """Handle Heartbeat."""
    identity = MemberIdentity(request.member_id, request.group_instance_id, request.generation_id)
    return broker.groups.submit(
        request.group_id,
        lambda shard, token, now: shard.heartbeat(request.group_id, identity, token, now),
        lambda code: HeartbeatResponse(error_code=code),
    )
