"""AlterConfigs and IncrementalAlterConfigs: change configs of topics or brokers.

AlterConfigs replaces all configs of a resource, IncrementalAlterConfigs changes single ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from ottla.protocol.api.alter_configs import AlterConfigsRequest
from ottla.protocol.api.incremental_alter_configs import IncrementalAlterConfigsRequest
from ottla.protocol.schema import Message

from ...config.dynamic_configs import AlterOperation, ConfigEdit, ConfigResource, alter_configs

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext


async def handle(
    broker: Broker,
    context: RequestContext,
    request: AlterConfigsRequest | IncrementalAlterConfigsRequest,
) -> Message:
    """Handle AlterConfigs and IncrementalAlterConfigs."""
    resources = [
        ConfigResource(
            resource.resource_type,
            resource.resource_name,
            [
                # AlterConfigs has no operations: it only sets.
                ConfigEdit(
                    config.name,
                    getattr(config, "config_operation", AlterOperation.SET),
                    config.value,
                )
                for config in resource.configs
            ],
        )
        for resource in request.resources
    ]
    results = await alter_configs(
        broker,
        context,
        resources,
        replace=isinstance(request, AlterConfigsRequest),
        validate_only=request.validate_only,
    )
    response: Any = context.api.response
    return cast(Message, response(responses=results))
