"""What a client needs for a request that is forwarded to the controller.

The controller judges the broker that forwards. So that nobody gains the broker's rights, the broker
judges its client first, with the same ACLs: if the client may not do everything that a request
asks for, none of it is forwarded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ottla.protocol import registry
from ottla.protocol.acls import CLUSTER_NAME, AclOperation, ResourceType
from ottla.protocol.schema import Message

from ..config.dynamic_configs import protected_resource
from ..requests.authorization import (
    ALTER,
    ALTER_CONFIGS,
    CLUSTER,
    CREATE,
    DELETE,
    NEEDS,
    TOPIC,
    allows,
    check,
)

if TYPE_CHECKING:
    from ..broker import Broker
    from ..requests.dispatch import RequestContext

_Right = tuple[AclOperation, ResourceType, str]
_Rights = Callable[["Broker", "RequestContext", Any], Iterator[_Right]]


def check_forwarded(broker: Broker, context: RequestContext, request: Message) -> None:
    """Raise ApiError if the client of a request may not do all that it asks for."""
    if broker.authorizer is None:
        return
    if context.api.key in NEEDS:
        for need in NEEDS[context.api.key]:
            check(broker, context, need.operation, need.resource_type, need.name_of(request))
        return
    rights = _RIGHTS.get(context.api.key, _alter_cluster)
    for right in rights(broker, context, request):
        check(broker, context, *right)


def _create_topics(broker: Broker, context: RequestContext, request: Any) -> Iterator[_Right]:
    if not allows(broker, context, CREATE, CLUSTER, logs=False):
        for topic in request.topics:
            yield CREATE, TOPIC, topic.name


def _delete_topics(broker: Broker, _context: RequestContext, request: Any) -> Iterator[_Right]:
    for name in request.topic_names:
        yield DELETE, TOPIC, name
    for topic in request.topics:
        found = broker.topics.image.topics_by_id.get(topic.topic_id)
        if topic.name is not None:
            yield DELETE, TOPIC, topic.name
        elif found is not None:
            yield DELETE, TOPIC, found.name


def _create_partitions(_broker: Broker, _context: RequestContext, request: Any) -> Iterator[_Right]:
    for topic in request.topics:
        yield ALTER, TOPIC, topic.name


def _alter_configs(_broker: Broker, _context: RequestContext, request: Any) -> Iterator[_Right]:
    for resource in request.resources:
        protected = protected_resource(resource.resource_type, resource.resource_name)
        yield ALTER_CONFIGS, *protected


def _alter_quotas(_broker: Broker, _context: RequestContext, _request: Any) -> Iterator[_Right]:
    yield ALTER_CONFIGS, CLUSTER, CLUSTER_NAME


def _alter_cluster(_broker: Broker, _context: RequestContext, _request: Any) -> Iterator[_Right]:
    yield ALTER, CLUSTER, CLUSTER_NAME


#: All others need ALTER on the cluster.
_RIGHTS: Mapping[int, _Rights] = {
    registry.CREATE_TOPICS.key: _create_topics,
    registry.DELETE_TOPICS.key: _delete_topics,
    registry.CREATE_PARTITIONS.key: _create_partitions,
    registry.ALTER_CONFIGS.key: _alter_configs,
    registry.INCREMENTAL_ALTER_CONFIGS.key: _alter_configs,
    registry.ALTER_CLIENT_QUOTAS.key: _alter_quotas,
}
