"""IncrementalAlterConfigs: change single settings of topics, or of this broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.api.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

from ..configs import Edit, Resource, alter

if TYPE_CHECKING:
    from ..broker import Broker
    from ..dispatch import Context


async def handle(
    broker: Broker, _context: Context, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """Answer IncrementalAlterConfigs."""
    resources = [
        Resource(
            resource.resource_type,
            resource.resource_name,
            [Edit(item.name, item.config_operation, item.value) for item in resource.configs],
        )
        for resource in request.resources
    ]
    outcomes = await alter(broker, resources, replace=False, validate_only=request.validate_only)
    return IncrementalAlterConfigsResponse(
        responses=[
            AlterConfigsResourceResponse(
                error_code=code, error_message=message, resource_type=kind, resource_name=name
            )
            for kind, name, code, message in outcomes
        ]
    )
