"""FindCoordinator: the broker that coordinates a group. The first request creates the topic.

One key before version 4, several since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.api.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from ottla.protocol.errors import ErrorCode

from ..errors import EXPECTED_ERRORS

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext

_GROUP = 0
_TRANSACTION = 1
_FIRST_WITH_KEYS = 4


async def handle(
    broker: Broker, context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    """Handle FindCoordinator."""
    keys = request.coordinator_keys if context.version >= _FIRST_WITH_KEYS else [request.key]
    code = ErrorCode.NONE
    if request.key_type == _TRANSACTION:
        # Transactions are not supported. Clients retry most errors; this one is final.
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    elif request.key_type != _GROUP:
        code = ErrorCode.INVALID_REQUEST
    else:
        try:
            await _ensure_topic(broker)
        except EXPECTED_ERRORS:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    coordinators = [_find(broker, context, key, code) for key in keys]
    if context.version >= _FIRST_WITH_KEYS:
        return FindCoordinatorResponse(coordinators=coordinators)
    (coordinator,) = coordinators
    return FindCoordinatorResponse(
        error_code=coordinator.error_code,
        error_message=coordinator.error_message,
        node_id=coordinator.node_id,
        host=coordinator.host,
        port=coordinator.port,
    )


async def _ensure_topic(broker: Broker) -> None:
    if broker.cluster.is_controller:
        await broker.groups.ensure_topic()
    elif not broker.groups.has_topic:
        # The controller creates the topic, and answers once this broker has it.
        await broker.controller_channel.send(
            FindCoordinatorRequest(key="any"),
            FindCoordinatorResponse,
            version=_FIRST_WITH_KEYS - 1,
        )


def _find(broker: Broker, context: RequestContext, key: str, code: ErrorCode) -> Coordinator:
    broker_id = -1
    if code is ErrorCode.NONE and not key:
        code = ErrorCode.INVALID_GROUP_ID
    if code is ErrorCode.NONE:
        broker_id = broker.groups.coordinator_of(key)
        if broker_id not in broker.cluster.alive:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    if code is not ErrorCode.NONE:
        return Coordinator(
            key=key, node_id=-1, host="", port=-1, error_code=code, error_message=code.message
        )
    node = broker.cluster.node(broker_id, context)
    return Coordinator(key=key, node_id=node.id, host=node.host, port=node.port, error_message=None)
