"""DescribeClientQuotas (key 48): list the client quotas that match a filter.

Version 1 is the first flexible version.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import DESCRIBE_CLIENT_QUOTAS
from ..schema import Array, Bool, Float64, Int8, Int16, Int32, Message, String, field


class ComponentData(Message):
    entity_type: str = field(String)  # user, client-id or ip
    match_type: int = field(Int8)  # 0 exact name 1 default 2 any
    match: str | None = field(String, nullable=0)


class DescribeClientQuotasRequest(Message, api=DESCRIBE_CLIENT_QUOTAS):
    components: Sequence[ComponentData] = field(Array(ComponentData))
    strict: bool = field(Bool)  # leave out entities with other parts


class EntityData(Message):
    entity_type: str = field(String)
    entity_name: str | None = field(String, nullable=0)  # null is the default


class ValueData(Message):
    key: str = field(String)
    value: float = field(Float64)


class EntryData(Message):
    entity: Sequence[EntityData] = field(Array(EntityData))
    values: Sequence[ValueData] = field(Array(ValueData))


class DescribeClientQuotasResponse(Message, api=DESCRIBE_CLIENT_QUOTAS):
    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable=0, default=None)
    entries: Sequence[EntryData] | None = field(Array(EntryData), nullable=0, default=None)
