"""ApiVersions (key 18): list the APIs and versions of a broker.

The first request on most connections.

Version 1 adds ThrottleTimeMs to the response.
Version 2 is the same as version 1.
Version 3 is the first flexible version; adds ClientSoftwareName and ClientSoftwareVersion to the
    request, and features to the response. The response header stays at version 0: see registry.py.
Version 4 allows a MinVersion of 0 in SupportedFeatures.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import API_VERSIONS
from ..schema import Array, Bool, Int16, Int32, Int64, Message, String, field


class ApiVersionsRequest(Message, api=API_VERSIONS):
    client_software_name: str = field(String, since=3, ignorable=True)
    client_software_version: str = field(String, since=3, ignorable=True)


class ApiVersion(Message):
    api_key: int = field(Int16)
    min_version: int = field(Int16)
    max_version: int = field(Int16)


class SupportedFeatureKey(Message):
    name: str = field(String)
    min_version: int = field(Int16)
    max_version: int = field(Int16)


class FinalizedFeatureKey(Message):
    name: str = field(String)
    max_version_level: int = field(Int16)  # finalized max
    min_version_level: int = field(Int16)  # finalized min


class ApiVersionsResponse(Message, api=API_VERSIONS):
    error_code: int = field(Int16)
    api_keys: Sequence[ApiVersion] = field(Array(ApiVersion))
    throttle_time_ms: int = field(Int32, since=1, ignorable=True)
    # features supported by this broker
    supported_features: Sequence[SupportedFeatureKey] = field(
        Array(SupportedFeatureKey), since=3, tag=0, ignorable=True
    )
    # epoch of finalized features, -1 unknown
    finalized_features_epoch: int = field(Int64, since=3, tag=1, ignorable=True, default=-1)
    # cluster-wide finalized features
    finalized_features: Sequence[FinalizedFeatureKey] = field(
        Array(FinalizedFeatureKey), since=3, tag=2, ignorable=True
    )
    zk_migration_ready: bool = field(Bool, since=3, tag=3, ignorable=True)  # always false
