"""Encode and decode requests and responses: a header, then a body.

`encode_*` return a frame, size included, as a list of buffers for one `writelines`; large byte
fields are in that list uncopied. `decode_*` take a frame without its size; see `frame`.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Any, TypeVar

from .compiler import Codec, codec
from .errors import DecodeError, UnsupportedVersionError
from .header import RequestHeader, ResponseHeader
from .registry import APIS, Api
from .schema import Buffer, Message

M = TypeVar("M", bound=Message)

_HEADER_START = struct.Struct(">hhi")
_RESPONSE_START = struct.Struct(">ii")
_SIZE = struct.Struct(">i")


def encode_request(
    request: Message, version: int, correlation_id: int, client_id: str | None
) -> list[Buffer]:
    """Encode a request, including size and header."""
    api = _api_of(type(request))
    header = RequestHeader(
        request_api_key=api.key,
        request_api_version=version,
        correlation_id=correlation_id,
        client_id=client_id,
    )
    return _encode(header, api.request_header_version(version), request, version)


def decode_request(frame: Buffer) -> tuple[RequestHeader, Message]:
    """Decode a request. Its byte fields are slices of `frame`.

    Bytes after the last known field are ignored: librdkafka sends some. Raises DecodeError; of that
    UnsupportedVersionError, which has the correlation id for a response, if the version is unknown.
    """
    view = memoryview(frame)
    try:
        # The header version depends on the API key and version, which all headers start with.
        key, version, correlation_id = _HEADER_START.unpack_from(view)
    except struct.error:
        codec(RequestHeader, 1).decode(view)  # raises an error that names the missing field
        raise
    try:
        header_codec, body_codec = _request_codecs(key, version)
    except LookupError:
        raise UnsupportedVersionError(key, version, correlation_id) from None
    header, position = header_codec.decode(view)
    body, _ = body_codec.decode(view, position)
    return header, body


def encode_response(response: Message, version: int, correlation_id: int) -> list[Buffer]:
    """Encode a response, including size and header."""
    # Written by hand: the header is too simple to be worth a codec call.
    tail = bytearray(_RESPONSE_START.pack(0, correlation_id))
    body_codec, has_tags = _response_codec(type(response), version)
    if has_tags:
        tail.append(0)
    return _finish([], tail, response, body_codec)


def decode_response(response: type[M], version: int, frame: Buffer) -> tuple[int, M]:
    """Decode a response; return its correlation id and body. Raises DecodeError.

    A response fills its frame: trailing bytes mean that it was decoded wrongly.
    """
    view = memoryview(frame)
    header_version = _api_of(response).response_header_version(version)
    header, position = codec(ResponseHeader, header_version).decode(view)
    body, position = codec(response, version).decode(view, position)
    if position != len(view):
        reason = f"{len(view) - position} trailing bytes"
        raise DecodeError(reason, response.__name__, version, position=position)
    return header.correlation_id, body


def _encode(header: Message, header_version: int, body: Message, version: int) -> list[Buffer]:
    parts: list[Buffer] = []
    tail = codec(type(header), header_version).encode(header, bytearray(4), parts)
    return _finish(parts, tail, body, codec(type(body), version))


def _finish(parts: list[Buffer], tail: bytearray, body: M, codec: Codec[M]) -> list[Buffer]:
    tail = codec.encode(body, tail, parts)
    if tail:
        parts.append(tail)
    # The first part is our own buffer, and starts with four bytes reserved for the size.
    _SIZE.pack_into(parts[0], 0, sum(map(len, parts)) - 4)
    return parts


# Looked up for every message. The caches are bounded by the supported APIs and versions, because
# exceptions are not cached.


@cache
def _request_codecs(key: int, version: int) -> tuple[Codec[RequestHeader], Codec[Any]]:
    """Return the codecs of header and body. Raises LookupError if the version is unsupported."""
    api = APIS[key]
    if version not in api.versions:
        raise LookupError(version)
    header_version = api.request_header_version(version)
    return codec(RequestHeader, header_version), codec(api.request, version)


@cache
def _response_codec(response: type[M], version: int) -> tuple[Codec[M], int]:
    """Return the codec of a response body, and the version of the response header."""
    return codec(response, version), _api_of(response).response_header_version(version)


def _api_of(message: type[Message]) -> Api:
    if message.api is None:
        raise TypeError(f"{message.__name__} is neither a request nor a response")
    return message.api
