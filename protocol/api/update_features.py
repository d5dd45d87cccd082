"""UpdateFeatures (key 57): change the levels of the cluster's features.

Version 1 adds UpgradeType instead of AllowDowngrade, and ValidateOnly. Version 2 removes the
results of single features.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import UPDATE_FEATURES
from ..schema import Array, Bool, Int8, Int16, Int32, Message, String, field


class FeatureUpdateKey(Message):
    feature: str = field(String)
    max_version_level: int = field(Int16)
    allow_downgrade: bool = field(Bool, until=0, default=False)
    upgrade_type: int = field(Int8, since=1, default=1)  # 1 upgrade 2 safe, 3 unsafe downgrade


class UpdateFeaturesRequest(Message, api=UPDATE_FEATURES):
    timeout_ms: int = field(Int32, default=60_000)
    feature_updates: Sequence[FeatureUpdateKey] = field(Array(FeatureUpdateKey))
    validate_only: bool = field(Bool, since=1, default=False)


class UpdatableFeatureResult(Message):
    feature: str = field(String)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable=0, default=None)


class UpdateFeaturesResponse(Message, api=UPDATE_FEATURES):
    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable=0, default=None)
    results: Sequence[UpdatableFeatureResult] = field(
        Array(UpdatableFeatureResult), until=1, ignorable=True
    )
