"""DeleteAcls: delete the ACLs that match filters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.coord.acls import AclBinding, AclFilter, acl_key
from ottla.protocol.api.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from ottla.protocol.errors import ErrorCode

from ..acl_messages import SECURITY_DISABLED_MESSAGE, parse_filter
from ..authorization import ALTER, CLUSTER, check
from ..errors import EXPECTED_ERRORS, ApiError, error_code_of, error_message_of

if TYPE_CHECKING:
    from ottla.coord.metadata_image import KeyValue

    from ...broker import Broker
    from ..dispatch import RequestContext


async def handle(
    broker: Broker, context: RequestContext, request: DeleteAclsRequest
) -> DeleteAclsResponse:
    """Handle DeleteAcls."""
    acls = broker.topics.image.acls
    filters: list[AclFilter | Exception] = []
    for one in request.filters:
        try:
            filters.append(_valid_filter(broker, context, one))
        except EXPECTED_ERRORS as error:
            filters.append(error)
    matching: list[list[AclBinding]] = []

    def plan() -> list[KeyValue]:
        for wanted in filters:
            matching.append(acls.matching(wanted) if isinstance(wanted, AclFilter) else [])
        deleted = dict.fromkeys(binding for of_filter in matching for binding in of_filter)
        return [(acl_key(binding), None) for binding in deleted]

    try:
        await broker.controller.change(plan)
    except EXPECTED_ERRORS as failure:
        filters = [failure if isinstance(one, AclFilter) else one for one in filters]
        matching = [[] for _filter in filters]
    return DeleteAclsResponse(
        filter_results=[
            _result(wanted, deleted) for wanted, deleted in zip(filters, matching, strict=True)
        ]
    )


def _valid_filter(broker: Broker, context: RequestContext, wanted: DeleteAclsFilter) -> AclFilter:
    """Return a filter. Raises ApiError."""
    if broker.authorizer is None:
        raise ApiError(ErrorCode.SECURITY_DISABLED, SECURITY_DISABLED_MESSAGE)
    check(broker, context, ALTER, CLUSTER)
    parsed = parse_filter(wanted, wanted.resource_type_filter, wanted.pattern_type_filter)
    if parsed is None:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            "Unknown number for a resource type, pattern type, operation or permission",
        )
    return parsed


def _result(wanted: AclFilter | Exception, deleted: list[AclBinding]) -> DeleteAclsFilterResult:
    if isinstance(wanted, Exception):
        return DeleteAclsFilterResult(
            error_code=error_code_of(wanted), error_message=error_message_of(wanted)
        )
    return DeleteAclsFilterResult(
        error_message=None,
        matching_acls=[
            DeleteAclsMatchingAcl(
                error_message=None,
                resource_type=binding.resource_type,
                resource_name=binding.resource_name,
                pattern_type=binding.pattern_type,
                principal=binding.principal,
                host=binding.host,
                operation=binding.operation,
                permission_type=binding.permission,
            )
            for binding in deleted
        ],
    )
