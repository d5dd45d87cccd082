"""AlterConfigs: replace all that a topic, or this broker, has of settings of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.api.alter_configs import AlterConfigsRequest, AlterConfigsResponse

from ...config.dynamic_configs import Edit, Operation, Resource, alter

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext


async def handle(
    broker: Broker, _context: RequestContext, request: AlterConfigsRequest
) -> AlterConfigsResponse:
    """Answer AlterConfigs."""
    resources = [
        Resource(
            resource.resource_type,
            resource.resource_name,
            [Edit(one.name, Operation.SET, one.value) for one in resource.configs],
        )
        for resource in request.resources
    ]
    results = await alter(broker, resources, replace=True, validate_only=request.validate_only)
    return AlterConfigsResponse(responses=results)
