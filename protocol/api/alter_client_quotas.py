"""AlterClientQuotas (key 49): set and remove client quotas.

Version 1 is the first flexible version.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import ALTER_CLIENT_QUOTAS
from ..schema import Array, Bool, Float64, Int16, Int32, Message, String, field
from .describe_client_quotas import EntityData


class OpData(Message):
    key: str = field(String)
    value: float = field(Float64)
    remove: bool = field(Bool)


class AlterClientQuotasEntry(Message):
    entity: Sequence[EntityData] = field(Array(EntityData))
    ops: Sequence[OpData] = field(Array(OpData))


class AlterClientQuotasRequest(Message, api=ALTER_CLIENT_QUOTAS):
    entries: Sequence[AlterClientQuotasEntry] = field(Array(AlterClientQuotasEntry))
    validate_only: bool = field(Bool)  # dry run


class AlterClientQuotasEntryResult(Message):
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable=0, default=None)
    entity: Sequence[EntityData] = field(Array(EntityData))


class AlterClientQuotasResponse(Message, api=ALTER_CLIENT_QUOTAS):
    throttle_time_ms: int = field(Int32)
    entries: Sequence[AlterClientQuotasEntryResult] = field(Array(AlterClientQuotasEntryResult))
