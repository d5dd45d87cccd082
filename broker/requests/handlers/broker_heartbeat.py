"""BrokerHeartbeat: another broker reports how far it has replayed the metadata store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.api.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from ottla.protocol.errors import ErrorCode

from ...cluster.store_membership import StoreMembership
from ..errors import ApiError
from .broker_registration import check_inter_broker_listener

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext


def handle(
    broker: Broker, context: RequestContext, request: BrokerHeartbeatRequest
) -> BrokerHeartbeatResponse:
    """Handle BrokerHeartbeat."""
    cluster = broker.cluster
    try:
        check_inter_broker_listener(broker, context)
    except ApiError as error:
        return BrokerHeartbeatResponse(error_code=error.code)
    if not isinstance(cluster, StoreMembership) or not cluster.is_controller:
        return BrokerHeartbeatResponse(error_code=ErrorCode.NOT_CONTROLLER)
    registration = broker.topics.image.registrations.get(request.broker_id)
    if registration is None or registration.broker_epoch != request.broker_epoch:
        return BrokerHeartbeatResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
    cluster.record_heartbeat(request.broker_id, request.current_metadata_offset)
    return BrokerHeartbeatResponse(
        is_caught_up=request.current_metadata_offset >= broker.store_follower.revision,
        is_fenced=registration.state == "fenced",
    )
