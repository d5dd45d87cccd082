"""LeaveGroup: remove members from a group. One before version 3, several since."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ottla.protocol.api.leave_group import LeaveGroupRequest, LeaveGroupResponse

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext

_FIRST_WITH_MEMBERS = 3


def handle(
    broker: Broker, context: RequestContext, request: LeaveGroupRequest
) -> LeaveGroupResponse | asyncio.Future[LeaveGroupResponse]:
    """Handle LeaveGroup."""
    members: list[tuple[str, str | None]] = [(request.member_id, None)]
    if context.version >= _FIRST_WITH_MEMBERS:
        members = [(member.member_id, member.group_instance_id) for member in request.members]
    response = broker.groups.submit(
        request.group_id,
        lambda shard, token, now: shard.leave(request.group_id, members, token, now),
        lambda code: LeaveGroupResponse(error_code=code),
    )
    if context.version >= _FIRST_WITH_MEMBERS:
        return response
    # A leave never waits, and old versions have one error for the one member.
    assert isinstance(response, LeaveGroupResponse)
    code = response.members[0].error_code if response.members else response.error_code
    return LeaveGroupResponse(error_code=code)
