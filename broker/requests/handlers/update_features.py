"""UpdateFeatures: confirm the levels of features; they come with the release and cannot change."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ottla.protocol.api.update_features import (
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from ottla.protocol.errors import ErrorCode

from ...observability.logging import log_limited
from .api_versions import FEATURES

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext

logger = logging.getLogger(__name__)


def handle(
    _broker: Broker, _context: RequestContext, request: UpdateFeaturesRequest
) -> UpdateFeaturesResponse:
    """Handle UpdateFeatures."""
    for update in request.feature_updates:
        name, level = update.feature, update.max_version_level
        if name not in FEATURES:
            reason = f"Unknown feature {name!r}: expected one of {', '.join(FEATURES)}"
        elif level != FEATURES[name]:
            reason = f"The level of {name} is {FEATURES[name]} and cannot be changed to {level}"
        else:
            continue
        log_limited(logger, "Feature update refused", level=logging.INFO, extra={"reason": reason})
        return UpdateFeaturesResponse(
            error_code=ErrorCode.INVALID_UPDATE_VERSION, error_message=reason
        )
    return UpdateFeaturesResponse(
        results=[UpdatableFeatureResult(feature=one.feature) for one in request.feature_updates]
    )
