"""DeleteGroups: groups without members go, with all that they have committed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ottla.coord.effects import Reply
from ottla.protocol.api.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from ottla.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext


def handle(
    broker: Broker, _context: RequestContext, request: DeleteGroupsRequest
) -> DeleteGroupsResponse | asyncio.Future[DeleteGroupsResponse]:
    """Answer DeleteGroups."""
    groups = broker.groups
    refused = {
        name: code for name in request.groups_names if (code := groups.check_existence(name))
    }
    future: asyncio.Future[DeleteGroupsResponse] = asyncio.get_running_loop().create_future()

    def finish(codes: dict[str, ErrorCode]) -> Reply:
        return Reply(future, _response({**codes, **refused}))

    wanted = [name for name in request.groups_names if name not in refused]
    groups.run(groups.coordinator.delete_groups(wanted, finish))
    return future.result() if future.done() else future


def _response(codes: dict[str, ErrorCode]) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=[
            DeletableGroupResult(group_id=name, error_code=code) for name, code in codes.items()
        ]
    )
