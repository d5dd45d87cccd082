"""SaslHandshake (key 17): select a SASL mechanism.

Version 0 is followed by SASL tokens in bare frames.
Version 1 is followed by SaslAuthenticate requests.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import SASL_HANDSHAKE
from ..schema import Array, Int16, Message, String, field


class SaslHandshakeRequest(Message, api=SASL_HANDSHAKE):
    mechanism: str = field(String)


class SaslHandshakeResponse(Message, api=SASL_HANDSHAKE):
    error_code: int = field(Int16)
    mechanisms: Sequence[str] = field(Array(String))
