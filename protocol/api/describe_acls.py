"""DescribeAcls (key 29): list the ACLs that match a filter.

Version 1 adds PatternTypeFilter and PatternType.
Version 2 is the first flexible version.
Version 3 adds the user resource type.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import DESCRIBE_ACLS
from ..schema import Array, Int8, Int16, Int32, Message, String, field


class DescribeAclsRequest(Message, api=DESCRIBE_ACLS):
    resource_type_filter: int = field(Int8)
    resource_name_filter: str | None = field(String, nullable=1)  # name or null = any
    pattern_type_filter: int = field(Int8, default=3)
    principal_filter: str | None = field(String, nullable=1)  # principal or null = any
    host_filter: str | None = field(String, nullable=1)  # host or null = any
    operation: int = field(Int8)
    permission_type: int = field(Int8)  # 2 deny 3 allow


class AclDescription(Message):
    principal: str = field(String)  # e.g. User:alice
    host: str = field(String)
    operation: int = field(Int8)
    permission_type: int = field(Int8)  # 2 deny 3 allow


class DescribeAclsResource(Message):
    resource_type: int = field(Int8)
    resource_name: str = field(String)
    pattern_type: int = field(Int8, default=3)
    acls: Sequence[AclDescription] = field(Array(AclDescription))  # matching ACLs


class DescribeAclsResponse(Message, api=DESCRIBE_ACLS):
    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable=1)
    resources: Sequence[DescribeAclsResource] = field(Array(DescribeAclsResource))
