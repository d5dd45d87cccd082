"""ApiVersions (key 18): what the broker speaks; the first request on most connections.

Version 1 adds the throttle time to the response.
Version 3 is the first flexible version, and adds the name and version of the client and the
    features of the cluster. The header of the response stays as it was: see registry.py.
Version 4 lets the lowest version of a feature be 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import API_VERSIONS
from ..schema import Array, Bool, Int16, Int32, Int64, Message, String, field


class ApiVersionsRequest(Message, api=API_VERSIONS):
    client_software_name: str = field(String, since=3, ignorable=True)  # client library name
    client_software_version: str = field(String, since=3, ignorable=True)  # client library version


class ApiVersion(Message):
    api_key: int = field(Int16)  # API number
    min_version: int = field(Int16)  # lowest version
    max_version: int = field(Int16)  # highest version


class SupportedFeatureKey(Message):
    name: str = field(String)
    min_version: int = field(Int16)  # lowest version
    max_version: int = field(Int16)  # highest version


class FinalizedFeatureKey(Message):
    name: str = field(String)
    max_version_level: int = field(Int16)  # finalized max
    min_version_level: int = field(Int16)  # finalized min


class ApiVersionsResponse(Message, api=API_VERSIONS):
    error_code: int = field(Int16)
    api_keys: Sequence[ApiVersion] = field(Array(ApiVersion))  # supported APIs
    throttle_time_ms: int = field(Int32, since=1, ignorable=True)
    # features this broker knows
    supported_features: Sequence[SupportedFeatureKey] = field(
        Array(SupportedFeatureKey), since=3, tag=0, ignorable=True
    )
    # epoch of finalized features, -1 unknown
    finalized_features_epoch: int = field(Int64, since=3, tag=1, ignorable=True, default=-1)
    # cluster-wide finalized features
    finalized_features: Sequence[FinalizedFeatureKey] = field(
        Array(FinalizedFeatureKey), since=3, tag=2, ignorable=True
    )
    zk_migration_ready: bool = field(Bool, since=3, tag=3, ignorable=True)  # always false today
