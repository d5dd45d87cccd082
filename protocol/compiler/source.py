"""Python under construction: lines, each with the field that it handles."""

from __future__ import annotations

import linecache
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from struct import Struct, calcsize
from typing import Any

from construct import Construct, FormatField

from ..primitives import ArrayOf, Blob, Body, CompactLength, Flag, NullableBody, Text, UuidBytes


class MalformedError(Exception):
    """Raised inside generated code; `Codec` turns it into an error that says where."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a generated line handles: a field, or a run of (size, field) that go together.

    A field is written as its path, with the loop variables of arrays in braces:
    `topics[{i1}].partitions[{i2}].index`. `packed` has the (struct code, expression) of each.
    """

    field: str
    run: tuple[tuple[int, str], ...] = ()
    packed: tuple[tuple[str, str], ...] = ()


class SourceWriter(ABC):
    """Lines of Python with the field that each one handles."""

    def __init__(self, filename: str) -> None:
        self.filename = filename
        self.lines: list[str] = []
        self.places: dict[int, Place] = {}
        self.namespace: dict[str, Any] = {}
        self.indent = 1
        self.names = 0
        # Values of fixed size that wait to be handled together: (struct code, expression, field).
        self.pending: list[tuple[str, str, str]] = []

    def value(self, subcon: Construct, expression: str, path: str) -> None:
        """Handle one value: `expression` is where it goes to, or comes from."""
        if (code := struct_code(subcon)) is not None:
            self.pending.append((code, expression, path))
        elif subcon is UuidBytes:
            self.uuid(expression, path)
        elif isinstance(subcon, Text | Blob):
            self.bytes_or_text(subcon, expression, path)
        elif isinstance(subcon, ArrayOf):
            self.array(subcon, expression, path)
        elif isinstance(subcon, NullableBody):
            self.nullable_struct(subcon.subcon, expression, path)
        else:
            assert isinstance(subcon, Body), subcon
            self.struct(subcon, expression, path)

    @abstractmethod
    def uuid(self, expression: str, path: str) -> None: ...

    @abstractmethod
    def bytes_or_text(self, subcon: Text | Blob, expression: str, path: str) -> None: ...

    @abstractmethod
    def array(self, subcon: ArrayOf, expression: str, path: str) -> None: ...

    @abstractmethod
    def struct(self, body: Body, expression: str, path: str) -> None: ...

    @abstractmethod
    def nullable_struct(self, body: Body, expression: str, path: str) -> None: ...

    @property
    def source(self) -> str:
        return "\n".join(self.lines) + "\n"

    def write(self, line: str, place: Place | str) -> None:
        self.lines.append("    " * self.indent + line)
        self.places[len(self.lines)] = place if isinstance(place, Place) else Place(place)

    def refuse_if(self, condition: str, reason: str, place: Place | str) -> None:
        """Write a check; `reason` may have names of the generated code in braces."""
        self.write(f'if {condition}: raise MalformedError(f"{reason}")', place)

    @contextmanager
    def block(self) -> Iterator[None]:
        """Indent what is written inside."""
        self.indent += 1
        yield
        self.indent -= 1

    def name(self, prefix: str) -> str:
        """Make a new local name."""
        self.names += 1
        return f"{prefix}{self.names}"

    def constant(self, name: str, value: object) -> str:
        """Let generated code find this object under that name."""
        assert self.namespace.setdefault(name, value) == value, f"{name} has two meanings"
        return name

    def literal(self, value: object) -> str:
        """Write a default: numbers, text and the empty things as they are, others by name."""
        if value is None or isinstance(value, int | str | bytes) or value == ():
            return repr(value)
        return self.constant(f"default_{type(value).__name__}", value)

    def build(self) -> Any:
        """Compile what was written, and let tracebacks and debuggers show it."""
        source = self.source
        linecache.cache[self.filename] = (len(source), None, source.splitlines(True), self.filename)
        scope: dict[str, Any] = {}
        exec(compile(source, self.filename, "exec"), self.namespace, scope)  # noqa: S102
        (function,) = scope.values()
        return function


_STRUCTS: dict[str, Struct] = {}


def struct_of(codes: str) -> Struct:
    """Give the struct of some codes, big-endian as the wire is; always the same one.

    Threads that compile at a time get the same as well, which they need not from functools.cache.
    """
    return _STRUCTS.get(codes) or _STRUCTS.setdefault(codes, Struct(">" + codes))


def identifier(codes: str) -> str:
    """Write the codes of a struct so that they can be part of a name."""
    return codes.replace("?", "o")


def struct_code(subcon: Construct) -> str | None:
    """Give the code by which the struct module knows a type of fixed size, if it does."""
    if subcon is Flag:
        return "?"
    if isinstance(subcon, FormatField):
        code: str = subcon.fmtstr
        assert code[0] == ">", "the wire is big-endian"
        return code[1:]
    return None


def smallest(subcon: Construct) -> int:
    """How many bytes a value of this type takes at least."""
    if (code := struct_code(subcon)) is not None:
        return calcsize(">" + code)
    if subcon is UuidBytes:
        return 16
    if isinstance(subcon, Text | Blob | ArrayOf):
        return 1 if subcon.length is CompactLength else smallest(subcon.length)
    if isinstance(subcon, NullableBody):
        return 1
    assert isinstance(subcon, Body), subcon
    tags = 0 if subcon.tags is None else 1
    return sum(smallest(field) for _name, field in subcon.fields) + tags
