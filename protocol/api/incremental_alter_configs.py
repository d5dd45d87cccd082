"""IncrementalAlterConfigs (key 44): alter single configs of topics or brokers.

Version 1 is the first flexible version.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import INCREMENTAL_ALTER_CONFIGS
from ..schema import Array, Bool, Int8, Int32, Message, String, field
from .alter_configs import AlterConfigsResourceResponse


class AlterableConfig(Message):
    name: str = field(String)
    config_operation: int = field(Int8)  # 0 set 1 delete 2 append 3 subtract
    value: str | None = field(String, nullable=0, is_secret=True)


class AlterConfigsResource(Message):
    resource_type: int = field(Int8)
    resource_name: str = field(String)
    configs: Sequence[AlterableConfig] = field(Array(AlterableConfig))


class IncrementalAlterConfigsRequest(Message, api=INCREMENTAL_ALTER_CONFIGS):
    resources: Sequence[AlterConfigsResource] = field(Array(AlterConfigsResource))
    validate_only: bool = field(Bool)  # dry run


class IncrementalAlterConfigsResponse(Message, api=INCREMENTAL_ALTER_CONFIGS):
    throttle_time_ms: int = field(Int32)
    responses: Sequence[AlterConfigsResourceResponse] = field(Array(AlterConfigsResourceResponse))
