"""DescribeAcls: the ACLs that match a filter, by resource pattern."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.coord.acls import AclBinding
from ottla.protocol.acls import PatternType, ResourceType
from ottla.protocol.api.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from ottla.protocol.errors import ErrorCode

from ..acl_messages import SECURITY_DISABLED_MESSAGE, parse_filter
from ..slices import in_slices

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext


async def handle(
    broker: Broker, _context: RequestContext, request: DescribeAclsRequest
) -> DescribeAclsResponse:
    """Handle DescribeAcls."""
    if broker.authorizer is None:
        return DescribeAclsResponse(
            error_code=ErrorCode.SECURITY_DISABLED, error_message=SECURITY_DISABLED_MESSAGE
        )
    wanted = parse_filter(request, request.resource_type_filter, request.pattern_type_filter)
    bindings: list[AclBinding] = []
    if wanted is not None:  # Nothing matches a number that is not known.
        candidates = list(broker.topics.image.acls.candidates(wanted))
        async for candidates_of_slice in in_slices(candidates):
            bindings += filter(wanted.matches, candidates_of_slice)
    by_pattern: dict[tuple[ResourceType, str, PatternType], list[AclBinding]] = {}
    for binding in bindings:
        pattern = binding.resource_type, binding.resource_name, binding.pattern_type
        by_pattern.setdefault(pattern, []).append(binding)
    return DescribeAclsResponse(
        error_message=None,
        resources=[
            DescribeAclsResource(
                resource_type=resource_type,
                resource_name=name,
                pattern_type=pattern_type,
                acls=[
                    AclDescription(
                        principal=binding.principal,
                        host=binding.host,
                        operation=binding.operation,
                        permission_type=binding.permission,
                    )
                    for binding in of_pattern
                ],
            )
            for (resource_type, name, pattern_type), of_pattern in by_pattern.items()
        ],
    )
