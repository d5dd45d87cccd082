"""DescribeConfigs (key 32): describe the configs of topics and brokers.

Version 1 adds IncludeSynonyms to the request, and ConfigSource and Synonyms to the response.
Version 3 adds IncludeDocumentation to the request, and ConfigType and Documentation to the
    response.
Version 4 is the first flexible version.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import DESCRIBE_CONFIGS
from ..schema import Array, Bool, Int8, Int16, Int32, Message, String, field


class DescribeConfigsResource(Message):
    resource_type: int = field(Int8)  # 2 topic 4 broker 8 broker-logger 16 client-metrics 32 group
    resource_name: str = field(String)
    # config names, null = all
    configuration_keys: Sequence[str] | None = field(Array(String), nullable=1)


class DescribeConfigsRequest(Message, api=DESCRIBE_CONFIGS):
    resources: Sequence[DescribeConfigsResource] = field(Array(DescribeConfigsResource))
    include_synonyms: bool = field(Bool)  # return config synonyms
    include_documentation: bool = field(Bool, since=3)  # return help text


class DescribeConfigsSynonym(Message):
    name: str = field(String)
    value: str | None = field(String, nullable=1)
    source: int = field(Int8)


class DescribeConfigsResourceResult(Message):
    name: str = field(String)
    value: str | None = field(String, nullable=1)
    read_only: bool = field(Bool)  # cannot be altered
    config_source: int = field(Int8, default=-1)
    is_sensitive: bool = field(Bool)  # hide value
    synonyms: Sequence[DescribeConfigsSynonym] = field(Array(DescribeConfigsSynonym))
    config_type: int = field(Int8, since=3, ignorable=True)

    documentation: str | None = field(String, since=3, nullable=3, ignorable=True)


class DescribeConfigsResult(Message):
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable=1)
    resource_type: int = field(Int8)
    resource_name: str = field(String)
    configs: Sequence[DescribeConfigsResourceResult] = field(Array(DescribeConfigsResourceResult))


class DescribeConfigsResponse(Message, api=DESCRIBE_CONFIGS):
    throttle_time_ms: int = field(Int32)
    results: Sequence[DescribeConfigsResult] = field(Array(DescribeConfigsResult))
