"""DescribeUserScramCredentials: the mechanisms and iterations of users."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ottla.protocol.api.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from ottla.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext


def handle(
    broker: Broker, _context: RequestContext, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    """Handle DescribeUserScramCredentials."""
    infos: dict[str, list[CredentialInfo]] = {}
    for (name, mechanism), credential in broker.topics.image.scram_credentials.items():
        infos.setdefault(name, []).append(
            CredentialInfo(mechanism=mechanism.value, iterations=credential.iterations)
        )
    occurrences = Counter(user.name for user in request.users or ())
    names = list(occurrences) or sorted(infos)
    return DescribeUserScramCredentialsResponse(
        error_message=None,
        results=[_result(name, infos.get(name, []), occurrences[name]) for name in names],
    )


def _result(
    name: str, infos: list[CredentialInfo], occurrences: int
) -> DescribeUserScramCredentialsResult:
    code, message = ErrorCode.NONE, None
    if occurrences > 1:
        code, message = ErrorCode.DUPLICATE_RESOURCE, f"Duplicate user {name!r} in the request"
    elif not infos:
        code = ErrorCode.RESOURCE_NOT_FOUND
        message = f"User {name!r} has no SCRAM credentials"
    return DescribeUserScramCredentialsResult(
        user=name,
        error_code=code,
        error_message=message,
        credential_infos=[] if code else sorted(infos, key=lambda info: info.mechanism),
    )
