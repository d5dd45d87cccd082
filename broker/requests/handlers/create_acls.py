"""CreateAcls: create ACLs. One that exists already is no error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.coord.acls import (
    ACL_VALUE,
    MAX_ACLS,
    AclBinding,
    InvalidAclError,
    acl_key,
    check_binding,
)
from ottla.protocol.api.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from ottla.protocol.errors import ErrorCode

from ..acl_messages import SECURITY_DISABLED_MESSAGE, parse_creation
from ..authorization import ALTER, CLUSTER, check
from ..errors import EXPECTED_ERRORS, ApiError, error_code_of, error_message_of

if TYPE_CHECKING:
    from ottla.coord.metadata_image import KeyValue

    from ...broker import Broker
    from ..dispatch import RequestContext


async def handle(
    broker: Broker, context: RequestContext, request: CreateAclsRequest
) -> CreateAclsResponse:
    """Handle CreateAcls."""
    acls = broker.topics.image.acls
    errors: list[Exception | None] = []
    bindings: dict[AclBinding, None] = {}
    for creation in request.creations:
        try:
            bindings[_valid_binding(broker, context, creation)] = None
        except EXPECTED_ERRORS as error:
            errors.append(error)
        else:
            errors.append(None)

    def plan() -> list[KeyValue]:
        new = [binding for binding in bindings if binding not in acls]
        if len(acls) + len(new) > MAX_ACLS:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION,
                f"Too many ACLs: {len(acls)} exist and {len(new)} were to be created; a cluster may"
                f" have {MAX_ACLS}",
            )
        return [(acl_key(binding), ACL_VALUE) for binding in new]

    try:
        await broker.controller.change(plan)
    except EXPECTED_ERRORS as failure:
        errors = [failure if error is None else error for error in errors]
    return CreateAclsResponse(results=list(map(_result, errors)))


def _valid_binding(broker: Broker, context: RequestContext, creation: AclCreation) -> AclBinding:
    """Return the ACL to create. Raises ApiError."""
    if broker.authorizer is None:
        raise ApiError(ErrorCode.SECURITY_DISABLED, SECURITY_DISABLED_MESSAGE)
    check(broker, context, ALTER, CLUSTER)
    binding = parse_creation(creation)
    if binding is None:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            "Unknown number for a resource type, pattern type, operation or permission",
        )
    try:
        check_binding(binding)
    except InvalidAclError as error:
        raise ApiError(ErrorCode.INVALID_REQUEST, str(error)) from None
    return binding


def _result(error: Exception | None) -> AclCreationResult:
    if error is None:
        return AclCreationResult(error_message=None)
    return AclCreationResult(error_code=error_code_of(error), error_message=error_message_of(error))
