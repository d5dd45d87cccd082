"""JoinGroup: join a group, or join it again. Answered when the rebalance completes.

Version 4 introduces MEMBER_ID_REQUIRED: a new member gets its id first.
Version 9 introduces SkipAssignment.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from uuid import uuid4

from ottla.coord.member import Join
from ottla.coord.responses import join_error
from ottla.protocol.api.join_group import JoinGroupRequest, JoinGroupResponse

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext

_FIRST_WITH_MEMBER_ID_REQUIRED = 4
_FIRST_WITH_SKIP_ASSIGNMENT = 9


def handle(
    broker: Broker, context: RequestContext, request: JoinGroupRequest
) -> JoinGroupResponse | asyncio.Future[JoinGroupResponse]:
    """Handle JoinGroup."""
    rebalance_timeout_ms = request.rebalance_timeout_ms
    join = Join(
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        client_id=context.client_id or "",
        client_host=f"/{context.connection.peer}",
        session_timeout_ms=request.session_timeout_ms,
        # Version 0 has no rebalance timeout.
        rebalance_timeout_ms=(
            request.session_timeout_ms if rebalance_timeout_ms < 0 else rebalance_timeout_ms
        ),
        protocol_type=request.protocol_type,
        protocols=tuple(
            (protocol.name, bytes(protocol.metadata)) for protocol in request.protocols
        ),
        unique=str(uuid4()),
        requires_known_id=context.version >= _FIRST_WITH_MEMBER_ID_REQUIRED,
        can_skip_assignment=context.version >= _FIRST_WITH_SKIP_ASSIGNMENT,
    )
    return broker.groups.submit(
        request.group_id,
        lambda shard, token, now: shard.join(request.group_id, join, token, now),
        lambda code: join_error(code, request.member_id),
    )
