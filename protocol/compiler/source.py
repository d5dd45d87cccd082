"""Base class of the code generators: writes lines, and records the field of each line."""

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
    """Raised by generated code; `Codec` turns it into an error that names the field."""


@dataclass(frozen=True, slots=True)
class LineFields:
    """What a generated line handles: a field, or a run of (size, field) in one struct call.

    A field is its path, with the loop variables of arrays in braces:
    `topics[{i1}].partitions[{i2}].index`. `packed` is (struct code, expression) of each in the run.
    """

    field: str
    run: tuple[tuple[int, str], ...] = ()
    packed: tuple[tuple[str, str], ...] = ()


class SourceWriter(ABC):
    """Writes the source of one function."""

    def __init__(self, filename: str) -> None:
        self.filename = filename
        self.lines: list[str] = []
        #: The fields that each line handles, by line number.
        self.fields: dict[int, LineFields] = {}
        self.namespace: dict[str, Any] = {}
        self.indent = 1
        self.names = 0
        #: Fixed-size values not written yet, for one struct call: (struct code, expression, field).
        self.pending: list[tuple[str, str, str]] = []

    def value(self, subcon: Construct, expression: str, path: str) -> None:
        """Write the code for one value; `expression` is its target or its source."""
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

    def write(self, line: str, field: LineFields | str) -> None:
        self.lines.append("    " * self.indent + line)
        self.fields[len(self.lines)] = field if isinstance(field, LineFields) else LineFields(field)

    def raise_if(self, condition: str, reason: str, field: LineFields | str) -> None:
        """Write a check; `reason` may have expressions of the generated code in braces."""
        self.write(f'if {condition}: raise MalformedError(f"{reason}")', field)

    @contextmanager
    def block(self) -> Iterator[None]:
        """Indent the lines written in the block."""
        self.indent += 1
        yield
        self.indent -= 1

    def name(self, prefix: str) -> str:
        """Return a new local name."""
        self.names += 1
        return f"{prefix}{self.names}"

    def constant(self, name: str, value: object) -> str:
        """Make an object available to the generated code under a name."""
        existing = self.namespace.setdefault(name, value)
        assert existing == value, f"two values for constant {name}"
        return name

    def literal(self, value: object) -> str:
        """Return a default as source: a literal, or the name of a constant."""
        if value is None or isinstance(value, int | float | str | bytes) or value == ():
            return repr(value)
        return self.constant(f"default_{type(value).__name__}", value)

    def build(self) -> Any:
        """Compile the function, and register its source for tracebacks and debuggers."""
        source = self.source
        linecache.cache[self.filename] = (len(source), None, source.splitlines(True), self.filename)
        scope: dict[str, Any] = {}
        exec(compile(source, self.filename, "exec"), self.namespace, scope)  # noqa: S102
        (function,) = scope.values()
        return function


_STRUCTS: dict[str, Struct] = {}


def struct_of(codes: str) -> Struct:
    """Return the big-endian struct of some codes, always the same object.

    Also for threads that compile at the same time, which functools.cache does not guarantee.
    """
    return _STRUCTS.get(codes) or _STRUCTS.setdefault(codes, Struct(">" + codes))


def identifier(codes: str) -> str:
    """Return struct codes as part of an identifier."""
    return codes.replace("?", "o")


def struct_code(subcon: Construct) -> str | None:
    """Return the struct module's code of a type, or None if it has none."""
    if subcon is Flag:
        return "?"
    if isinstance(subcon, FormatField):
        code: str = subcon.fmtstr
        assert code[0] == ">", "the protocol is big-endian"
        return code[1:]
    return None


def min_size(subcon: Construct) -> int:
    """Return the minimum encoded size of a type in bytes."""
    if (code := struct_code(subcon)) is not None:
        return calcsize(">" + code)
    if subcon is UuidBytes:
        return 16
    if isinstance(subcon, Text | Blob | ArrayOf):
        return 1 if subcon.length is CompactLength else min_size(subcon.length)
    if isinstance(subcon, NullableBody):
        return 1
    assert isinstance(subcon, Body), subcon
    tags = 0 if subcon.tags is None else 1
    return sum(min_size(field) for _name, field in subcon.fields) + tags
