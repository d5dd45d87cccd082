"""From a construct to straight-line Python: the codec of one message in one version.

`compile_codec` walks the construct that `Message.struct(version)` gives and writes two functions,
`decode(b, p, end)` and `encode(m, w, parts)`. What makes them fast:

- neighbouring fields of fixed size, and the lengths behind them, are one struct call;
- nested messages and arrays are loops in the same function, not calls;
- bytes are slices of the frame going in, and are passed on uncopied going out.

What makes them safe: fixed fields are read by `unpack_from`, which knows where the frame ends; each
length is compared with what is left before it is used; each count with how many of the smallest
possible elements could still follow.

Nothing is spent on saying what went wrong until it does: every generated line is noted down
together with the field that it handles, so that a traceback's line number names the field, and the
frame's local variables say at which byte and at which element of which array.

`Codec.decode_source` is worth a look: `print(codec(HeartbeatRequest, 4).decode_source)`.
"""

from __future__ import annotations

import linecache
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from struct import Struct, calcsize, pack
from types import TracebackType
from typing import Any, Generic, TypeVar
from uuid import UUID

from construct import Construct, FormatField

from .errors import DecodeError, EncodeError
from .primitives import (
    ArrayOf,
    Blob,
    Body,
    CompactLength,
    Flag,
    NullableBody,
    TagSection,
    Text,
    UuidBytes,
)
from .schema import Buffer, Message

M = TypeVar("M", bound=Message)

#: A byte field of at least this size leaves the encoder as it came, a buffer of its own. Below it,
#: copying costs less than one more buffer does.
PASS_THROUGH_BYTES = 4096


class MalformedError(Exception):
    """Raised inside generated code; `Codec` turns it into an error that says where."""


class Codec(Generic[M]):
    """Encodes and decodes one message class in one version."""

    __slots__ = ("_decode", "_decoder", "_encode", "_encoder", "message", "version")

    def __init__(self, message: type[M], version: int) -> None:
        self.message = message
        self.version = version
        body = message.struct(version)
        label = f"{message.__name__} v{version}"
        self._decoder = _DecoderWriter(f"<decode {label}>")
        self._encoder = _EncoderWriter(f"<encode {label}>")
        self._decode: Callable[[memoryview, int, int], tuple[M, int]] = self._decoder.function(body)
        self._encode: Callable[[M, bytearray, list[Buffer]], bytearray] = self._encoder.function(
            body
        )

    @property
    def decode_source(self) -> str:
        """The generated decoder, to read."""
        return self._decoder.source

    @property
    def encode_source(self) -> str:
        """The generated encoder, to read."""
        return self._encoder.source

    def decode(self, buffer: memoryview, position: int = 0) -> tuple[M, int]:
        """Decode the message at `position`; give it, and the position behind it.

        Byte fields are slices of `buffer`. Raises DecodeError.
        """
        try:
            return self._decode(buffer, position, len(buffer))
        except (MalformedError, struct.error, IndexError, UnicodeDecodeError) as error:
            raise self._decode_error(error, len(buffer)) from error

    def encode(self, message: M, tail: bytearray, parts: list[Buffer]) -> bytearray:
        """Write the message behind `tail`, and give the new tail.

        What must not be copied is appended to `parts`, and before it the tail of that moment: the
        encoded bytes are those of all parts, then those of the tail. Raises EncodeError.
        """
        try:
            return self._encode(message, tail, parts)
        except (MalformedError, struct.error, AttributeError, TypeError, ValueError) as error:
            raise self._encode_error(error) from error

    def _decode_error(self, error: Exception, end: int) -> DecodeError:
        line, frame = _innermost(error.__traceback__, self._decode)
        place = self._decoder.places[line]
        position: int = frame["p"]
        if isinstance(error, struct.error):
            # One of several fields that are read together runs over the end: which?
            for size, field in place.run:
                if position + size > end:
                    reason = f"needs {size} bytes, {end - position} left"
                    return self._decode_error_at(field, frame, position, reason)
                position += size
        reason = "the bytes end here" if isinstance(error, IndexError) else str(error)
        return self._decode_error_at(place.field, frame, position, reason)

    def _decode_error_at(
        self, field: str, frame: dict[str, Any], position: int, reason: str
    ) -> DecodeError:
        name = field.format_map(frame)
        return DecodeError(reason, self.message.__name__, self.version, name, position)

    def _encode_error(self, error: Exception) -> EncodeError:
        line, frame = _innermost(error.__traceback__, self._encode)
        place = self._encoder.places[line]
        name, reason = place.field, str(error)
        if isinstance(error, struct.error):
            for (_size, field), (code, expression) in zip(place.run, place.packed, strict=True):
                value = eval(expression, {}, frame)  # noqa: S307  # our own expression
                try:
                    pack(">" + code, value)
                except struct.error as refusal:
                    name, reason = field, f"{value!r}: {refusal}"
                    break
        return EncodeError(reason, self.message.__name__, self.version, name)


