"""SaslAuthenticate (key 36): exchange SASL tokens.

Version 1 adds SessionLifetimeMs to the response.
Version 2 is the first flexible version.
"""

from __future__ import annotations

from ..registry import SASL_AUTHENTICATE
from ..schema import Buffer, Bytes, Int16, Int64, Message, String, field


class SaslAuthenticateRequest(Message, api=SASL_AUTHENTICATE):
    auth_bytes: Buffer = field(Bytes, is_secret=True)  # SASL token


class SaslAuthenticateResponse(Message, api=SASL_AUTHENTICATE):
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable=0)
    auth_bytes: Buffer = field(Bytes, is_secret=True)  # SASL token
    session_lifetime_ms: int = field(Int64, since=1, ignorable=True)  # re-auth deadline, 0 = never
