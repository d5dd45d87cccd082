"""The construct types of the Kafka wire: the reference for every byte.

A message of a version is a `Body`: a construct `Struct` of its fields, and in a flexible version a
`TagSection` that closes it. These classes are written to be read and compared against, not to be
fast; `compiler` reads the same objects and writes the code that the broker runs.

A byte string or an array is a length, then its content. The length of null is -1:

    legacy     int16 (text) or int32 (bytes, arrays), -1 for null
    compact    unsigned varint of length + 1, so 0 for null        (flexible versions)
"""

from __future__ import annotations

import io
import uuid
from typing import Any

from construct import (
    Adapter,
    Bytes,
    Construct,
    ConstructError,
    Flag,
    Int8sb,
    Int16sb,
    Int32sb,
    Int64sb,
    RangeError,
    StreamError,
    StringError,
    Struct,
    Subconstruct,
    stream_read,
    stream_write,
)

__all__ = [
    "NIL_UUID",
    "ArrayOf",
    "Blob",
    "Body",
    "CompactLength",
    "ConstructError",
    "Flag",
    "Int8sb",
    "Int16sb",
    "Int32sb",
    "Int64sb",
    "LossError",
    "NullableBody",
    "TagSection",
    "Text",
    "Unsigned",
    "UuidBytes",
]

NIL_UUID = uuid.UUID(int=0)
_UVARINT_MAX_BYTES = 5
_TAGS = "tagged fields"  # no field of a message can have this name


class LossError(ConstructError):  # type: ignore[misc]  # construct is untyped
    """A field that the version lacks holds a value that must not be lost."""


class UnsignedVarint(Construct):  # type: ignore[misc]
    """Base 128, low group first, the high bit set on all bytes but the last; five bytes at most.

    300 = 0b10_0101100  →  ac 02
    """

    def _parse(self, stream: Any, context: Any, path: str) -> int:
        value = 0
        byte: int
        for shift in range(0, 7 * _UVARINT_MAX_BYTES, 7):
            byte = stream_read(stream, 1, path)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise RangeError("a varint of more than five bytes", path=path)

    def _build(self, obj: int, stream: Any, context: Any, path: str) -> int:
        if obj < 0:
            raise RangeError(f"{obj} is negative", path=path)
        rest = obj
        while rest > 0x7F:
            stream_write(stream, bytes((rest & 0x7F | 0x80,)), 1, path)
            rest >>= 7
        stream_write(stream, bytes((rest,)), 1, path)
        return obj


Unsigned = UnsignedVarint()


class _CompactLength(Adapter):  # type: ignore[misc]
    """A length as flexible versions write it: one more than it is, so that null (-1) is 0."""

    def _decode(self, obj: int, context: Any, path: str) -> int:
        return obj - 1

    def _encode(self, obj: int, context: Any, path: str) -> int:
        return obj + 1


CompactLength = _CompactLength(Unsigned)


class _UuidBytes(Adapter):  # type: ignore[misc]
    """Sixteen bytes, the most significant first; all zero means that there is no id."""

    def _decode(self, obj: bytes, context: Any, path: str) -> uuid.UUID:
        return uuid.UUID(bytes=obj)

    def _encode(self, obj: uuid.UUID, context: Any, path: str) -> bytes:
        return obj.bytes


UuidBytes = _UuidBytes(Bytes(16))


class _Measured(Construct):  # type: ignore[misc]
    """A length, then that many bytes or elements; null has the length -1 and no content."""

    def __init__(self, length: Construct, nullable: bool) -> None:
        super().__init__()
        self.length = length
        self.nullable = nullable

    def _parse(self, stream: Any, context: Any, path: str) -> Any:
        length = self.length._parsereport(stream, context, path)
        if length == -1 and self.nullable:
            return None
        if length < 0:
            raise RangeError(f"length {length}", path=path)
        return self._parse_content(length, stream, context, path)

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> Any:
        if obj is None:
            if not self.nullable:
                raise RangeError("null where the version allows none", path=path)
            self.length._build(-1, stream, context, path)
        else:
            self._build_content(obj, stream, context, path)
        return obj

    def _parse_content(self, length: int, stream: Any, context: Any, path: str) -> Any:
        raise NotImplementedError

    def _build_content(self, obj: Any, stream: Any, context: Any, path: str) -> None:
        raise NotImplementedError


class Blob(_Measured):
    """Bytes, records among them: opaque here."""

    def _parse_content(self, length: int, stream: Any, context: Any, path: str) -> bytes:
        content: bytes = stream_read(stream, length, path)
        return content

    def _build_content(self, obj: bytes, stream: Any, context: Any, path: str) -> None:
        self.length._build(len(obj), stream, context, path)
        stream_write(stream, bytes(obj), len(obj), path)


class Text(_Measured):
    """UTF-8."""

    def _parse_content(self, length: int, stream: Any, context: Any, path: str) -> str:
        content: bytes = stream_read(stream, length, path)
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise StringError(str(error), path=path) from error

    def _build_content(self, obj: str, stream: Any, context: Any, path: str) -> None:
        content = obj.encode()
        self.length._build(len(content), stream, context, path)
        stream_write(stream, content, len(content), path)