@cache
def codec(message: type[M], version: int) -> Codec[M]:
    """Give the codec of a message in a version, compiled when it is first asked for."""
    return Codec(message, version)


@dataclass(frozen=True, slots=True)
class _Place:
    """What a generated line handles: a field, or a run of (size, field) that go together.

    A field is written as its path, with the loop variables of arrays in braces:
    `topics[{i1}].partitions[{i2}].index`. `packed` has the (struct code, expression) of each.
    """

    field: str
    run: tuple[tuple[int, str], ...] = ()
    packed: tuple[tuple[str, str], ...] = ()


class _Writer:
    """Lines of Python with the field that each one handles."""

    def __init__(self, filename: str) -> None:
        self.filename = filename
        self.lines: list[str] = []
        self.places: dict[int, _Place] = {}
        self.namespace: dict[str, Any] = {}
        self.indent = 1
        self.names = 0

    @property
    def source(self) -> str:
        return "\n".join(self.lines) + "\n"

    def write(self, line: str, place: _Place | str) -> None:
        self.lines.append("    " * self.indent + line)
        self.places[len(self.lines)] = place if isinstance(place, _Place) else _Place(place)

    def refuse_if(self, condition: str, reason: str, place: _Place | str) -> None:
        """Write a check; `reason` may have names of the generated code in braces."""
        self.write(f'if {condition}: raise MalformedError(f"{reason}")', place)

    def block(self) -> _Indented:
        return _Indented(self)

    def name(self, prefix: str) -> str:
        """Make a new local name."""
        self.names += 1
        return f"{prefix}{self.names}"

    def constant(self, prefix: str, value: object) -> str:
        """Give a name, the same each time, under which generated code finds this object."""
        for name, known in self.namespace.items():
            if known is value:
                return name
        name = f"{prefix}{len(self.namespace)}"
        self.namespace[name] = value
        return name

    def literal(self, value: object) -> str:
        """Write a default: numbers, text and the empty things as they are, others by name."""
        if value is None or isinstance(value, int | str | bytes) or value == ():
            return repr(value)
        return self.constant("D", value)

    def build(self) -> Any:
        """Compile what was written, and let tracebacks and debuggers show it."""
        source = self.source
        linecache.cache[self.filename] = (len(source), None, source.splitlines(True), self.filename)
        scope: dict[str, Any] = {}
        exec(compile(source, self.filename, "exec"), self.namespace, scope)  # noqa: S102
        (function,) = scope.values()
        return function


class _Indented:
    """`with writer.block():` indents what is written in it."""

    def __init__(self, writer: _Writer) -> None:
        self.writer = writer

    def __enter__(self) -> None:
        self.writer.indent += 1

    def __exit__(self, *_exception: object) -> None:
        self.writer.indent -= 1


