"""How a message is declared: once, with the versions in which each of its fields exists.

    class HeartbeatRequest(Message, api=HEARTBEAT):
        group_id: str = field(String)
        generation_id: int = field(Int32)
        member_id: str = field(String)
        group_instance_id: str | None = field(String, since=3, nullable=3, default=None)

The declaration gives three things: a class with typed, keyword-only, defaulted attributes
(`HeartbeatRequest(group_id="g")`), in which versions play no part; the construct of any version,
`HeartbeatRequest.struct(4)`, which is the reference; and, made from that construct by `compiler`,
the codec that runs.

Messages are values: the type checker lets nobody assign to a field, and arrays are Sequences.
That is why defaults can be shared. At run time nothing is frozen, because the codecs fill in
messages field by field.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, dataclass_transform, overload
from uuid import UUID

from . import primitives

if TYPE_CHECKING:
    from collections.abc import Mapping

    from construct import Construct

    from .registry import Api

T = TypeVar("T")
M = TypeVar("M", bound="Message")

#: What a field of bytes may hold: a memoryview of the frame when it was decoded.
Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Versions:
    """A range of versions, both ends in it, and the first flexible one (None: there is none)."""

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
        """Whether this version has compact lengths and tagged fields."""
        return self.flexible_since is not None and version >= self.flexible_since


class Kind(Generic[T]):
    """A type of the wire. `T` is the type of its values in Python."""

    def __init__(self, zero: T) -> None:
        self.zero = zero

    def struct(self, version: int, *, flexible: bool, nullable: bool) -> Construct:
        """Give the construct of this type."""
        raise NotImplementedError


class _Fixed(Kind[T]):
    """A type that looks the same in all versions."""

    def __init__(self, construct: Construct, zero: T) -> None:
        super().__init__(zero)
        self._construct = construct

    def struct(self, version: int, *, flexible: bool, nullable: bool) -> Construct:
        assert not nullable, "a number has no null"
        return self._construct


class _Measured(Kind[T]):
    """A type with a length in front: legacy, or compact in flexible versions."""

    def __init__(self, construct: Any, legacy_length: Construct, zero: T) -> None:
        super().__init__(zero)
        self._construct = construct
        self._legacy_length = legacy_length

    def struct(self, version: int, *, flexible: bool, nullable: bool) -> Construct:
        length = primitives.CompactLength if flexible else self._legacy_length
        return self._construct(length, nullable)


class _LegacyString(_Measured[str]):
    """A string that keeps its legacy length even in flexible versions."""

    def struct(self, version: int, *, flexible: bool, nullable: bool) -> Construct:
        return super().struct(version, flexible=False, nullable=nullable)


Bool: Kind[bool] = _Fixed(primitives.Flag, zero=False)
Int8: Kind[int] = _Fixed(primitives.Int8sb, zero=0)
Int16: Kind[int] = _Fixed(primitives.Int16sb, zero=0)
Int32: Kind[int] = _Fixed(primitives.Int32sb, zero=0)
Int64: Kind[int] = _Fixed(primitives.Int64sb, zero=0)
Uuid: Kind[UUID] = _Fixed(primitives.UuidBytes, zero=primitives.NIL_UUID)
String: Kind[str] = _Measured(primitives.Text, primitives.Int16sb, zero="")
LegacyString: Kind[str] = _LegacyString(primitives.Text, primitives.Int16sb, zero="")
Bytes: Kind[Buffer] = _Measured(primitives.Blob, primitives.Int32sb, zero=b"")


class Struct(Kind[M]):
    """A message inside a message."""

    def __init__(self, message: type[M]) -> None:
        super().__init__(zero=message())
        self.message = message

    def struct(self, version: int, *, flexible: bool, nullable: bool) -> Construct:
        """Give the message's own, with a byte in front where it may be null."""
        body = _body(self.message, version, flexible=flexible)
        return primitives.NullableBody(body) if nullable else body


class Array(Kind[Sequence[T]]):
    """Elements of one type, or of one message class."""

    def __init__(self, element: Kind[T] | type[T]) -> None:
        super().__init__(zero=())
        self.element: Kind[Any] = element if isinstance(element, Kind) else Struct(element)

    def struct(self, version: int, *, flexible: bool, nullable: bool) -> Construct:
        """Give a count and the elements."""
        length = primitives.CompactLength if flexible else primitives.Int32sb
        element = self.element.struct(version, flexible=flexible, nullable=False)
        return primitives.ArrayOf(length, element, nullable)


