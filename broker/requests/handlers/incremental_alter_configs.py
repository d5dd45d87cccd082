"""IncrementalAlterConfigs: change single settings of topics, or of this broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.api.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

from ...config.dynamic_configs import Edit, Resource, alter

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext


async def handle(
    broker: Broker, _context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """Answer IncrementalAlterConfigs."""
    resources = [
        Resource(
            resource.resource_type,
            resource.resource_name,
            [Edit(one.name, one.config_operation, one.value) for one in resource.configs],
        )
        for resource in request.resources
    ]
    results = await alter(broker, resources, replace=False, validate_only=request.validate_only)
    return IncrementalAlterConfigsResponse(responses=results)
