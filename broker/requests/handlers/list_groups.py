"""ListGroups: the groups that this broker coordinates, filtered by state and type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.api.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from ottla.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext

#: The only group type that is supported.
_CLASSIC = "classic"


def handle(
    broker: Broker, _context: RequestContext, request: ListGroupsRequest
) -> ListGroupsResponse:
    """Handle ListGroups."""
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if broker.groups.is_loading else ErrorCode.NONE
    if types and _CLASSIC not in types:
        return ListGroupsResponse()
    return ListGroupsResponse(
        error_code=code,
        groups=[
            ListedGroup(
                group_id=group.id,
                protocol_type=group.protocol_type or "",
                group_state=group.state.value,
                group_type=_CLASSIC,
            )
            for group in broker.groups.groups()
            if not states or group.state.value.lower() in states
        ],
    )
