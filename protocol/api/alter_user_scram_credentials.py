"""AlterUserScramCredentials (key 51): add, replace and remove SCRAM credentials.

The client sends the salted password: the password itself never leaves it.

Version 0 is the first flexible version.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import ALTER_USER_SCRAM_CREDENTIALS
from ..schema import Array, Buffer, Bytes, Int8, Int16, Int32, Message, String, field


class ScramCredentialDeletion(Message):
    name: str = field(String)
    mechanism: int = field(Int8)  # 1 SCRAM-SHA-256 2 SCRAM-SHA-512


class ScramCredentialUpsertion(Message):
    name: str = field(String)
    mechanism: int = field(Int8)
    iterations: int = field(Int32)
    salt: Buffer = field(Bytes)
    salted_password: Buffer = field(Bytes, is_secret=True)


class AlterUserScramCredentialsRequest(Message, api=ALTER_USER_SCRAM_CREDENTIALS):
    deletions: Sequence[ScramCredentialDeletion] = field(Array(ScramCredentialDeletion))
    upsertions: Sequence[ScramCredentialUpsertion] = field(Array(ScramCredentialUpsertion))


class AlterUserScramCredentialsResult(Message):
    user: str = field(String)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable=0)


class AlterUserScramCredentialsResponse(Message, api=ALTER_USER_SCRAM_CREDENTIALS):
    throttle_time_ms: int = field(Int32)
    results: Sequence[AlterUserScramCredentialsResult] = field(
        Array(AlterUserScramCredentialsResult)
    )
