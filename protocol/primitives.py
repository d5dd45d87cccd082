"""The types of the Kafka protocol as constructs: the reference for every byte.

A message in one version is a `Body`: a construct `Struct` of its fields, and in flexible versions a
`TagSection` at the end. These classes are written for reading and for comparison in tests, not for
speed; `compiler` generates the code that runs from the same objects.

Strings, bytes and arrays are a length and then the content. The length of null is -1:

    legacy     int16 (strings) or int32 (bytes, arrays), -1 for null
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
    Float64b,
    Int8sb,
    Int16sb,
    Int16ub,
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
    "Float64b",
    "Int8sb",
    "Int16sb",
    "Int16ub",
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
_TAGS = "tagged fields"  # not an identifier, so no field has this name


class LossError(ConstructError):  # type: ignore[misc]  # construct is untyped
    """A field that does not exist in the version has a value other than its default."""


class UnsignedVarint(Construct):  # type: ignore[misc]
    """Base 128, least significant group first, high bit set on all but the last byte; 1 to 5 bytes.

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
        raise RangeError("varint longer than 5 bytes", path=path)

    def _build(self, obj: int, stream: Any, context: Any, path: str) -> int:
        if obj < 0:
            raise RangeError(f"negative value {obj}", path=path)
        rest = obj
        while rest > 0x7F:
            stream_write(stream, bytes((rest & 0x7F | 0x80,)), 1, path)
            rest >>= 7
        stream_write(stream, bytes((rest,)), 1, path)
        return obj


Unsigned = UnsignedVarint()


class _CompactLength(Adapter):  # type: ignore[misc]
    """A length in flexible versions: stored plus one, so that null (-1) is 0."""

    def _decode(self, obj: int, context: Any, path: str) -> int:
        return obj - 1

    def _encode(self, obj: int, context: Any, path: str) -> int:
        return obj + 1


CompactLength = _CompactLength(Unsigned)


class _UuidBytes(Adapter):  # type: ignore[misc]
    """Sixteen bytes, most significant first; all zero means no id."""

    def _decode(self, obj: bytes, context: Any, path: str) -> uuid.UUID:
        return uuid.UUID(bytes=obj)

    def _encode(self, obj: uuid.UUID, context: Any, path: str) -> bytes:
        return obj.bytes


UuidBytes = _UuidBytes(Bytes(16))


class _LengthPrefixed(Construct):  # type: ignore[misc]
    """A length, then that many bytes or elements; null has length -1 and no content."""

    def __init__(self, length: Construct, nullable: bool) -> None:
        super().__init__()
        self.length = length
        self.nullable = nullable

    def _parse(self, stream: Any, context: Any, path: str) -> Any:
        length = self.length._parsereport(stream, context, path)
        if length == -1 and self.nullable:
            return None
        if length < 0:
            raise RangeError(f"invalid length {length}", path=path)
        return self._parse_content(length, stream, context, path)

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> Any:
        if obj is None:
            if not self.nullable:
                raise RangeError("not nullable in this version", path=path)
            self.length._build(-1, stream, context, path)
        else:
            self._build_content(obj, stream, context, path)
        return obj

    def _parse_content(self, length: int, stream: Any, context: Any, path: str) -> Any:
        raise NotImplementedError

    def _build_content(self, obj: Any, stream: Any, context: Any, path: str) -> None:
        raise NotImplementedError


class Blob(_LengthPrefixed):
    """Bytes, or records, which are opaque here."""

    def _parse_content(self, length: int, stream: Any, context: Any, path: str) -> bytes:
        content: bytes = stream_read(stream, length, path)
        return content

    def _build_content(self, obj: bytes, stream: Any, context: Any, path: str) -> None:
        self.length._build(len(obj), stream, context, path)
        stream_write(stream, bytes(obj), len(obj), path)


class Text(_LengthPrefixed):
    """A UTF-8 string."""

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


class ArrayOf(_LengthPrefixed):
    """An array of elements of one type."""

    def __init__(self, length: Construct, element: Construct, nullable: bool) -> None:
        super().__init__(length, nullable)
        self.element = element

    def _parse_content(self, length: int, stream: Any, context: Any, path: str) -> list[Any]:
        # Nothing is allocated up front: a false count runs out of bytes first.
        return [
            self.element._parsereport(stream, context, f"{path}[{index}]")
            for index in range(length)
        ]

    def _build_content(self, obj: Any, stream: Any, context: Any, path: str) -> None:
        self.length._build(len(obj), stream, context, path)
        for index, element in enumerate(obj):
            self.element._build(element, stream, context, f"{path}[{index}]")


class TagSection(Construct):  # type: ignore[misc]
    """The end of every struct in flexible versions: a count, then (tag, size, payload) per tag.

    Known tagged fields are omitted if they have their default. Unknown tags are kept as (tag,
    payload) pairs and written back, in ascending order of tags.
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
                    raise StreamError(f"trailing bytes in tag {tag}", path=path)
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
    """One message class in one version.

    Parsing returns a message in which every field that is not on the wire has its default. `absent`
    has the defaults of fields that do not exist in this version and are not ignorable: building
    fails if one has another value.
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
                raise LossError(f"{name} does not exist in this version", path=path)
        values = {name: getattr(obj, name) for name, _subcon in self.fields}
        if self.tags is not None:
            tagged = {name: getattr(obj, name) for name, _, _ in self.tags.fields.values()}
            values[_TAGS] = tagged | {"unknown_tagged_fields": obj.unknown_tagged_fields}
        elif obj.unknown_tagged_fields:
            raise LossError("tagged fields do not exist in this version", path=path)
        return values


class NullableBody(Subconstruct):  # type: ignore[misc]
    """A nullable struct: preceded by one byte, -1 for null and 1 for present."""

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
    # Arrays may be lists or tuples; defaults are tuples.
    return bool((tuple(value) if isinstance(value, list) else value) == default)
