"""What a request needs to be allowed, and what a denied client is told.

Two rules hold for all APIs: authority is checked before existence, so that nobody learns which
topics there are; lists leave out silently what the client may not see, and what it names fails by
itself. `NEEDS` has the APIs that need the same for the whole request, and have an error code for
it: they are checked before their handlers. In the others, the handlers check each item.

Without an authorizer everybody may do everything, and `broker.authorizer` is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ottla.protocol import registry
from ottla.protocol.acls import CLUSTER_NAME, AclOperation, ResourceType
from ottla.protocol.errors import ErrorCode
from ottla.protocol.schema import Message

from .errors import ApiError

if TYPE_CHECKING:
    from ..broker import Broker
    from ..security.authorizer import Authorizer
    from .dispatch import Handler, HandlerResult, RequestContext

READ = AclOperation.READ
WRITE = AclOperation.WRITE
CREATE = AclOperation.CREATE
DELETE = AclOperation.DELETE
ALTER = AclOperation.ALTER
DESCRIBE = AclOperation.DESCRIBE
CLUSTER_ACTION = AclOperation.CLUSTER_ACTION
DESCRIBE_CONFIGS = AclOperation.DESCRIBE_CONFIGS
ALTER_CONFIGS = AclOperation.ALTER_CONFIGS
IDEMPOTENT_WRITE = AclOperation.IDEMPOTENT_WRITE
TOPIC = ResourceType.TOPIC
GROUP = ResourceType.GROUP
CLUSTER = ResourceType.CLUSTER
TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID

#: What a client is told that may not do something with a resource of this type.
DENIED: Mapping[ResourceType, ErrorCode] = {
    TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}

#: The value of an authorized-operations field where the client did not ask for it.
NOT_REQUESTED = -(2**31)
_OPERATIONS = {
    TOPIC: (READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS),
    GROUP: (READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS),
    CLUSTER: (
        CREATE,
        ALTER,
        DESCRIBE,
        CLUSTER_ACTION,
        DESCRIBE_CONFIGS,
        ALTER_CONFIGS,
        IDEMPOTENT_WRITE,
    ),
}
#: The sets of all operations, as bit fields.
ALL_OPERATIONS = {
    resource_type: sum(1 << operation for operation in operations)
    for resource_type, operations in _OPERATIONS.items()
}


class Need(NamedTuple):
    """An operation that a request needs, on the resource that a field of the request names."""

    operation: AclOperation
    resource_type: ResourceType
    field: str = ""

    def name_of(self, request: Any) -> str:
        """Return the name of the resource."""
        return getattr(request, self.field) or "" if self.field else CLUSTER_NAME


_MEMBER = (Need(READ, GROUP, "group_id"),)
_BROKER = (Need(CLUSTER_ACTION, CLUSTER),)

#: The APIs that fail as a whole if the client lacks a right.
NEEDS: Mapping[int, tuple[Need, ...]] = {
    registry.JOIN_GROUP.key: _MEMBER,
    registry.SYNC_GROUP.key: _MEMBER,
    registry.HEARTBEAT.key: _MEMBER,
    registry.LEAVE_GROUP.key: _MEMBER,
    registry.CONSUMER_GROUP_HEARTBEAT.key: _MEMBER,
    registry.SHARE_GROUP_HEARTBEAT.key: _MEMBER,
    registry.SHARE_FETCH.key: _MEMBER,
    registry.SHARE_ACKNOWLEDGE.key: _MEMBER,
    registry.ALTER_SHARE_GROUP_OFFSETS.key: _MEMBER,
    registry.DELETE_SHARE_GROUP_OFFSETS.key: (Need(DELETE, GROUP, "group_id"),),
    registry.OFFSET_DELETE.key: (Need(DELETE, GROUP, "group_id"),),
    registry.END_TXN.key: (Need(WRITE, TRANSACTIONAL_ID, "transactional_id"),),
    registry.ADD_OFFSETS_TO_TXN.key: (
        Need(WRITE, TRANSACTIONAL_ID, "transactional_id"),
        Need(READ, GROUP, "group_id"),
    ),
    registry.DESCRIBE_ACLS.key: (Need(DESCRIBE, CLUSTER),),
    registry.DESCRIBE_USER_SCRAM_CREDENTIALS.key: (Need(DESCRIBE, CLUSTER),),
    registry.DESCRIBE_CLIENT_QUOTAS.key: (Need(DESCRIBE_CONFIGS, CLUSTER),),
    registry.DESCRIBE_QUORUM.key: (Need(DESCRIBE, CLUSTER),),
    registry.UPDATE_FEATURES.key: (Need(ALTER, CLUSTER),),
    registry.UNREGISTER_BROKER.key: (Need(ALTER, CLUSTER),),
    registry.LIST_CONFIG_RESOURCES.key: (Need(DESCRIBE_CONFIGS, CLUSTER),),
    registry.ELECT_LEADERS.key: (Need(ALTER, CLUSTER),),
    registry.ALTER_PARTITION_REASSIGNMENTS.key: (Need(ALTER, CLUSTER),),
    registry.LIST_PARTITION_REASSIGNMENTS.key: (Need(DESCRIBE, CLUSTER),),
    registry.BROKER_REGISTRATION.key: _BROKER,
    registry.BROKER_HEARTBEAT.key: _BROKER,
    registry.ALLOCATE_PRODUCER_IDS.key: _BROKER,
}


def with_needs(handler: Handler, authorizer: Authorizer, api: registry.Api) -> Handler:
    """Return a handler that is called only if the client has what NEEDS says of its API."""
    needs = NEEDS.get(api.key)
    if needs is None:
        return handler

    def handle(broker: Broker, context: RequestContext, request: Any) -> HandlerResult:
        for need in needs:
            operation, resource_type, _field = need
            if not authorizer.allows(context, operation, resource_type, need.name_of(request)):
                return _denied(api, request, DENIED[resource_type])
        return handler(broker, context, request)

    return handle


def _denied(api: registry.Api, request: Any, code: ErrorCode) -> Message:
    """Return the response to a request that is denied as a whole.

    Old versions of some APIs have an error code in each item only.
    """
    from ..cluster.forwarding import FORWARDED  # noqa: PLC0415  # Only needed here.

    if api.key in FORWARDED:
        return FORWARDED[api.key](request, ApiError(code))
    response: Any = api.response
    return cast(Message, response(error_code=code))


def allows(
    broker: Broker,
    context: RequestContext,
    operation: AclOperation,
    resource_type: ResourceType,
    name: str = CLUSTER_NAME,
    *,
    logs: bool = True,
) -> bool:
    """Whether the client of a request may do something; with `logs`, log it if not."""
    authorizer = broker.authorizer
    return authorizer is None or authorizer.allows(
        context, operation, resource_type, name, logs=logs
    )


def check(
    broker: Broker,
    context: RequestContext,
    operation: AclOperation,
    resource_type: ResourceType,
    name: str = CLUSTER_NAME,
) -> None:
    """Raise ApiError if the client of a request may not do something."""
    authorizer = broker.authorizer
    if authorizer is not None and not authorizer.allows(context, operation, resource_type, name):
        raise ApiError(DENIED[resource_type])


def is_broker(broker: Broker, context: RequestContext) -> bool:
    """Whether a request comes from a broker that may act for the cluster."""
    return allows(broker, context, CLUSTER_ACTION, CLUSTER, logs=False)


def authorized_operations(
    broker: Broker,
    context: RequestContext,
    resource_type: ResourceType,
    name: str = CLUSTER_NAME,
    *,
    is_requested: bool = True,
) -> int:
    """Return the operations that a client may do with a resource, as a bit field."""
    if not is_requested:
        return NOT_REQUESTED
    authorizer = broker.authorizer
    if authorizer is None:
        return ALL_OPERATIONS[resource_type]
    if resource_type is CLUSTER and not authorizer.allows(
        context, DESCRIBE, CLUSTER, CLUSTER_NAME, logs=False
    ):
        return 0
    return authorizer.operations(context, _OPERATIONS[resource_type], resource_type, name)
