"""Declare messages: once for all versions, each field with the versions that have it.

    class HeartbeatRequest(Message, api=HEARTBEAT):
        group_id: str = field(String)
        generation_id: int = field(Int32)
        member_id: str = field(String)
        group_instance_id: str | None = field(String, since=3, nullable=3, default=None)

A declaration yields three things: a class with typed, keyword-only attributes that have defaults
(`HeartbeatRequest(group_id="g")`), the same for all versions; the construct of each version,
`HeartbeatRequest.struct(4)`, which is the reference; and the codec that runs, which `compiler`
generates from that construct.

Messages are values: type checkers reject assignments to fields, and arrays are Sequences, so
defaults can be shared. At run time nothing is frozen, because codecs fill in messages field by
field.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Self,
    TypeVar,
    dataclass_transform,
    overload,
)
from uuid import UUID

from . import primitives

if TYPE_CHECKING:
    from collections.abc import Mapping

    from construct import Construct

    from .registry import Api

T = TypeVar("T")
M = TypeVar("M", bound="Message")


class FrozenArray(tuple[T, ...]):
    """An array of messages that never change: encoders keep its bytes for the next time.

    That is worth it for a long array inside of another one, in message after message. Its elements
    must not have byte fields.
    """

    encodings: dict[str, bytes]

    def __new__(cls, messages: Iterable[T]) -> Self:
        """Return an array that was not encoded yet."""
        array = super().__new__(cls, messages)
        array.encodings = {}
        return array


#: The value of a bytes field; in a decoded message, a memoryview of the frame.
Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Versions:
    """An inclusive range of versions, and the first flexible version (None: no version is)."""

    first: int
    last: int
    flexible_since: int | None = None

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.last + 1))

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"

    def is_flexible(self, version: int) -> bool:
        """Whether a version has compact lengths and tagged fields."""
        return self.flexible_since is not None and version >= self.flexible_since


class FieldType(Generic[T]):
    """A type of the Kafka protocol. `T` is the Python type of its values."""

    def __init__(self, zero: T) -> None:
        self.zero = zero

    def struct(self, version: int, *, flexible: bool, nullable: bool) -> Construct:
        """Return the construct of this type."""
        raise NotImplementedError


class _Fixed(FieldType[T]):
    """A type of fixed size, the same in all versions."""

    def __init__(self, construct: Construct, zero: T) -> None:
        super().__init__(zero)
        self._construct = construct

    def struct(self, version: int, *, flexible: bool, nullable: bool) -> Construct:
        assert not nullable, "fixed-size types are not nullable"
        return self._construct


class _LengthPrefixed(FieldType[T]):
    """A type with a length prefix: legacy, or compact in flexible versions."""

    def __init__(self, construct: Any, legacy_length: Construct, zero: T) -> None:
        super().__init__(zero)
        self._construct = construct
        self._legacy_length = legacy_length

    def struct(self, version: int, *, flexible: bool, nullable: bool) -> Construct:
        length = primitives.CompactLength if flexible else self._legacy_length
        return self._construct(length, nullable)


class _LegacyString(_LengthPrefixed[str]):
    """A string that keeps its legacy length even in flexible versions."""

    def struct(self, version: int, *, flexible: bool, nullable: bool) -> Construct:
        return super().struct(version, flexible=False, nullable=nullable)


Bool: FieldType[bool] = _Fixed(primitives.Flag, zero=False)
Int8: FieldType[int] = _Fixed(primitives.Int8sb, zero=0)
Int16: FieldType[int] = _Fixed(primitives.Int16sb, zero=0)
UInt16: FieldType[int] = _Fixed(primitives.Int16ub, zero=0)
Int32: FieldType[int] = _Fixed(primitives.Int32sb, zero=0)
Int64: FieldType[int] = _Fixed(primitives.Int64sb, zero=0)
Float64: FieldType[float] = _Fixed(primitives.Float64b, zero=0.0)
Uuid: FieldType[UUID] = _Fixed(primitives.UuidBytes, zero=primitives.NIL_UUID)
String: FieldType[str] = _LengthPrefixed(primitives.Text, primitives.Int16sb, zero="")
LegacyString: FieldType[str] = _LegacyString(primitives.Text, primitives.Int16sb, zero="")
Bytes: FieldType[Buffer] = _LengthPrefixed(primitives.Blob, primitives.Int32sb, zero=b"")


class Struct(FieldType[M]):
    """A nested message."""

    def __init__(self, message: type[M]) -> None:
        super().__init__(zero=message())
        self.message = message

    def struct(self, version: int, *, flexible: bool, nullable: bool) -> Construct:
        """Return the construct of the message, preceded by one byte if it is nullable."""
        body = _body(self.message, version, flexible=flexible)
        return primitives.NullableBody(body) if nullable else body


class Array(FieldType[Sequence[T]]):
    """An array of one type or message class."""

    def __init__(self, element: FieldType[T] | type[T]) -> None:
        super().__init__(zero=())
        self.element: FieldType[Any] = (
            element if isinstance(element, FieldType) else Struct(element)
        )

    def struct(self, version: int, *, flexible: bool, nullable: bool) -> Construct:
        """Return the construct of a count and the elements."""
        length = primitives.CompactLength if flexible else primitives.Int32sb
        element = self.element.struct(version, flexible=flexible, nullable=False)
        return primitives.ArrayOf(length, element, nullable)


@dataclass(frozen=True, slots=True)
class Field:
    """A field declared by `field`."""

    type: FieldType[Any]
    since: int
    until: int | None
    nullable: int | None
    tag: int | None
    ignorable: bool
    default: Any
    is_secret: bool

    def exists_in(self, version: int) -> bool:
        """Whether the version has the field."""
        return self.since <= version and (self.until is None or version <= self.until)

    def nullable_in(self, version: int) -> bool:
        """Whether the field is nullable in the version."""
        return self.nullable is not None and version >= self.nullable

    def struct(self, version: int, *, flexible: bool) -> Construct:
        """Return the construct of the field."""
        nullable = self.nullable_in(version)
        return self.type.struct(version, flexible=flexible, nullable=nullable)


_ZERO: Any = object()


@overload
def field(
    field_type: FieldType[T],
    *,
    since: int = 0,
    until: int | None = None,
    tag: int | None = None,
    ignorable: bool = False,
    default: T = ...,
    is_secret: bool = False,
) -> T: ...
@overload
def field(
    field_type: FieldType[T],
    *,
    since: int = 0,
    until: int | None = None,
    nullable: int,
    tag: int | None = None,
    ignorable: bool = False,
    default: T | None = ...,
    is_secret: bool = False,
) -> T | None: ...
def field(
    field_type: FieldType[Any],
    *,
    since: int = 0,
    until: int | None = None,
    nullable: int | None = None,
    tag: int | None = None,
    ignorable: bool = False,
    default: Any = _ZERO,
    is_secret: bool = False,
) -> Any:
    """Declare a field.

    `since` and `until` are the first and last version that have it. `nullable` is the first version
    in which it is nullable. `tag` makes it a tagged field. `default` is its value in messages of
    versions without it: zero, empty or false if not given. `ignorable` allows to drop the value in
    versions without the field; for other fields, encoding a non-default value is then an error.
    A secret is not shown by `repr`.
    """
    if default is _ZERO:
        default = field_type.zero
    return Field(field_type, since, until, nullable, tag, ignorable, default, is_secret)


@dataclass_transform(kw_only_default=True, frozen_default=True)
class _MessageType(type):
    """Turns declared fields into slots, and generates `__init__`."""

    def __new__(
        cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any
    ) -> _MessageType:
        fields = {key: value for key, value in namespace.items() if isinstance(value, Field)}
        slots = [*fields] if bases else ["unknown_tagged_fields"]
        for key in slots:
            del namespace[key]
        namespace["__slots__"] = tuple(slots)
        namespace["fields"] = MappingProxyType(fields)
        namespace["__init__"] = _make_init(fields)
        return super().__new__(cls, name, bases, namespace, **options)


def _make_init(fields: Mapping[str, Field]) -> Any:
    """Generate `__init__` with a keyword-only, defaulted parameter per field."""
    names = [*fields, "unknown_tagged_fields"]
    defaults = {f"_{name}": spec.default for name, spec in fields.items()}
    defaults["_unknown_tagged_fields"] = ()
    parameters = ", ".join(f"{name}=_{name}" for name in names)
    assignments = "".join(f"\n    self.{name} = {name}" for name in names)
    namespace: dict[str, Any] = {}
    exec(f"def __init__(self, *, {parameters}):{assignments}", defaults, namespace)  # noqa: S102
    return namespace["__init__"]


class Message(metaclass=_MessageType):
    """Base class of messages: equality by value, a short repr, and a construct per version."""

    #: Unknown tagged fields as (tag, payload); kept, and written back.
    unknown_tagged_fields: Sequence[tuple[int, bytes]] = ()

    fields: ClassVar[Mapping[str, Field]]
    api: ClassVar[Api | None] = None
    #: The versions of the message; None for a message that is only part of others.
    versions: ClassVar[Versions | None] = None

    def __init_subclass__(cls, *, api: Api | None = None, versions: Versions | None = None) -> None:
        cls.api = api
        cls.versions = versions if api is None else api.versions

    @classmethod
    def struct(cls, version: int) -> Construct:
        """Return the construct of a version: the readable, slow reference."""
        versions = cls.versions
        if versions is None or version not in versions:
            raise ValueError(f"{cls.__name__} has no version {version}: supported are {versions}")
        return _body(cls, version, flexible=versions.is_flexible(version))

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._values() == other._values()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        # Fields with their default value are noise.
        shown = [
            f"{name}={'[hidden]' if spec.is_secret else repr(getattr(self, name))}"
            for name, spec in self.fields.items()
            if getattr(self, name) != spec.default
        ]
        if self.unknown_tagged_fields:
            shown.append(f"unknown_tagged_fields={self.unknown_tagged_fields!r}")
        return f"{type(self).__name__}({', '.join(shown)})"

    def _values(self) -> list[Any]:
        values = [getattr(self, name) for name in self.fields]
        values.append(self.unknown_tagged_fields)
        # Arrays may be lists or tuples.
        return [tuple(value) if isinstance(value, list) else value for value in values]


def _body(message: type[Message], version: int, *, flexible: bool) -> primitives.Body:
    fields: list[tuple[str, Construct]] = []
    tags: dict[int, tuple[str, Construct, Any]] = {}
    absent: dict[str, Any] = {}
    for name, spec in message.fields.items():
        if not spec.exists_in(version):
            if not spec.ignorable:
                absent[name] = spec.default
        elif spec.tag is None:
            fields.append((name, spec.struct(version, flexible=flexible)))
        else:
            assert flexible, f"{message.__name__}.{name} has a tag in a version without tags"
            tags[spec.tag] = (name, spec.struct(version, flexible=True), spec.default)
    section = primitives.TagSection(tags) if flexible else None
    return primitives.Body(message, fields, section, absent)
