"""CreateAcls (key 30): create ACLs.

Version 1 adds ResourcePatternType.
Version 2 is the first flexible version.
Version 3 adds the user resource type.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import CREATE_ACLS
from ..schema import Array, Int8, Int16, Int32, Message, String, field


class AclCreation(Message):
    resource_type: int = field(Int8)
    resource_name: str = field(String)
    resource_pattern_type: int = field(Int8, default=3)  # 3 literal 4 prefixed
    principal: str = field(String)  # e.g. User:alice
    host: str = field(String)
    operation: int = field(Int8)
    permission_type: int = field(Int8)  # 2 deny 3 allow


class CreateAclsRequest(Message, api=CREATE_ACLS):
    creations: Sequence[AclCreation] = field(Array(AclCreation))


class AclCreationResult(Message):
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable=1)


class CreateAclsResponse(Message, api=CREATE_ACLS):
    throttle_time_ms: int = field(Int32)
    results: Sequence[AclCreationResult] = field(Array(AclCreationResult))
