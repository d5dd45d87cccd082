"""The principal of a client, in the request that a broker forwards: Kafka's default form.

A version (int16), then the fields; flexible.
"""

from __future__ import annotations

from struct import Struct

from .compiler import codec
from .errors import DecodeError
from .schema import Bool, Buffer, Message, String, Versions, field

_VERSION = Struct(">h")
_VERSIONS = Versions(0, 0, flexible_since=0)


class DefaultPrincipalData(Message, versions=_VERSIONS):
    """A principal."""

    type: str = field(String)
    name: str = field(String)
    token_authenticated: bool = field(Bool)  # by a delegation token


def encode_principal(principal_type: str, name: str) -> bytes:
    """Return a principal in the form of an Envelope."""
    data = DefaultPrincipalData(type=principal_type, name=name, token_authenticated=False)
    parts: list[Buffer] = []
    tail = codec(DefaultPrincipalData, 0).encode(data, bytearray(_VERSION.pack(0)), parts)
    return b"".join([*parts, tail])


def decode_principal(data: Buffer) -> tuple[str, str]:
    """Return the type and the name of a principal. Raises DecodeError."""
    view = memoryview(data)
    if len(view) < _VERSION.size:
        raise DecodeError("too short", "DefaultPrincipalData", 0)
    (version,) = _VERSION.unpack_from(view)
    if version not in _VERSIONS:
        raise DecodeError("unknown version", "DefaultPrincipalData", version)
    principal, position = codec(DefaultPrincipalData, version).decode(view, _VERSION.size)
    if position != len(view) or not principal.type or not principal.name:
        raise DecodeError("malformed", "DefaultPrincipalData", version, position=position)
    return principal.type, principal.name
