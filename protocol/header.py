"""Request and response headers.

Two exceptions, here and in `Api.response_header_version`, exist for compatibility. The client id
keeps its legacy length in the flexible request header, because a broker reads it before it knows
whether it supports the version. And ApiVersions responses have header version 0 in all versions.
"""

from __future__ import annotations

from .schema import Int16, Int32, LegacyString, Message, Versions, field


class RequestHeader(Message, versions=Versions(1, 2, flexible_since=2)):
    """The header of a request."""

    request_api_key: int = field(Int16)
    request_api_version: int = field(Int16)
    correlation_id: int = field(Int32)  # echoed in the response
    client_id: str | None = field(LegacyString, nullable=1)


class ResponseHeader(Message, versions=Versions(0, 1, flexible_since=1)):
    """The header of a response."""

    correlation_id: int = field(Int32)
