"""AlterConfigs and IncrementalAlterConfigs: change configs of topics or brokers.

AlterConfigs replaces all configs of a resource, IncrementalAlterConfigs changes single ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from ottla.protocol.api.alter_configs import AlterConfigsRequest
from ottla.protocol.api.incremental_alter_configs import IncrementalAlterConfigsRequest
from ottla.protocol.schema import Message

from ...config.dynamic_configs import AlterOperation, ConfigEdit, ConfigResource, alter_configs
from ..slices import in_slices, map_in_slices

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext


async def handle(
    broker: Broker,
    context: RequestContext,
    request: AlterConfigsRequest | IncrementalAlterConfigsRequest,
) -> Message:
    """Handle AlterConfigs and IncrementalAlterConfigs."""
    requested: Sequence[Any] = request.resources
    resources = await map_in_slices(
        lambda resource: ConfigResource(resource.resource_type, resource.resource_name, []),
        requested,
    )
    entries = (
        (edits, config)
        for resource, (_type, _name, edits) in zip(requested, resources, strict=True)
        for config in resource.configs
    )
    async for entries_of_slice in in_slices(entries):
        for edits, config in entries_of_slice:
            # AlterConfigs has no operations: it only sets.
            operation = getattr(config, "config_operation", AlterOperation.SET)
            edits.append(ConfigEdit(config.name, operation, config.value))
    results = await alter_configs(
        broker,
        context,
        resources,
        replace=isinstance(request, AlterConfigsRequest),
        validate_only=request.validate_only,
    )
    response: Any = context.api.response
    return cast(Message, response(responses=results))
