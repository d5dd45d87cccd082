"""DescribeCluster: the brokers and the controller."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from ottla.protocol.api.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from ottla.protocol.errors import ErrorCode

from ..authorization import CLUSTER, authorized_operations

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext


class EndpointType(IntEnum):
    """Whose endpoints a request asks for."""

    BROKERS = 1
    CONTROLLERS = 2


def handle(
    broker: Broker, context: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    """Handle DescribeCluster."""
    if request.endpoint_type == EndpointType.CONTROLLERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="Endpoint type 2 (controllers) requires a controller; this is a broker",
        )
    if request.endpoint_type != EndpointType.BROKERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"Unknown endpoint type {request.endpoint_type}",
        )
    operations = authorized_operations(
        broker, context, CLUSTER, is_requested=request.include_cluster_authorized_operations
    )
    cluster, alive = broker.cluster, broker.cluster.alive
    nodes = cluster.nodes(context, with_fenced=request.include_fenced_brokers)
    return DescribeClusterResponse(
        cluster_id=broker.cluster_id,
        controller_id=broker.cluster.advertised_controller_id,
        brokers=[
            DescribeClusterBroker(
                broker_id=node.id,
                host=node.host,
                port=node.port,
                rack=node.rack,
                is_fenced=node.id not in alive,
            )
            for node in nodes
        ],
        cluster_authorized_operations=operations,
    )
