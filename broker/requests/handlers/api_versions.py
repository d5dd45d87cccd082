"""ApiVersions: the supported APIs and their versions.

A request of an unknown version gets a response of version 0 (KIP-511).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.api.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.errors import ErrorCode

from ..dispatch import SUPPORTED_APIS

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext


def handle(
    _broker: Broker, _context: RequestContext, request: ApiVersionsRequest | None
) -> ApiVersionsResponse:
    """Handle ApiVersions; `request` is None if its version is unknown."""
    return ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION if request is None else ErrorCode.NONE,
        api_keys=[
            ApiVersion(
                api_key=key, min_version=api.advertised.first, max_version=api.advertised.last
            )
            for key, api in sorted(SUPPORTED_APIS.items())
        ],
    )
