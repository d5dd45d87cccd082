"""The headers in front of every request and response.

Two habits of history live here and in `Api.response_header_version`: the client id keeps its legacy
length in the flexible request header, because a broker reads it before it knows whether it
understands the version; and ApiVersions is answered with header 0 in all its versions.
"""

from __future__ import annotations

from .schema import Int16, Int32, LegacyString, Message, Versions, field


class RequestHeader(Message, versions=Versions(1, 2, flexible_since=2)):
    """In front of every request."""

    request_api_key: int = field(Int16)
    request_api_version: int = field(Int16)
    correlation_id: int = field(Int32)  # echoed in the response
    client_id: str | None = field(LegacyString, nullable=1)


class ResponseHeader(Message, versions=Versions(0, 1, flexible_since=1)):
    """In front of every response."""

    correlation_id: int = field(Int32)
