"""Generate decoders from constructs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from struct import Struct, calcsize
from typing import Any
from uuid import UUID

from construct import Construct

from ..primitives import (
    ArrayOf,
    Blob,
    Body,
    CompactLength,
    TagSection,
    Text,
)
from .source import (
    LineFields,
    MalformedError,
    SourceWriter,
    identifier,
    min_size,
    struct_code,
    struct_of,
)

# An element of one byte can become an object of two hundred bytes, so checking a count against the
# remaining bytes is not enough (CVE-2026-111108). A message of any size may have FREE_ELEMENTS
# elements and tags, some 16 MB of objects, and one more for every BYTES_PER_ELEMENT bytes of its
# size, up to PAID_ELEMENTS: decoding that many takes a third of a second.
FREE_ELEMENTS = 65_536
BYTES_PER_ELEMENT = 16
PAID_ELEMENTS = 1_000_000


class DecoderWriter(SourceWriter):
    """Generates `decode(b, p, end)`: b is the frame, p the position in it, end its length.

    In the generated code, `room` is how many more elements and tags the message may have.
    """

    def __init__(self, filename: str) -> None:
        super().__init__(filename)
        self.namespace.update(
            new=object.__new__,
            UUID=UUID,
            MalformedError=MalformedError,
            uvarint=_uvarint,
            unpack=_unpack_array,
            read_tags=_read_tags,
        )
        #: Assignments to write after the pending values are read: (line, field).
        self.deferred: list[tuple[str, str]] = []

    def function(self, body: Body) -> Any:
        self.lines.append("def decode(b, p, end):")
        paid = f"min((end - p) // {BYTES_PER_ELEMENT}, {PAID_ELEMENTS})"
        self.write(f"room = {FREE_ELEMENTS} + {paid}", "start")
        self.body(body, "m0", "")
        self.write("return m0, p", "end")
        return self.build()

    def body(self, body: Body, target: str, path: str) -> None:
        message = self.constant(body.message.__name__, body.message)
        self.write(f"{target} = new({message})", path)
        on_wire = {name for name, _subcon in body.fields}
        for name, spec in body.message.fields.items():
            if name not in on_wire:
                self.write(f"{target}.{name} = {self.literal(spec.default)}", path + name)
        self.write(f"{target}.unknown_tagged_fields = ()", path)
        for name, subcon in body.fields:
            self.value(subcon, f"{target}.{name}", path + name)
        self.flush()
        if body.tags is not None:
            self.tags(body.tags, target, path)

    def uuid(self, target: str, path: str) -> None:
        raw = self.name("u")
        self.pending.append(("16s", raw, path))
        self.deferred.append((f"{target} = UUID(bytes={raw})", path))

    def nullable_struct(self, body: Body, target: str, path: str) -> None:
        self.pending.append(("b", "n", path))
        self.flush()
        self.write("if n < 0:", path)
        with self.block():
            self.write(f"{target} = None", path)
        self.write("else:", path)
        with self.block():
            self.struct(body, target, path)

    def flush(self) -> None:
        """Read the pending values in one call."""
        if self.pending:
            codes = "".join(code for code, _target, _path in self.pending)
            unpack_from = self.constant(f"read_{identifier(codes)}", struct_of(codes).unpack_from)
            targets = ", ".join(target for _code, target, _path in self.pending)
            comma = "," if len(self.pending) == 1 else ""
            run = tuple((calcsize(">" + code), path) for code, _target, path in self.pending)
            self.write(f"{targets}{comma} = {unpack_from}(b, p)", LineFields(run[0][1], run))
            self.write(f"p += {sum(size for size, _path in run)}", run[0][1])
            self.pending.clear()
        for line, path in self.deferred:
            self.write(line, path)
        self.deferred.clear()

    def length(self, length: Construct, path: str) -> None:
        """Read a length or count into `n`; -1 is null."""
        if length is CompactLength:
            self.flush()
            self.write("n = b[p] - 1; p += 1", path)
            self.write("if n > 126: n, p = uvarint(b, p, n + 1); n -= 1", path)
        else:
            code = struct_code(length)
            assert code is not None
            self.pending.append((code, "n", path))
            self.flush()

    def bytes_or_text(self, subcon: Text | Blob, target: str, path: str) -> None:
        self.length(subcon.length, path)
        with self.unless_null(subcon.nullable, target, path):
            self.write("q = p + n", path)
            self.raise_if("not p <= q <= end", "length {n}, but {end - p} bytes remain", path)
            content = "str(b[p:q], 'utf-8')" if isinstance(subcon, Text) else "b[p:q]"
            self.write(f"{target} = {content}; p = q", path)

    def array(self, subcon: ArrayOf, target: str, path: str) -> None:
        element = subcon.element
        self.length(subcon.length, path)
        with self.unless_null(subcon.nullable, target, path):
            max_count = f"(end - p) // {min_size(element)}"
            reason = "{n} elements, but {end - p} bytes remain"
            self.raise_if(f"not 0 <= n <= {max_count}", reason, path)
            code = struct_code(element)
            if code is not None:
                self.write(f"{target}, p = unpack({code!r}, n, b, p)", path)
                return
            self.take_room(path)
            depth = self.names = self.names + 1
            self.write(f"a{depth} = {target} = []", path)
            self.write(f"for i{depth} in range(n):", path)
            with self.block():
                item, inner = f"m{depth}", f"{path}[{{i{depth}}}]"
                self.value(element, item, inner)
                self.flush()
                self.write(f"a{depth}.append({item})", inner)

    def struct(self, body: Body, target: str, path: str) -> None:
        """Read a message into a local variable first: assigning its fields is faster."""
        self.flush()
        item = target if "." not in target else self.name("m")
        self.body(body, item, path + ".")
        if item != target:
            self.write(f"{target} = {item}", path)

    def tags(self, tags: TagSection, target: str, path: str) -> None:
        self.write("n = b[p]; p += 1", path)
        if not tags.fields:
            self.write("if n:", path)
            with self.block():
                self.count_tags(path)
                self.write(f"{target}.unknown_tagged_fields, p = read_tags(b, p, n, end)", path)
            return
        count, tag, stop = self.name("k"), self.name("t"), self.name("e")
        self.write("if n:", path)
        with self.block():
            self.count_tags(path)
            self.write(f"for {count} in range(n):", path)
            with self.block():
                self.write(f"{tag}, p = uvarint(b, p + 1, b[p])", path)
                self.write("n, p = uvarint(b, p + 1, b[p])", path)
                self.write(f"{stop} = p + n", path)
                reason = f"tag {{{tag}}} has {{n}} bytes, but {{end - p}} remain"
                self.raise_if(f"{stop} > end", reason, path)
                word = "if"
                for number, (name, subcon, _default) in tags.fields.items():
                    self.write(f"{word} {tag} == {number}:", path + name)
                    with self.block():
                        self.value(subcon, f"{target}.{name}", path + name)
                        self.flush()
                        reason = f"{{{stop} - p}} trailing bytes in tag {number}"
                        self.raise_if(f"p != {stop}", reason, path + name)
                    word = "elif"
                self.write("else:", path)
                with self.block():
                    unknown = f"{target}.unknown_tagged_fields"
                    self.write(f"if not {unknown}: {unknown} = []", path)
                    self.write(f"{unknown}.append(({tag}, bytes(b[p:{stop}]))); p = {stop}", path)

    def count_tags(self, path: str) -> None:
        """Read the remainder of a tag count into `n`, and check it."""
        self.write("if n > 127: n, p = uvarint(b, p, n)", path)
        self.raise_if("n > (end - p) // 2", "{n} tags, but {end - p} bytes remain", path)
        self.take_room(path)

    def take_room(self, path: str) -> None:
        self.write("room -= n", path)
        self.raise_if("room < 0", "{n} more elements are too many in {end} bytes", path)

    def unless_null(self, nullable: bool, target: str, path: str) -> AbstractContextManager[None]:
        if not nullable:
            return nullcontext()
        self.write(f"if n == -1: {target} = None", path)
        self.write("else:", path)
        return self.block()


# Called by generated code for the less common cases.


def _uvarint(b: memoryview, p: int, first: int) -> tuple[int, int]:
    """Read the remainder of an unsigned varint after its first byte."""
    value = first & 0x7F
    shift = 7
    byte = first
    while byte > 0x7F:
        if shift > 28:
            raise MalformedError("varint longer than 5 bytes")
        byte = b[p]
        p += 1
        value |= (byte & 0x7F) << shift
        shift += 7
    return value, p


def _unpack_array(code: str, n: int, b: memoryview, p: int) -> tuple[Any, int]:
    array = Struct(f">{n}{code}")
    return array.unpack_from(b, p), p + array.size


def _read_tags(b: memoryview, p: int, n: int, end: int) -> tuple[list[tuple[int, bytes]], int]:
    """Read `n` unknown tags."""
    tags = []
    for _ in range(n):
        tag, p = _uvarint(b, p + 1, b[p])
        size, p = _uvarint(b, p + 1, b[p])
        if p + size > end:
            raise MalformedError(f"tag {tag} has {size} bytes, but {end - p} remain")
        tags.append((tag, bytes(b[p : p + size])))
        p += size
    return tags, p