class _DecoderWriter(_Writer):
    """Writes `decode(b, p, end)`: b is the frame, p where we are, end how far it goes."""

    def __init__(self, filename: str) -> None:
        super().__init__(filename)
        self.namespace.update(
            new=object.__new__,
            UUID=UUID,
            MalformedError=MalformedError,
            uvarint=_uvarint,
            unpack=_unpack_array,
            unknown_tags=_unknown_tags,
        )
        # Fields of fixed size that wait to be read together: (struct code, target, field).
        self.pending: list[tuple[str, str, str]] = []
        # Assignments that follow when they have been read: (line, field).
        self.deferred: list[tuple[str, str]] = []

    def function(self, body: Body) -> Any:
        self.lines.append("def decode(b, p, end):")
        self.body(body, "m0", "")
        self.write("return m0, p", "end")
        return self.build()

    def body(self, body: Body, target: str, path: str) -> None:
        message = self.constant("C", body.message)
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

    def value(self, subcon: Construct, target: str, path: str) -> None:
        """Read one value into `target`."""
        if (code := _struct_code(subcon)) is not None:
            self.pending.append((code, target, path))
        elif subcon is UuidBytes:
            raw = self.name("u")
            self.pending.append(("16s", raw, path))
            self.deferred.append((f"{target} = UUID(bytes={raw})", path))
        elif isinstance(subcon, Text | Blob):
            self.bytes_or_text(subcon, target, path)
        elif isinstance(subcon, ArrayOf):
            self.array(subcon, target, path)
        elif isinstance(subcon, NullableBody):
            self.pending.append(("b", "n", path))
            self.flush()
            self.write("if n < 0:", path)
            with self.block():
                self.write(f"{target} = None", path)
            self.write("else:", path)
            with self.block():
                self.struct(subcon.subcon, target, path)
        else:
            assert isinstance(subcon, Body), subcon
            self.flush()
            self.struct(subcon, target, path)

    def flush(self) -> None:
        """Read what is pending, in one call."""
        if self.pending:
            codes = "".join(code for code, _target, _path in self.pending)
            unpack_from = self.constant("S", _struct(codes).unpack_from)
            targets = ", ".join(target for _code, target, _path in self.pending)
            comma = "," if len(self.pending) == 1 else ""
            run = tuple((calcsize(">" + code), path) for code, _target, path in self.pending)
            self.write(f"{targets}{comma} = {unpack_from}(b, p)", _Place(run[0][1], run))
            self.write(f"p += {sum(size for size, _path in run)}", run[0][1])
            self.pending.clear()
        for line, path in self.deferred:
            self.write(line, path)
        self.deferred.clear()

    def length(self, length: Construct, path: str) -> None:
        """Read a length or count into n; -1 is null."""
        if length is CompactLength:
            self.flush()
            self.write("n = b[p] - 1; p += 1", path)
            self.write("if n > 126: n, p = uvarint(b, p, n + 1); n -= 1", path)
        else:
            code = _struct_code(length)
            assert code is not None
            self.pending.append((code, "n", path))
            self.flush()

    def bytes_or_text(self, subcon: Text | Blob, target: str, path: str) -> None:
        self.length(subcon.length, path)
        with self.unless_null(subcon.nullable, target, path):
            self.write("q = p + n", path)
            self.refuse_if("not p <= q <= end", "length {n}, {end - p} bytes left", path)
            content = "str(b[p:q], 'utf-8')" if isinstance(subcon, Text) else "b[p:q]"
            self.write(f"{target} = {content}; p = q", path)

    def array(self, subcon: ArrayOf, target: str, path: str) -> None:
        element = subcon.element
        self.length(subcon.length, path)
        with self.unless_null(subcon.nullable, target, path):
            most = f"(end - p) // {_smallest(element)}"
            self.refuse_if(f"not 0 <= n <= {most}", "{n} elements, {end - p} bytes left", path)
            code = _struct_code(element)
            if code is not None:
                self.write(f"{target}, p = unpack({code!r}, n, b, p)", path)
                return
            depth = self.names = self.names + 1
            self.write(f"a{depth} = {target} = []", path)
            self.write(f"for i{depth} in range(n):", path)
            with self.block():
                item, inner = f"m{depth}", f"{path}[{{i{depth}}}]"
                self.value(element, item, inner)
                self.flush()
                self.write(f"a{depth}.append({item})", inner)

    def struct(self, body: Body, target: str, path: str) -> None:
        """Read a message; its fields are assigned to a local, which is faster."""
        item = target if "." not in target else self.name("m")
        self.body(body, item, path + ".")
        if item != target:
            self.write(f"{target} = {item}", path)

    def tags(self, tags: TagSection, target: str, path: str) -> None:
        self.write("n = b[p]; p += 1", path)
        if not tags.fields:
            self.write(
                f"if n: {target}.unknown_tagged_fields, p = unknown_tags(b, p, n, end)", path
            )
            return
        count, tag, stop = self.name("k"), self.name("t"), self.name("e")
        self.write("if n:", path)
        with self.block():
            self.write("if n > 127: n, p = uvarint(b, p, n)", path)
            self.refuse_if("n > (end - p) // 2", "{n} tags, {end - p} bytes left", path)
            self.write(f"for {count} in range(n):", path)
            with self.block():
                self.write(f"{tag}, p = uvarint(b, p + 1, b[p])", path)
                self.write("n, p = uvarint(b, p + 1, b[p])", path)
                self.write(f"{stop} = p + n", path)
                reason = f"tag {{{tag}}} has {{n}} bytes, {{end - p}} left"
                self.refuse_if(f"{stop} > end", reason, path)
                word = "if"
                for number, (name, subcon, _default) in tags.fields.items():
                    self.write(f"{word} {tag} == {number}:", path + name)
                    with self.block():
                        self.value(subcon, f"{target}.{name}", path + name)
                        self.flush()
                        reason = f"tag {number} ends {{{stop} - p}} bytes further"
                        self.refuse_if(f"p != {stop}", reason, path + name)
                    word = "elif"
                self.write("else:", path)
                with self.block():
                    unknown = f"{target}.unknown_tagged_fields"
                    self.write(f"if not {unknown}: {unknown} = []", path)
                    self.write(f"{unknown}.append(({tag}, bytes(b[p:{stop}]))); p = {stop}", path)

    def unless_null(self, nullable: bool, target: str, path: str) -> Any:
        if not nullable:
            return _Same()
        self.write(f"if n == -1: {target} = None", path)
        self.write("else:", path)
        return self.block()


