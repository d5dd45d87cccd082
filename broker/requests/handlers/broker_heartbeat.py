"""BrokerHeartbeat: another broker reports how far it has replayed the metadata store.

In a static cluster, it announces its process; see `cluster.incarnations`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.api.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from ottla.protocol.errors import ErrorCode

from ...cluster.incarnations import process_exists
from ...cluster.store_membership import StoreMembership
from ..errors import ApiError, error_message_of
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
        if not isinstance(cluster, StoreMembership):
            return _record(broker, context, request)
    except ApiError as error:
        return BrokerHeartbeatResponse(
            error_code=error.code, error_message=error_message_of(error) or ""
        )
    if not cluster.is_controller:
        return BrokerHeartbeatResponse(error_code=ErrorCode.NOT_CONTROLLER)
    registration = broker.topics.image.registrations.get(request.broker_id)
    if registration is None or registration.broker_epoch != request.broker_epoch:
        return BrokerHeartbeatResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
    cluster.record_heartbeat(request.broker_id, request.current_metadata_offset)
    return BrokerHeartbeatResponse(
        is_caught_up=request.current_metadata_offset >= broker.store_follower.revision,
        is_fenced=registration.state == "fenced",
    )


def _record(
    broker: Broker, context: RequestContext, request: BrokerHeartbeatRequest
) -> BrokerHeartbeatResponse:
    """Record an announcement. Raises ApiError if its process must not act as the broker."""
    cluster, broker_id = broker.cluster, request.broker_id
    if broker_id not in cluster.broker_ids or request.cluster_id != broker.cluster_id:
        raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED)
    incarnation, address = request.incarnation_id, f"{request.host}:{request.port}"
    if broker_id == cluster.broker_id:
        if incarnation != cluster.incarnation:
            raise process_exists(broker_id, address)
    elif request.is_check:
        cluster.incarnations.check(broker_id, incarnation)
    else:
        # With the wrong address, too: it serves, so that no other process may.
        cluster.incarnations.record(broker_id, incarnation, address, context.connection)
    expected = cluster.endpoint_of(broker_id)
    if (expected.host, expected.port) != (request.host, request.port):
        raise ApiError(
            ErrorCode.INVALID_REGISTRATION,
            f"Broker id {broker_id} has the address {address}, but broker {cluster.broker_id} has"
            f" {expected.host}:{expected.port} in its list of brokers",
        )
    return BrokerHeartbeatResponse(is_caught_up=True, is_fenced=False)
