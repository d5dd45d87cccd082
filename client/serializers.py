"""From a program's values to bytes and back: ready functions, and what is done with anybody's.

A serializer is a plain function from a value to bytes; a deserializer is the other way. None is
never given to one: a record without a key has none, and a record without a value is a tombstone.

    Producer("localhost:9092", value_serializer=serialize_json)
"""

from __future__ import annotations

import json
from typing import Any

from .errors import SerializationError
from .types import Headers, Serializer


def serialize_bytes(value: Any) -> bytes:
    """Take bytes, or what is like bytes, which is copied: its owner may change it at any time."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"{type(value).__name__} is not bytes")


def serialize_str(value: Any) -> bytes:
    """Write text as UTF-8."""
    if isinstance(value, str):
        return value.encode()
    raise TypeError(f"{type(value).__name__} is not str")


def serialize_json(value: Any) -> bytes:
    """Write a value as JSON, as short as it goes. NaN is refused: it is not JSON."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def deserialize_str(data: bytes) -> str:
    """Read UTF-8."""
    return str(data, "utf-8")


def deserialize_json(data: bytes) -> Any:
    """Read JSON."""
    return json.loads(data)


def to_bytes(value: Any, serializer: Serializer | None, what: str) -> bytes | None:
    """Serialize a key or value. Raises SerializationError, whose cause is what went wrong.

    The bytes that are given back are nobody else's to change.
    """
    if value is None:
        return None
    if serializer is not None:
        try:
            value = serializer(value)
        except Exception as error:
            reason = f"the {what} serializer raised {type(error).__name__}: {error}"
            raise SerializationError(reason) from error
    if value is None or type(value) is bytes:
        return value
    try:
        return serialize_bytes(value)
    except TypeError as error:
        made = "is" if serializer is None else "was serialized to"
        reason = f"the {what} {made} {type(value).__name__}: bytes are sent; give a serializer"
        raise SerializationError(reason) from error


def to_headers(headers: Headers) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    """Give headers as they are encoded, and how many bytes that takes at most.

    Raises SerializationError.
    """
    pairs = headers.items() if hasattr(headers, "items") else headers
    checked: list[tuple[str, bytes | None]] = []
    size = 0
    try:
        for name, value in pairs:
            data = None if value is None else serialize_bytes(value)
            checked.append((name, data))
            # Two lengths, of up to five bytes each.
            size += len(name.encode()) + 10 + (0 if data is None else len(data))
    except (AttributeError, TypeError, ValueError) as error:
        reason = f"headers are pairs of a name and bytes, or None for no value: {error}"
        raise SerializationError(reason) from error
    return tuple(checked), size
