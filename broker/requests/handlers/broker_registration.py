"""BrokerRegistration: another broker registers with the controller, on each of its connections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.coord.metadata_image import MetadataPosition
from ottla.protocol.api.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.primitives import NIL_UUID

from ...cluster.controller import RegistrationRequest
from ..errors import EXPECTED_ERRORS, ApiError, error_code_of, error_message_of

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext


async def handle(
    broker: Broker, context: RequestContext, request: BrokerRegistrationRequest
) -> BrokerRegistrationResponse:
    """Handle BrokerRegistration."""
    try:
        return await _register(broker, context, request)
    except EXPECTED_ERRORS as error:
        return BrokerRegistrationResponse(
            error_code=error_code_of(error), error_message=error_message_of(error)
        )


async def _register(
    broker: Broker, context: RequestContext, request: BrokerRegistrationRequest
) -> BrokerRegistrationResponse:
    if not broker.cluster.is_controller:
        raise ApiError(ErrorCode.NOT_CONTROLLER)
    check_inter_broker_listener(broker, context)
    if request.broker_id not in broker.cluster.liveness:
        raise ApiError(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            f"Unknown broker {request.broker_id}: cluster.brokers must be the same on all brokers",
        )
    if request.cluster_id != broker.cluster_id:
        raise ApiError(ErrorCode.INCONSISTENT_CLUSTER_ID, f"This is cluster {broker.cluster_id}")
    position = None
    if request.metadata_offset >= 0:
        position = MetadataPosition(
            request.metadata_epoch, request.metadata_epoch_id, request.metadata_offset
        )
    directory = None if request.directory_id == NIL_UUID else request.directory_id
    registered = await broker.controller.register_broker(
        RegistrationRequest(
            request.broker_id,
            request.incarnation_id,
            position,
            request.leader_epoch,
            request.next_producer_id,
            directory,
        ),
        context.connection,
    )
    return BrokerRegistrationResponse(
        broker_epoch=registered.registration.broker_epoch,
        leader_epoch=registered.registration.leader_epoch,
        metadata_epoch=registered.epoch,
        metadata_epoch_id=registered.epoch_id,
        is_directory_lost=registered.is_directory_lost,
    )


def check_inter_broker_listener(broker: Broker, context: RequestContext) -> None:
    """Raise ApiError unless a request came over the inter-broker listener of a cluster.

    If that authenticates, it has to come from a broker; see `security.inter_broker`.
    """
    config, security = broker.config, broker.server.security
    text = f"{context.api.name} is only for brokers, over the inter-broker listener"
    if not config.is_clustered or context.connection.listener.name != config.inter_broker_listener:
        raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, text)
    if security is not None and not security.is_broker(context):
        raise ApiError(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            f"{text}; {context.principal} is none: see super.users",
        )
