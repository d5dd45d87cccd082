"""LeaveGroup: members go, or are removed. One in old versions, several since 3."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ottla.protocol.api.leave_group import LeaveGroupRequest, LeaveGroupResponse

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext

_FIRST_WITH_MANY = 3


def handle(
    broker: Broker, context: RequestContext, request: LeaveGroupRequest
) -> LeaveGroupResponse | asyncio.Future[LeaveGroupResponse]:
    """Answer LeaveGroup."""
    groups = broker.groups
    members: list[tuple[str, str | None]] = [(request.member_id, None)]
    if context.version >= _FIRST_WITH_MANY:
        members = [(member.member_id, member.group_instance_id) for member in request.members]
    answer = groups.ask(
        request.group_id,
        lambda token, now: groups.coordinator.leave(request.group_id, members, token, now),
        lambda code: LeaveGroupResponse(error_code=code),
    )
    if context.version >= _FIRST_WITH_MANY:
        return answer
    # A leave is answered at once, and old versions have one error for the one member.
    assert isinstance(answer, LeaveGroupResponse)
    code = answer.members[0].error_code if answer.members else answer.error_code
    return LeaveGroupResponse(error_code=code)
