"""ListGroups: the groups that this broker coordinates, filtered by state and type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.api.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from ottla.protocol.errors import ErrorCode

from ..authorization import CLUSTER, DESCRIBE, GROUP, allows

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext


def handle(
    broker: Broker, context: RequestContext, request: ListGroupsRequest
) -> ListGroupsResponse:
    """Handle ListGroups."""
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if broker.groups.is_loading else ErrorCode.NONE
    may_see_all = allows(broker, context, DESCRIBE, CLUSTER, logs=False)
    return ListGroupsResponse(
        error_code=code,
        groups=[
            ListedGroup(
                group_id=group.id,
                protocol_type=group.protocol_type or "",
                group_state=group.state.value,
                group_type=group.type,
            )
            for group in broker.groups.groups()
            if (not states or group.state.value.lower() in states)
            and (not types or group.type in types)
            and (may_see_all or allows(broker, context, DESCRIBE, GROUP, group.id, logs=False))
        ],
    )
