"""DeleteAcls (key 31): delete the ACLs that match filters.

Version 1 adds PatternTypeFilter.
Version 2 is the first flexible version.
Version 3 adds the user resource type.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import DELETE_ACLS
from ..schema import Array, Int8, Int16, Int32, Message, String, field


class DeleteAclsFilter(Message):
    resource_type_filter: int = field(Int8)
    resource_name_filter: str | None = field(String, nullable=1)  # name or null = any
    pattern_type_filter: int = field(Int8, default=3)
    principal_filter: str | None = field(String, nullable=1)  # principal or null = any
    host_filter: str | None = field(String, nullable=1)  # host or null = any
    operation: int = field(Int8)
    permission_type: int = field(Int8)  # 2 deny 3 allow


class DeleteAclsRequest(Message, api=DELETE_ACLS):
    filters: Sequence[DeleteAclsFilter] = field(Array(DeleteAclsFilter))


class DeleteAclsMatchingAcl(Message):
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable=1)
    resource_type: int = field(Int8)
    resource_name: str = field(String)
    pattern_type: int = field(Int8, default=3)
    principal: str = field(String)  # e.g. User:alice
    host: str = field(String)
    operation: int = field(Int8)
    permission_type: int = field(Int8)  # 2 deny 3 allow


class DeleteAclsFilterResult(Message):
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable=1)

    matching_acls: Sequence[DeleteAclsMatchingAcl] = field(Array(DeleteAclsMatchingAcl))


class DeleteAclsResponse(Message, api=DELETE_ACLS):
    throttle_time_ms: int = field(Int32)
    # one per filter
    filter_results: Sequence[DeleteAclsFilterResult] = field(Array(DeleteAclsFilterResult))
