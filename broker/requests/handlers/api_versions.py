"""ApiVersions: the supported APIs and their versions, and the features of the cluster.

A request of an unknown version gets a response of version 0 (KIP-511).
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from ottla.protocol.api.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from ottla.protocol.errors import ErrorCode

from ..dispatch import SUPPORTED_APIS

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext


_FIRST_VERSION_WITH_SOFTWARE = 3
_FIRST_VERSION_WITH_MIN_VERSION_0 = 4
#: The levels of features, all of them fixed. Clients use transaction.version 2 only if it is here.
FEATURES = {"group.version": 1, "share.version": 1, "transaction.version": 2}
#: Clients ignore features without an epoch, and those of an epoch that they know.
_FEATURES_EPOCH = 0
#: The name and version of a client library, as KIP-511 allows them.
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(
    broker: Broker, context: RequestContext, request: ApiVersionsRequest | None
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
        api_keys=_api_keys(),
        supported_features=[
            SupportedFeatureKey(name=name, min_version=0, max_version=level)
            for name, level in FEATURES.items()
            # Older clients refuse a minimum of 0.
            if context.version >= _FIRST_VERSION_WITH_MIN_VERSION_0
        ],
        finalized_features_epoch=_FEATURES_EPOCH,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in FEATURES.items()
            if name != "group.version" or "consumer" in broker.config.group_protocols
        ],
    )


@cache
def _api_keys() -> list[ApiVersion]:
    """Return the versions of all APIs: the same for every connection."""
    return [
        ApiVersion(api_key=key, min_version=api.advertised.first, max_version=api.advertised.last)
        for key, api in sorted(SUPPORTED_APIS.items())
    ]
