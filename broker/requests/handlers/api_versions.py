"""ApiVersions: the supported APIs and their versions.

A request of an unknown version gets a response of version 0 (KIP-511).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ottla.protocol.api.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.errors import ErrorCode

from ..dispatch import SUPPORTED_APIS

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext


_FIRST_VERSION_WITH_SOFTWARE = 3
#: The name and version of a client library, as KIP-511 allows them.
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(
    _broker: Broker, context: RequestContext, request: ApiVersionsRequest | None
) -> ApiVersionsResponse:
    """Handle ApiVersions; `request` is None if its version is unknown."""
    if request is None:
        code = ErrorCode.UNSUPPORTED_VERSION
    elif context.version >= _FIRST_VERSION_WITH_SOFTWARE and not (
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    else:
        code = ErrorCode.NONE
    return ApiVersionsResponse(
        error_code=code,
        api_keys=[
            ApiVersion(
                api_key=key, min_version=api.advertised.first, max_version=api.advertised.last
            )
            for key, api in sorted(SUPPORTED_APIS.items())
        ],
    )
