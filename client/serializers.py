"""Serializers and deserializers, and their application to keys, values and headers.

A serializer is a plain function from a value to bytes; a deserializer is the inverse. They are not
called for None: a record without a key has none, and a record without a value is a tombstone.

    Producer("localhost:9092", value_serializer=serialize_json)
"""

from __future__ import annotations

import json
from typing import Any

from .errors import SerializationError
from .types import Headers, Serializer


def serialize_bytes(value: Any) -> bytes:
    """Return bytes; a bytearray or memoryview is copied, as the program may modify it."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"{type(value).__name__} is not bytes")


def serialize_str(value: str) -> bytes:
    """Encode as UTF-8."""
    if isinstance(value, str):
        return value.encode()
    raise TypeError(f"{type(value).__name__} is not str")


def serialize_json(value: Any) -> bytes:
    """Encode as compact JSON. Raises ValueError for NaN, which is not JSON."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def deserialize_str(data: bytes) -> str:
    """Decode UTF-8."""
    return str(data, "utf-8")


def deserialize_json(data: bytes) -> Any:
    """Decode JSON."""
    return json.loads(data)


def to_bytes(value: Any, serializer: Serializer[Any] | None, what: str) -> bytes | None:
    """Serialize a key or value, into bytes that nobody else modifies.

    Raises SerializationError, with the serializer's error as its cause.
    """
    if value is None:
        return None
    if serializer is not None:
        try:
            value = serializer(value)
        except Exception as error:
            reason = f"The {what} serializer raised {type(error).__name__}: {error}"
            raise SerializationError(reason) from error
    if value is None or type(value) is bytes:
        return value
    try:
        return serialize_bytes(value)
    except TypeError as error:
        kind = type(value).__name__
        reason = (
            f"The {what} is {kind}, not bytes: encode it, or set {what}_serializer"
            if serializer is None
            else f"The {what} serializer returned {kind}, not bytes"
        )
        raise SerializationError(reason) from error


def to_headers(headers: Headers) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    """Return headers as pairs, and an upper bound of their encoded size.

    Raises SerializationError.
    """
    pairs = headers.items() if hasattr(headers, "items") else headers
    checked: list[tuple[str, bytes | None]] = []
    size = 0
    try:
        for name, value in pairs:
            data = None if value is None else serialize_bytes(value)
            checked.append((name, data))
            # With two varints of up to five bytes each.
            size += len(name.encode()) + 10 + (0 if data is None else len(data))
    except (AttributeError, TypeError, ValueError) as error:
        reason = f"Invalid headers: expected pairs of a name and bytes or None: {error}"
        raise SerializationError(reason) from error
    return tuple(checked), size