class _Same:
    """No indentation."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_exception: object) -> None:
        pass


class _EncoderWriter(_Writer):
    """Writes `encode(m0, w, parts)`: w takes the bytes, parts what is not to be copied."""

    def __init__(self, filename: str) -> None:
        super().__init__(filename)
        self.namespace.update(
            MalformedError=MalformedError,
            write_uvarint=_write_uvarint,
            write_tags=_write_tags,
            pack=pack,
        )
        # Values of fixed size that wait to be written together: (struct code, expression, field).
        self.pending: list[tuple[str, str, str]] = []
        self.in_tag = False

    def function(self, body: Body) -> Any:
        self.lines.append("def encode(m0, w, parts):")
        self.body(body, "m0", "")
        self.write("return w", "end")
        return self.build()

    def body(self, body: Body, source: str, path: str) -> None:
        for name, default in body.absent.items():
            value = f"{source}.{name}"
            reason = f"the version has no place for {{{value}!r}}"
            self.refuse_if(self.differs(value, default), reason, path + name)
        for name, subcon in body.fields:
            self.value(subcon, f"{source}.{name}", path + name)
        self.flush()
        if body.tags is not None:
            self.tags(body.tags, source, path)
        else:
            reason = "the version has no place for tagged fields"
            self.refuse_if(f"{source}.unknown_tagged_fields", reason, path)

    def differs(self, value: str, default: Any) -> str:
        if default is None:
            return f"{value} is not None"
        if default in ((), "", b"", 0):
            # Truth is cheaper than comparison, and None stands for a loss as well.
            return f"{value} or {value} is None" if default != 0 else value
        if isinstance(default, Message):
            name = self.literal(default)
            return f"{value} is not {name} and {value} != {name}"
        return f"{value} != {self.literal(default)}"

    def value(self, subcon: Construct, source: str, path: str) -> None:
        """Write the value of the expression `source`."""
        if (code := _struct_code(subcon)) is not None:
            self.pending.append((code, source, path))
        elif subcon is UuidBytes:
            self.pending.append(("16s", f"{source}.bytes", path))
        elif isinstance(subcon, Text | Blob):
            self.bytes_or_text(subcon, source, path)
        elif isinstance(subcon, ArrayOf):
            self.array(subcon, source, path)
        elif isinstance(subcon, NullableBody):
            item = self.name("m")
            self.write(f"{item} = {source}", path)
            self.pending.append(("b", f"-1 if {item} is None else 1", path))
            self.flush()
            self.write(f"if {item} is not None:", path)
            with self.block():
                self.body(subcon.subcon, item, path + ".")
        else:
            assert isinstance(subcon, Body), subcon
            item = self.name("m")
            self.write(f"{item} = {source}", path)
            self.body(subcon, item, path + ".")

    def flush(self) -> None:
        """Write what is pending, in one call."""
        if not self.pending:
            return
        codes = "".join(code for code, _source, _path in self.pending)
        packer = self.constant("S", _struct(codes).pack)
        sources = ", ".join(source for _code, source, _path in self.pending)
        run = tuple((calcsize(">" + code), path) for code, _source, path in self.pending)
        packed = tuple((code, source) for code, source, _path in self.pending)
        self.write(f"w += {packer}({sources})", _Place(run[0][1], run, packed))
        self.pending.clear()

    def length(self, length: Construct, name: str, path: str) -> None:
        """Write the length or count that is in the local `name`; -1 is null."""
        if length is CompactLength:
            self.flush()
            self.write(f"if {name} < 127: w.append({name} + 1)", path)
            self.write(f"else: write_uvarint(w, {name} + 1)", path)
        else:
            code = _struct_code(length)
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
            code = _struct_code(subcon.element)
            if code is not None:
                self.write(f'w += pack(f">{{{count}}}{code}", *{elements})', path)
                return
            item = self.name("m")
            self.write(f"for {item} in {elements}:", path)
            with self.block():
                if isinstance(subcon.element, Body):
                    self.body(subcon.element, item, path + "[].")
                else:
                    self.value(subcon.element, item, path + "[]")
                    self.flush()

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


@cache
def _struct(codes: str) -> Struct:
    return Struct(">" + codes)


def _struct_code(subcon: Construct) -> str | None:
    """Give the code by which the struct module knows a type of fixed size, if it does."""
    if subcon is Flag:
        return "?"
    if isinstance(subcon, FormatField):
        code: str = subcon.fmtstr
        assert code[0] == ">", "the wire is big-endian"
        return code[1:]
    return None


def _smallest(subcon: Construct) -> int:
    """How many bytes a value of this type takes at least."""
    if (code := _struct_code(subcon)) is not None:
        return calcsize(">" + code)
    if subcon is UuidBytes:
        return 16
    if isinstance(subcon, Text | Blob | ArrayOf):
        return 1 if subcon.length is CompactLength else _smallest(subcon.length)
    if isinstance(subcon, NullableBody):
        return 1
    assert isinstance(subcon, Body), subcon
    tags = 0 if subcon.tags is None else 1
    return sum(_smallest(field) for _name, field in subcon.fields) + tags


def _innermost(traceback: TracebackType | None, function: Any) -> tuple[int, dict[str, Any]]:
    """Find the generated function in a traceback: its line, and its local variables."""
    while traceback is not None:
        if traceback.tb_frame.f_code is function.__code__:
            return traceback.tb_lineno, traceback.tb_frame.f_locals
        traceback = traceback.tb_next
    raise AssertionError("the generated function is not in the traceback of its own error")


# What generated code calls, for the rare and the long.


def _uvarint(b: memoryview, p: int, first: int) -> tuple[int, int]:
    """Read the rest of an unsigned varint whose first byte has been read."""
    value = first & 0x7F
    shift = 7
    byte = first
    while byte > 0x7F:
        if shift > 28:
            raise MalformedError("a varint of more than five bytes")
        byte = b[p]
        p += 1
        value |= (byte & 0x7F) << shift
        shift += 7
    return value, p


def _unpack_array(code: str, n: int, b: memoryview, p: int) -> tuple[Any, int]:
    array = Struct(f">{n}{code}")
    return array.unpack_from(b, p), p + array.size


def _unknown_tags(b: memoryview, p: int, n: int, end: int) -> tuple[list[tuple[int, bytes]], int]:
    """Read a tag section of which no tag is known; the first byte of its count is n."""
    if n > 0x7F:
        n, p = _uvarint(b, p, n)
    if n > (end - p) // 2:
        raise MalformedError(f"{n} tags, {end - p} bytes left")
    tags = []
    for _ in range(n):
        tag, p = _uvarint(b, p + 1, b[p])
        size, p = _uvarint(b, p + 1, b[p])
        if p + size > end:
            raise MalformedError(f"tag {tag} has {size} bytes, {end - p} left")
        tags.append((tag, bytes(b[p : p + size])))
        p += size
    return tags, p


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
