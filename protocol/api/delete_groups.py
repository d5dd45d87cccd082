"""DeleteGroups (key 42): delete empty groups.

Version 2 is the first flexible version.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import DELETE_GROUPS
from ..schema import Array, Int16, Int32, Message, String, field


class DeleteGroupsRequest(Message, api=DELETE_GROUPS):
    groups_names: Sequence[str] = field(Array(String))


class DeletableGroupResult(Message):
    group_id: str = field(String)
    error_code: int = field(Int16)


class DeleteGroupsResponse(Message, api=DELETE_GROUPS):
    throttle_time_ms: int = field(Int32)
    results: Sequence[DeletableGroupResult] = field(Array(DeletableGroupResult))
