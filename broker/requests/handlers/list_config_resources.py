"""ListConfigResources: the topics, brokers and groups that have configs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.api.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from ottla.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext

_TOPIC, _BROKER, _BROKER_LOGGER, _CLIENT_METRICS, _GROUP = 2, 4, 8, 16, 32
_TYPES = (_TOPIC, _BROKER, _BROKER_LOGGER, _CLIENT_METRICS, _GROUP)
_FIRST_VERSION_WITH_TYPES = 1


def handle(
    broker: Broker, context: RequestContext, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    """Handle ListConfigResources."""
    if context.version < _FIRST_VERSION_WITH_TYPES:
        return ListConfigResourcesResponse()  # Client metrics, which no broker has.
    types = set(request.resource_types or _TYPES)
    if not types.issubset(_TYPES):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    names = {
        _TOPIC: sorted(broker.topics.image.topics),
        _BROKER: [str(broker_id) for broker_id in broker.cluster.broker_ids],
        _GROUP: sorted(broker.topics.image.group_configs),
    }
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=resource_type)
            for resource_type in _TYPES
            if resource_type in types
            for name in names.get(resource_type, ())
        ]
    )
