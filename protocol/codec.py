"""Whole frames: what a broker and a client do with the messages of `protocol/api/`.

A frame on the wire is an int32 size and that many bytes: a header, then a body. `encode_*` give the
whole of it as a list of buffers, size in front, for one `writelines`; large byte fields are in that
list as they were in the message. `decode_*` take what follows the size.
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
    """Encode a request, header and size included."""
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

    Bytes after the last known field are left alone: librdkafka sends some. Raises DecodeError, and
    of that UnsupportedVersionError where the body cannot be looked at, but an answer may be owed.
    """
    view = memoryview(frame)
    try:
        # All versions of the header begin alike; which one it is follows from what that says.
        key, version, correlation_id = _HEADER_START.unpack_from(view)
    except struct.error:
        codec(RequestHeader, 1).decode(view)  # raises, and says what is missing
        raise
    try:
        header_codec, body_codec = _request_codecs(key, version)
    except LookupError:
        raise UnsupportedVersionError(key, version, correlation_id) from None
    header, position = header_codec.decode(view)
    body, _ = body_codec.decode(view, position)
    return header, body


def encode_response(response: Message, version: int, correlation_id: int) -> list[Buffer]:
    """Encode a response, header and size included."""
    # The header is so simple that a codec for it would only cost time.
    tail = bytearray(_RESPONSE_START.pack(0, correlation_id))
    body_codec, has_tags = _response_codec(type(response), version)
    if has_tags:
        tail.append(0)
    return _finish([], tail, response, body_codec)


def decode_response(response: type[M], version: int, frame: Buffer) -> tuple[int, M]:
    """Decode a response of a known kind; give its correlation id too. Raises DecodeError.

    A response is all that was announced: bytes left over mean that it was misread.
    """
    view = memoryview(frame)
    header_version = _api_of(response).response_header_version(version)
    header, position = codec(ResponseHeader, header_version).decode(view)
    body, position = codec(response, version).decode(view, position)
    if position != len(view):
        reason = f"{len(view) - position} bytes left over"
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
    # The first part is always ours: it starts with the room for the size.
    _SIZE.pack_into(parts[0], 0, sum(map(len, parts)) - 4)
    return parts


# What follows from the kind of a message and its version, asked for with each of them. Only what
# there is finds its way into these caches: a failure is not kept.


@cache
def _request_codecs(key: int, version: int) -> tuple[Codec[RequestHeader], Codec[Any]]:
    """Give the codecs of a request's header and body. Raises LookupError if there are none."""
    api = APIS[key]
    if version not in api.versions:
        raise LookupError(version)
    header_version = api.request_header_version(version)
    return codec(RequestHeader, header_version), codec(api.request, version)


@cache
def _response_codec(response: type[M], version: int) -> tuple[Codec[M], int]:
    """Give the codec of a response's body, and the version of its header."""
    return codec(response, version), _api_of(response).response_header_version(version)


def _api_of(message: type[Message]) -> Api:
    if message.api is None:
        raise TypeError(f"{message.__name__} is not a request or response by itself")
    return message.api
