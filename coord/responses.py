"""Responses to JoinGroup and SyncGroup."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.api.join_group import JoinGroupResponse, JoinGroupResponseMember
from ottla.protocol.api.sync_group import SyncGroupResponse
from ottla.protocol.errors import ErrorCode

from .member import Member

if TYPE_CHECKING:
    from .group import Group


def join_error(code: ErrorCode, member_id: str = "") -> JoinGroupResponse:
    """Return the response to a JoinGroup that fails."""
    return JoinGroupResponse(error_code=code, member_id=member_id, protocol_name="")


def join_response(
    group: Group, member: Member, *, leader: str | None = None, skip_assignment: bool = False
) -> JoinGroupResponse:
    """Return the response to a member of the current generation.

    The leader's lists all members. `leader` overrides who that is, for this response only.
    """
    leader = leader or group.leader or ""
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        leader=leader,
        skip_assignment=skip_assignment,
        member_id=member.id,
        members=[
            JoinGroupResponseMember(
                member_id=other.id,
                group_instance_id=other.instance_id,
                metadata=other.metadata(group.protocol),
            )
            for other in group.members.values()
        ]
        if leader == member.id
        else (),
    )


def sync_response(group: Group, member: Member) -> SyncGroupResponse:
    """Return the response with a member's assignment."""
    return SyncGroupResponse(
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        assignment=member.assignment,
    )
