"""SyncGroup: fetch a member's assignment. The leader sends the assignments of all members."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ottla.coord.group_shard import MemberIdentity
from ottla.protocol.api.sync_group import SyncGroupRequest, SyncGroupResponse
from ottla.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext


_FIRST_VERSION_WITH_PROTOCOL = 5


def handle(
    broker: Broker, context: RequestContext, request: SyncGroupRequest
) -> SyncGroupResponse | asyncio.Future[SyncGroupResponse]:
    """Handle SyncGroup."""
    identity = MemberIdentity(request.member_id, request.group_instance_id, request.generation_id)
    protocol = (request.protocol_type, request.protocol_name)
    if context.version >= _FIRST_VERSION_WITH_PROTOCOL and None in protocol:
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    assignments = {each.member_id: bytes(each.assignment) for each in request.assignments}
    return broker.groups.submit(
        request.group_id,
        lambda shard, token, now: shard.sync(
            request.group_id, identity, protocol, assignments, token, now
        ),
        lambda code: SyncGroupResponse(error_code=code),
    )
