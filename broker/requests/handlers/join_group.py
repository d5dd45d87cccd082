"""JoinGroup: become a member of a group, or stay one. Answered when the group has gathered."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from uuid import uuid4

from ottla.coord.group import refused_join
from ottla.coord.member import Join
from ottla.protocol.api.join_group import JoinGroupRequest, JoinGroupResponse

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext

_FIRST_WITH_KNOWN_IDS = 4
_FIRST_WITH_SKIPPED_ASSIGNMENT = 9


def handle(
    broker: Broker, context: RequestContext, request: JoinGroupRequest
) -> JoinGroupResponse | asyncio.Future[JoinGroupResponse]:
    """Answer JoinGroup."""
    rebalance_timeout_ms = request.rebalance_timeout_ms
    join = Join(
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        client_id=context.client_id or "",
        client_host=f"/{context.connection.peer}",
        session_timeout_ms=request.session_timeout_ms,
        # Version 0 does not say.
        rebalance_timeout_ms=(
            request.session_timeout_ms if rebalance_timeout_ms < 0 else rebalance_timeout_ms
        ),
        protocol_type=request.protocol_type,
        protocols=tuple((offer.name, bytes(offer.metadata)) for offer in request.protocols),
        unique=str(uuid4()),
        requires_known_id=context.version >= _FIRST_WITH_KNOWN_IDS,
        can_skip_assignment=context.version >= _FIRST_WITH_SKIPPED_ASSIGNMENT,
    )
    groups = broker.groups
    return groups.ask(
        request.group_id,
        lambda token, now: groups.coordinator.join(request.group_id, join, token, now),
        lambda code: refused_join(code, request.member_id),
    )
