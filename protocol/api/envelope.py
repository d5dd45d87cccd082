"""Envelope (key 58): a request that a broker forwards to the controller for one of its clients.

Between brokers only. Version 0 is the first flexible version.
"""

from __future__ import annotations

from ..registry import ENVELOPE
from ..schema import Buffer, Bytes, Int16, Message, field


class EnvelopeRequest(Message, api=ENVELOPE):
    request_data: Buffer = field(Bytes, is_secret=True)  # a request with its header
    request_principal: Buffer | None = field(Bytes, nullable=0)  # see protocol/principal.py
    client_host_address: Buffer = field(Bytes)  # 4 or 16 bytes


class EnvelopeResponse(Message, api=ENVELOPE):
    response_data: Buffer | None = field(Bytes, nullable=0, default=None)
    error_code: int = field(Int16)
