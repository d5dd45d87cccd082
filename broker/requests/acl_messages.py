"""ACLs and their filters in the messages of the wire protocol."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, TypeVar

from ottla.coord.acls import AclBinding, AclFilter
from ottla.protocol.acls import AclOperation, PatternType, PermissionType, ResourceType

if TYPE_CHECKING:
    from ottla.protocol.api.create_acls import AclCreation
    from ottla.protocol.api.delete_acls import DeleteAclsFilter
    from ottla.protocol.api.describe_acls import DescribeAclsRequest

E = TypeVar("E", bound=IntEnum)

SECURITY_DISABLED_MESSAGE = "No authorizer is configured: set authorizer.class.name on the brokers"


def parse_filter(
    message: DescribeAclsRequest | DeleteAclsFilter, resource_type: int, pattern_type: int
) -> AclFilter | None:
    """Return the filter in a message; None if it has a number that is not known."""
    try:
        return AclFilter(
            _known(ResourceType, resource_type),
            message.resource_name_filter,
            _known(PatternType, pattern_type),
            message.principal_filter,
            message.host_filter,
            _known(AclOperation, message.operation),
            _known(PermissionType, message.permission_type),
        )
    except ValueError:
        return None


def parse_creation(creation: AclCreation) -> AclBinding | None:
    """Return the ACL in a message; None if it has a number that is not known."""
    try:
        return AclBinding(
            _known(ResourceType, creation.resource_type),
            creation.resource_name,
            _known(PatternType, creation.resource_pattern_type),
            creation.principal,
            creation.host,
            _known(AclOperation, creation.operation),
            _known(PermissionType, creation.permission_type),
        )
    except ValueError:
        return None


def _known(kind: type[E], number: int) -> E:
    """Return a member by its number. Raises ValueError if it is not known."""
    if number == 0:
        raise ValueError("The number means unknown")
    return kind(number)
