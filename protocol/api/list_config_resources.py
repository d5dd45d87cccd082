"""ListConfigResources (key 74): the resources that have configs.

Version 0 lists client metrics only. Version 1 adds the other types.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import LIST_CONFIG_RESOURCES
from ..schema import Array, Int8, Int16, Int32, Message, String, field


class ListConfigResourcesRequest(Message, api=LIST_CONFIG_RESOURCES):
    resource_types: Sequence[int] = field(Array(Int8), since=1)  # none = all


class ConfigResource(Message):
    resource_name: str = field(String)
    resource_type: int = field(Int8, since=1, default=16)


class ListConfigResourcesResponse(Message, api=LIST_CONFIG_RESOURCES):
    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)
    config_resources: Sequence[ConfigResource] = field(Array(ConfigResource))
