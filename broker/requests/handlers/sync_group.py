"""SyncGroup: get one's assignment; from the leader, hand in everybody's."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ottla.coord.group_shard import MemberIdentity
from ottla.protocol.api.sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext


def handle(
    broker: Broker, _context: RequestContext, request: SyncGroupRequest
) -> SyncGroupResponse | asyncio.Future[SyncGroupResponse]:
    """Answer SyncGroup."""
    groups = broker.groups
    identity = MemberIdentity(request.member_id, request.group_instance_id, request.generation_id)
    protocol = (request.protocol_type, request.protocol_name)
    assignments = {given.member_id: bytes(given.assignment) for given in request.assignments}
    return groups.ask(
        request.group_id,
        lambda token, now: groups.coordinator.sync(
            request.group_id, identity, protocol, assignments, token, now
        ),
        lambda code: SyncGroupResponse(error_code=code),
    )
