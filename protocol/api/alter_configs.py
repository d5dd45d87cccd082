"""AlterConfigs (key 33): replace all configs of topics or brokers.

Version 1 is the same as version 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import ALTER_CONFIGS
from ..schema import Array, Bool, Int8, Int16, Int32, Message, String, field


class AlterableConfig(Message):
    name: str = field(String)
    value: str | None = field(String, nullable=0, is_secret=True)


class AlterConfigsResource(Message):
    resource_type: int = field(Int8)
    resource_name: str = field(String)
    configs: Sequence[AlterableConfig] = field(Array(AlterableConfig))


class AlterConfigsRequest(Message, api=ALTER_CONFIGS):
    resources: Sequence[AlterConfigsResource] = field(Array(AlterConfigsResource))
    validate_only: bool = field(Bool)  # dry run


class AlterConfigsResourceResponse(Message):
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable=0)
    resource_type: int = field(Int8)
    resource_name: str = field(String)


class AlterConfigsResponse(Message, api=ALTER_CONFIGS):
    throttle_time_ms: int = field(Int32)
    responses: Sequence[AlterConfigsResourceResponse] = field(Array(AlterConfigsResourceResponse))