class ArrayOf(_Measured):
    """Elements of one type, one after the other."""

    def __init__(self, length: Construct, element: Construct, nullable: bool) -> None:
        super().__init__(length, nullable)
        self.element = element

    def _parse_content(self, length: int, stream: Any, context: Any, path: str) -> list[Any]:
        # No list is made for the count's sake: a false one runs out of bytes first.
        return [
            self.element._parsereport(stream, context, f"{path}[{index}]")
            for index in range(length)
        ]

    def _build_content(self, obj: Any, stream: Any, context: Any, path: str) -> None:
        self.length._build(len(obj), stream, context, path)
        for index, element in enumerate(obj):
            self.element._build(element, stream, context, f"{path}[{index}]")


class TagSection(Construct):  # type: ignore[misc]
    """What closes every struct of a flexible version: a count, then (tag, size, payload) each.

    A known tagged field that holds its default is left out. Tags that nobody here knows are kept
    as (tag, payload) pairs and written back in their place: tags go up.
    """

    def __init__(self, fields: dict[int, tuple[str, Construct, Any]]) -> None:
        super().__init__()
        self.fields = fields

    def _parse(self, stream: Any, context: Any, path: str) -> dict[str, Any]:
        values: dict[str, Any] = {}
        unknown = []
        for _ in range(Unsigned._parse(stream, context, path)):
            tag = Unsigned._parse(stream, context, path)
            payload = stream_read(stream, Unsigned._parse(stream, context, path), path)
            if tag in self.fields:
                name, subcon, _default = self.fields[tag]
                content = io.BytesIO(payload)
                values[name] = subcon.parse_stream(content)
                if content.tell() != len(payload):
                    raise StreamError(f"bytes left over in tag {tag}", path=path)
            else:
                unknown.append((tag, payload))
        if unknown:
            values["unknown_tagged_fields"] = tuple(unknown)
        return values

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> Any:
        tags = [*obj["unknown_tagged_fields"]]
        for tag, (name, subcon, default) in self.fields.items():
            if not _is_default(obj[name], default):
                tags.append((tag, subcon.build(obj[name])))
        Unsigned._build(len(tags), stream, context, path)
        for tag, payload in sorted(tags, key=lambda item: item[0]):
            Unsigned._build(tag, stream, context, path)
            Unsigned._build(len(payload), stream, context, path)
            stream_write(stream, bytes(payload), len(payload), path)
        return obj


class Body(Adapter):  # type: ignore[misc]
    """One message class in one version: its struct, and the fields which that version lacks.

    Parsing gives a message in which all that was not on the wire has its default. `absent` maps
    each field that the version lacks, and must not lose, to that default.
    """

    def __init__(
        self,
        message: type[Any],
        fields: list[tuple[str, Construct]],
        tags: TagSection | None,
        absent: dict[str, Any],
    ) -> None:
        subcons = [name / subcon for name, subcon in fields]
        if tags is not None:
            subcons.append(_TAGS / tags)
        super().__init__(Struct(*subcons))
        self.message = message
        self.fields = fields
        self.tags = tags
        self.absent = absent

    def _decode(self, obj: Any, context: Any, path: str) -> Any:
        values = {name: obj[name] for name, _subcon in self.fields}
        unknown: tuple[tuple[int, bytes], ...] = ()
        if self.tags is not None:
            tagged = obj[_TAGS]
            unknown = tagged.pop("unknown_tagged_fields", ())
            values |= tagged
        return self.message(**values, unknown_tagged_fields=unknown)

    def _encode(self, obj: Any, context: Any, path: str) -> dict[str, Any]:
        for name, default in self.absent.items():
            if not _is_default(getattr(obj, name), default):
                raise LossError(f"{name} is not in this version", path=path)
        values = {name: getattr(obj, name) for name, _subcon in self.fields}
        if self.tags is not None:
            tagged = {name: getattr(obj, name) for name, _, _ in self.tags.fields.values()}
            values[_TAGS] = tagged | {"unknown_tagged_fields": obj.unknown_tagged_fields}
        elif obj.unknown_tagged_fields:
            raise LossError("tagged fields are not in this version", path=path)
        return values


class NullableBody(Subconstruct):  # type: ignore[misc]
    """A struct that may be null: one byte before it says so (-1 null, 1 present)."""

    def _parse(self, stream: Any, context: Any, path: str) -> Any:
        if Int8sb._parse(stream, context, path) < 0:
            return None
        return self.subcon._parsereport(stream, context, path)

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> Any:
        Int8sb._build(-1 if obj is None else 1, stream, context, path)
        if obj is not None:
            self.subcon._build(obj, stream, context, path)
        return obj


def _is_default(value: Any, default: Any) -> bool:
    # An empty array is one in a list as well as in a tuple.
    return bool((tuple(value) if isinstance(value, list) else value) == default)