@dataclass(frozen=True, slots=True)
class Field:
    """What `field` was told."""

    kind: Kind[Any]
    since: int
    until: int | None
    nullable: int | None
    tag: int | None
    ignorable: bool
    default: Any

    def exists_in(self, version: int) -> bool:
        """Whether the field is on the wire in this version."""
        return self.since <= version and (self.until is None or version <= self.until)

    def nullable_in(self, version: int) -> bool:
        """Whether the field may be null in this version."""
        return self.nullable is not None and version >= self.nullable

    def struct(self, version: int, *, flexible: bool) -> Construct:
        """Give the construct of the field."""
        nullable = self.nullable_in(version)
        return self.kind.struct(version, flexible=flexible, nullable=nullable)


_ZERO: Any = object()


@overload
def field(
    kind: Kind[T],
    *,
    since: int = 0,
    until: int | None = None,
    tag: int | None = None,
    ignorable: bool = False,
    default: T = ...,
) -> T: ...
@overload
def field(
    kind: Kind[T],
    *,
    since: int = 0,
    until: int | None = None,
    nullable: int,
    tag: int | None = None,
    ignorable: bool = False,
    default: T | None = ...,
) -> T | None: ...
def field(
    kind: Kind[Any],
    *,
    since: int = 0,
    until: int | None = None,
    nullable: int | None = None,
    tag: int | None = None,
    ignorable: bool = False,
    default: Any = _ZERO,
) -> Any:
    """Declare a field.

    `since` and `until` are the first and last version that have it. `nullable` is the first version
    in which it may be null. `tag` puts it into the tag section. `default` is what the message holds
    where the field is absent: zero, empty or false unless said. `ignorable` says that a value may
    be dropped when the version has no place for it; for any other field that is an error.
    """
    if default is _ZERO:
        default = kind.zero
    return Field(kind, since, until, nullable, tag, ignorable, default)


@dataclass_transform(kw_only_default=True, frozen_default=True)
class _MessageType(type):
    """Turns declared fields into slots, and writes `__init__`."""

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
    """Write the `__init__` that a person would write: keyword-only, with the defaults."""
    names = [*fields, "unknown_tagged_fields"]
    defaults = {f"_{name}": spec.default for name, spec in fields.items()}
    defaults["_unknown_tagged_fields"] = ()
    parameters = ", ".join(f"{name}=_{name}" for name in names)
    assignments = "".join(f"\n    self.{name} = {name}" for name in names)
    namespace: dict[str, Any] = {}
    exec(f"def __init__(self, *, {parameters}):{assignments}", defaults, namespace)  # noqa: S102
    return namespace["__init__"]


class Message(metaclass=_MessageType):
    """What all messages share: equality by value, a readable repr, and their constructs."""

    #: Tagged fields that we do not know, as (tag, payload): kept, and written back.
    unknown_tagged_fields: Sequence[tuple[int, bytes]] = ()

    fields: ClassVar[Mapping[str, Field]]
    api: ClassVar[Api | None] = None
    #: The versions in which the message can travel by itself; a part of another one has none.
    versions: ClassVar[Versions | None] = None

    def __init_subclass__(cls, *, api: Api | None = None, versions: Versions | None = None) -> None:
        cls.api = api
        cls.versions = versions if api is None else api.versions

    @classmethod
    def struct(cls, version: int) -> Construct:
        """Give the construct of a version: the reference, readable and slow."""
        versions = cls.versions
        if versions is None or version not in versions:
            raise ValueError(f"{cls.__name__} has no version {version}; it has {versions}")
        return _body(cls, version, flexible=versions.is_flexible(version))

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._values() == other._values()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        # Only what differs from the defaults: that is what a reader looks for.
        shown = [
            f"{name}={getattr(self, name)!r}"
            for name, spec in self.fields.items()
            if getattr(self, name) != spec.default
        ]
        if self.unknown_tagged_fields:
            shown.append(f"unknown_tagged_fields={self.unknown_tagged_fields!r}")
        return f"{type(self).__name__}({', '.join(shown)})"

    def _values(self) -> list[Any]:
        values = [getattr(self, name) for name in self.fields]
        values.append(self.unknown_tagged_fields)
        # An array is equal to another by its elements, be they in a list or in a tuple.
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
