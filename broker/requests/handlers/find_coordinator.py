"""FindCoordinator: the broker that coordinates a group or a transactional id.

The first request of each kind creates the topic of the coordinators.

One key before version 4, several since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.protocol.api.find_coordinator import Coordinator as FoundCoordinator
from ottla.protocol.api.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.errors import ErrorCode

from ..authorization import DENIED, DESCRIBE, GROUP, TRANSACTIONAL_ID, allows, is_broker
from ..errors import EXPECTED_ERRORS

if TYPE_CHECKING:
    from ...broker import Broker
    from ...coordinators.coordinator import Coordinator
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
    coordinator: Coordinator[Any] = broker.groups
    if request.key_type == _TRANSACTION:
        coordinator = broker.transactions
    elif request.key_type != _GROUP:
        code = ErrorCode.INVALID_REQUEST
    denied: set[str] = set()
    kind = GROUP if coordinator is broker.groups else TRANSACTIONAL_ID
    if code is ErrorCode.NONE and not is_broker(broker, context):
        denied = {key for key in keys if not allows(broker, context, DESCRIBE, kind, key)}
    if code is ErrorCode.NONE and not denied.issuperset(keys):
        try:
            await _ensure_topic(broker, coordinator, request.key_type)
        except EXPECTED_ERRORS:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    coordinators = [
        _find(broker, context, coordinator, key, DENIED[kind] if key in denied else code)
        for key in keys
    ]
    if context.version >= _FIRST_WITH_KEYS:
        return FindCoordinatorResponse(coordinators=coordinators)
    (found,) = coordinators
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


async def ensure_offsets_topic(broker: Broker) -> None:
    """Create `__consumer_offsets` if it does not exist. Raises what creating a topic raises."""
    await _ensure_topic(broker, broker.groups, _GROUP)


async def _ensure_topic(broker: Broker, coordinator: Coordinator[Any], key_type: int) -> None:
    if broker.cluster.is_controller:
        await coordinator.ensure_topic()
    elif not coordinator.has_topic:
        # The controller creates the topic, and answers once this broker has it.
        await broker.controller_channel.send(
            FindCoordinatorRequest(key="any", key_type=key_type),
            FindCoordinatorResponse,
            version=_FIRST_WITH_KEYS - 1,
        )


def _find(
    broker: Broker,
    context: RequestContext,
    coordinator: Coordinator[Any],
    key: str,
    code: ErrorCode,
) -> FoundCoordinator:
    broker_id = -1
    if code is ErrorCode.NONE and not key:
        is_group = coordinator is broker.groups
        code = ErrorCode.INVALID_GROUP_ID if is_group else ErrorCode.INVALID_REQUEST
    if code is ErrorCode.NONE:
        broker_id = coordinator.coordinator_of(key)
        if broker_id not in broker.cluster.alive:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    if code is not ErrorCode.NONE:
        return FoundCoordinator(
            key=key, node_id=-1, host="", port=-1, error_code=code, error_message=code.message
        )
    node = broker.cluster.node(broker_id, context)
    return FoundCoordinator(
        key=key, node_id=node.id, host=node.host, port=node.port, error_message=None
    )
