"""Generate encoders from constructs."""

from __future__ import annotations

from struct import calcsize, pack
from typing import Any

from construct import Construct

from ..primitives import (
    ArrayOf,
    Blob,
    Body,
    CompactLength,
    NullableBody,
    TagSection,
    Text,
)
from ..schema import FrozenArray, Message
from .source import LineFields, MalformedError, SourceWriter, identifier, struct_code, struct_of

#: Byte fields of at least this size are passed through uncopied, as a buffer of their own. For
#: smaller ones, the copy costs less than one more buffer.
PASS_THROUGH_BYTES = 4096


class EncoderWriter(SourceWriter):
    """Generates `encode(m0, w, parts)`: w takes the bytes, parts the buffers passed through."""

    def __init__(self, filename: str) -> None:
        super().__init__(filename)
        self.namespace.update(
            FrozenArray=FrozenArray,
            MalformedError=MalformedError,
            write_uvarint=_write_uvarint,
            write_tags=_write_tags,
            pack=pack,
        )
        self.in_tag = False

    def function(self, body: Body) -> Any:
        self.lines.append("def encode(m0, w, parts):")
        self.body(body, "m0", "")
        self.write("return w", "end")
        return self.build()

    def body(self, body: Body, source: str, path: str) -> None:
        for name, default in body.absent.items():
            value = f"{source}.{name}"
            reason = f"does not exist in this version, but is {{{value}!r}}"
            self.raise_if(self.differs(value, default), reason, path + name)
        for name, subcon in body.fields:
            self.value(subcon, f"{source}.{name}", path + name)
        self.flush()
        if body.tags is not None:
            self.tags(body.tags, source, path)
        else:
            reason = "tagged fields do not exist in this version"
            self.raise_if(f"{source}.unknown_tagged_fields", reason, path)

    def differs(self, value: str, default: Any) -> str:
        if default is None:
            return f"{value} is not None"
        if default in ((), "", b"", 0):
            # A truth test is cheaper than a comparison; None differs from the default, too.
            return f"{value} or {value} is None" if default != 0 else value
        if isinstance(default, Message):
            name = self.literal(default)
            return f"{value} is not {name} and {value} != {name}"
        return f"{value} != {self.literal(default)}"

    def uuid(self, source: str, path: str) -> None:
        self.pending.append(("16s", f"{source}.bytes", path))

    def struct(self, body: Body, source: str, path: str) -> None:
        item = self.name("m")
        self.write(f"{item} = {source}", path)
        self.body(body, item, path + ".")

    def nullable_struct(self, body: Body, source: str, path: str) -> None:
        item = self.name("m")
        self.write(f"{item} = {source}", path)
        self.pending.append(("b", f"-1 if {item} is None else 1", path))
        self.flush()
        self.write(f"if {item} is not None:", path)
        with self.block():
            self.body(body, item, path + ".")

    def flush(self) -> None:
        """Write the pending values in one call."""
        if not self.pending:
            return
        codes = "".join(code for code, _source, _path in self.pending)
        packer = self.constant(f"pack_{identifier(codes)}", struct_of(codes).pack)
        sources = ", ".join(source for _code, source, _path in self.pending)
        run = tuple((calcsize(">" + code), path) for code, _source, path in self.pending)
        packed = tuple((code, source) for code, source, _path in self.pending)
        self.write(f"w += {packer}({sources})", LineFields(run[0][1], run, packed))
        self.pending.clear()

    def length(self, length: Construct, name: str, path: str) -> None:
        """Write the length or count in the local variable `name`; -1 is null."""
        if length is CompactLength:
            self.flush()
            self.write(f"if {name} < 127: w.append({name} + 1)", path)
            self.write(f"else: write_uvarint(w, {name} + 1)", path)
        else:
            code = struct_code(length)
            assert code is not None
            self.pending.append((code, name, path))
            self.flush()

    def bytes_or_text(self, subcon: Text | Blob, source: str, path: str) -> None:
        content, size = self.name("s"), self.name("n")
        encode = ".encode()" if isinstance(subcon, Text) else ""
        if subcon.nullable:
            self.write(f"{content} = {source}", path)
            self.write(f"if {content} is None: {size} = -1", path)
            reassign = f"{content} = {content}{encode}; " if encode else ""
            self.write(f"else: {reassign}{size} = len({content})", path)
        else:
            self.write(f"{content} = {source}{encode}; {size} = len({content})", path)
        self.length(subcon.length, size, path)
        if isinstance(subcon, Blob) and not self.in_tag:
            self.write(f"if {size} >= {PASS_THROUGH_BYTES}:", path)
            with self.block():
                self.write(f"parts.append(w); parts.append({content}); w = bytearray()", path)
            self.write(f"elif {size} > 0: w += {content}", path)
        elif subcon.nullable:
            self.write(f"if {size} > 0: w += {content}", path)
        else:
            self.write(f"w += {content}", path)

    def array(self, subcon: ArrayOf, source: str, path: str) -> None:
        elements, count = self.name("a"), self.name("n")
        self.write(f"{elements} = {source}", path)
        if subcon.nullable:
            self.write(f"{count} = -1 if {elements} is None else len({elements})", path)
        else:
            self.write(f"{count} = len({elements})", path)
        self.length(subcon.length, count, path)
        self.write(f"if {count} > 0:", path)
        with self.block():
            code = struct_code(subcon.element)
            if code is not None:
                self.write(f'w += pack(f">{{{count}}}{code}", *{elements})', path)
                return
            if "[]" in path and isinstance(subcon.element, Body) and not _has_blobs(subcon.element):
                self.frozen_elements(subcon.element, elements, path)
            else:
                self.elements(subcon.element, elements, path)

    def elements(self, element: Construct, elements: str, path: str) -> None:
        item = self.name("m")
        self.write(f"for {item} in {elements}:", path)
        with self.block():
            if isinstance(element, Body):
                self.body(element, item, path + "[].")
            else:
                self.value(element, item, path + "[]")
                self.flush()

    def frozen_elements(self, element: Body, elements: str, path: str) -> None:
        """Write the elements of an array that may be frozen, with the bytes of the last time."""
        encodings, start = self.name("e"), self.name("p")
        key = repr(f"{self.filename} {path}")
        self.write(
            f"{encodings} = {elements}.encodings if {elements}.__class__ is FrozenArray else None",
            path,
        )
        self.write(f"if {encodings} and {key} in {encodings}: w += {encodings}[{key}]", path)
        self.write("else:", path)
        with self.block():
            self.write(f"{start} = len(w)", path)
            self.elements(element, elements, path)
            self.write(f"if {encodings} is not None: {encodings}[{key}] = bytes(w[{start}:])", path)

    def tags(self, tags: TagSection, source: str, path: str) -> None:
        unknown = f"{source}.unknown_tagged_fields"
        if not tags.fields:
            self.write(f"if {unknown}: write_tags(w, [], {unknown})", path)
            self.write("else: w.append(0)", path)
            return
        known, outer = self.name("t"), self.name("w")
        self.write(f"{known} = None", path)
        outermost, self.in_tag = not self.in_tag, True
        for number, (name, subcon, default) in tags.fields.items():
            value = f"{source}.{name}"
            self.write(f"if {self.differs(value, default)}:", path + name)
            with self.block():
                self.write(f"{outer} = w; w = bytearray()", path + name)
                self.value(subcon, value, path + name)
                self.flush()
                self.write(f"if {known} is None: {known} = []", path + name)
                self.write(f"{known}.append(({number}, w)); w = {outer}", path + name)
        self.in_tag = not outermost
        self.write(f"if {known} is None and not {unknown}: w.append(0)", path)
        self.write(f"else: write_tags(w, {known} or [], {unknown})", path)


def _has_blobs(subcon: Construct) -> bool:
    """Whether a type has byte fields, which may be passed through."""
    if isinstance(subcon, ArrayOf):
        return _has_blobs(subcon.element)
    if isinstance(subcon, NullableBody):
        return _has_blobs(subcon.subcon)
    if not isinstance(subcon, Body):
        return isinstance(subcon, Blob)
    tagged = () if subcon.tags is None else (field for _, field, _ in subcon.tags.fields.values())
    return any(map(_has_blobs, (*(field for _name, field in subcon.fields), *tagged)))


# Called by generated code for the less common cases.


def _write_uvarint(w: bytearray, value: int) -> None:
    while value > 0x7F:
        w.append(value & 0x7F | 0x80)
        value >>= 7
    w.append(value)


def _write_tags(w: bytearray, known: list[tuple[int, Any]], unknown: Any) -> None:
    tags = sorted([*known, *unknown], key=lambda tag: tag[0])
    _write_uvarint(w, len(tags))
    for tag, payload in tags:
        _write_uvarint(w, tag)
        _write_uvarint(w, len(payload))
        w += payload
