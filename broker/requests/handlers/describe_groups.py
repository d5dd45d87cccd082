"""DescribeGroups: the state of groups, their members and assignments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.coord.group import Group
from ottla.coord.states import GroupState
from ottla.protocol.api.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from ottla.protocol.errors import ErrorCode

from ..authorization import DESCRIBE, GROUP, NOT_REQUESTED, allows, authorized_operations

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext


_FIRST_WITH_ERROR_MESSAGE = 6


def handle(
    broker: Broker, context: RequestContext, request: DescribeGroupsRequest
) -> DescribeGroupsResponse:
    """Handle DescribeGroups."""
    includes_operations = request.include_authorized_operations
    groups = [
        _describe(broker, context, group_id, includes_operations=includes_operations)
        for group_id in request.groups
    ]
    return DescribeGroupsResponse(groups=groups)


def _describe(
    broker: Broker, context: RequestContext, group_id: str, *, includes_operations: bool
) -> DescribedGroup:
    if not allows(broker, context, DESCRIBE, GROUP, group_id):
        return DescribedGroup(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED, group_id=group_id)
    operations = authorized_operations(
        broker, context, GROUP, group_id, is_requested=includes_operations
    )
    code = broker.groups.check_existence(group_id) if group_id else ErrorCode.INVALID_GROUP_ID
    group = broker.groups.group(group_id)
    if group is None or group.type != "classic" or code is not ErrorCode.NONE:
        # Up to version 5, a group that is not a classic one is Dead, not an error.
        state, message = "", None
        if code is ErrorCode.NONE:
            state = GroupState.DEAD.value
            if context.version >= _FIRST_WITH_ERROR_MESSAGE:
                code = ErrorCode.GROUP_ID_NOT_FOUND
                is_other = group is not None and group.type != "classic"
                why = "is not a classic group" if is_other else "not found"
                message = f"Group {group_id} {why}."
        return DescribedGroup(
            error_code=code,
            error_message=message,
            group_id=group_id,
            group_state=state,
            authorized_operations=operations if code is ErrorCode.NONE else NOT_REQUESTED,
        )
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol or "") if group.state is GroupState.STABLE else "",
        members=_members(group),
        authorized_operations=operations,
    )


def _members(group: Group) -> list[DescribedGroupMember]:
    is_stable = group.state is GroupState.STABLE
    return [
        DescribedGroupMember(
            member_id=member.id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.metadata(group.protocol) if is_stable else b"",
            member_assignment=member.assignment if is_stable else b"",
        )
        for member in group.members.values()
    ]
