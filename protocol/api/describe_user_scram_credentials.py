"""DescribeUserScramCredentials (key 50): which SCRAM credentials users have, without secrets.

Version 0 is the first flexible version.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import DESCRIBE_USER_SCRAM_CREDENTIALS
from ..schema import Array, Int8, Int16, Int32, Message, String, field


class UserName(Message):
    name: str = field(String)


class DescribeUserScramCredentialsRequest(Message, api=DESCRIBE_USER_SCRAM_CREDENTIALS):
    users: Sequence[UserName] | None = field(Array(UserName), nullable=0)  # null or empty: all


class CredentialInfo(Message):
    mechanism: int = field(Int8)  # 1 SCRAM-SHA-256 2 SCRAM-SHA-512
    iterations: int = field(Int32)


class DescribeUserScramCredentialsResult(Message):
    user: str = field(String)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable=0)
    credential_infos: Sequence[CredentialInfo] = field(Array(CredentialInfo))


class DescribeUserScramCredentialsResponse(Message, api=DESCRIBE_USER_SCRAM_CREDENTIALS):
    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable=0)
    results: Sequence[DescribeUserScramCredentialsResult] = field(
        Array(DescribeUserScramCredentialsResult)
    )
