"""Compile a construct to straight-line Python: the codec of one message in one version.

`Codec` walks the construct that `Message.struct(version)` returns, and generates two functions,
`decode(b, p, end)` and `encode(m, w, parts)`. They are fast because:

- adjacent fields of fixed size, and the length that follows them, are one struct call;
- nested messages and arrays are loops in the same function, not calls;
- decoded bytes are slices of the frame, and large ones are encoded without a copy.

They are safe because fixed-size fields are read by `unpack_from`, which checks the end of the
frame; every length is checked against the remaining bytes before it is used; every count against
the number of smallest possible elements in the remaining bytes; and the sum of all counts against
the limit for a message of that size.

Error reports cost nothing until there is an error: the field of every generated line is recorded,
so the line number in a traceback identifies the field, and the local variables of the frame give
the byte position and the array indexes.

With the compiled module, common messages are encoded and decoded there, from a `Layout` of the same
construct. It leaves all others, and all errors, to the generated code.

To see the generated code: `print(codec(HeartbeatRequest, 4).decode_source)`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .. import compiled
from ..errors import DecodeError, EncodeError
from ..schema import Buffer, Message
from .decoder import DecoderWriter
from .encoder import PASS_THROUGH_BYTES, EncoderWriter
from .layout import layout_of
from .source import MalformedError

if TYPE_CHECKING:
    from .._fast import Layout

__all__ = ["PASS_THROUGH_BYTES", "Codec", "codec"]

M = TypeVar("M", bound=Message)


class Codec(Generic[M]):
    """Encodes and decodes one message class in one version."""

    __slots__ = ("_decode", "_decoder", "_encode", "_encoder", "_layout", "message", "version")

    def __init__(self, message: type[M], version: int) -> None:
        self.message = message
        self.version = version
        label = f"{message.__name__} v{version}"
        self._decoder = DecoderWriter(f"<decode {label}>")
        self._encoder = EncoderWriter(f"<encode {label}>")
        self._layout: Layout | None = None
        # Compiled on first use: a process that decodes a message seldom encodes it.
        self._decode: Callable[[memoryview, int, int], tuple[M, int]] = self._first_decode
        self._encode: Callable[[M, bytearray, list[Buffer]], bytearray] = self._first_encode

    @property
    def decode_source(self) -> str:
        """The source of the generated decoder."""
        if not self._decoder.lines:
            self._compile_decoder()
        return self._decoder.source

    @property
    def encode_source(self) -> str:
        """The source of the generated encoder."""
        if not self._encoder.lines:
            self._compile_encoder()
        return self._encoder.source

    def decode(self, buffer: memoryview, position: int = 0) -> tuple[M, int]:
        """Decode the message at `position`; return it and the position after it.

        Byte fields are slices of `buffer`. Raises DecodeError.
        """
        fast = compiled.fast
        if fast is not None:
            decoded = fast.decode_message(self._layout or self._describe(fast), buffer, position)
            if decoded is not None:
                return decoded
        try:
            return self._decode(buffer, position, len(buffer))
        except (MalformedError, struct.error, IndexError, UnicodeDecodeError) as error:
            raise self._decode_error(error, len(buffer)) from error

    def encode(self, message: M, tail: bytearray, parts: list[Buffer]) -> bytearray:
        """Append the message to `tail`, and return the new tail.

        A large byte field is appended to `parts` uncopied, after the tail so far: the encoded bytes
        are those of all parts, then those of the tail. Raises EncodeError.
        """
        fast = compiled.fast
        if fast is not None:
            layout = self._layout or self._describe(fast)
            encoded = fast.encode_message(layout, message, tail, parts, PASS_THROUGH_BYTES)
            if encoded is not None:
                return encoded
        try:
            return self._encode(message, tail, parts)
        except (MalformedError, struct.error, AttributeError, TypeError, ValueError) as error:
            raise self._encode_error(error) from error

    def _describe(self, fast: ModuleType) -> Layout:
        self._layout = layout_of(self.message.struct(self.version), fast.Layout)
        return self._layout

    # Two threads may compile at the same time: both results are equal, and the last one is kept.

    def _compile_decoder(self) -> None:
        writer = DecoderWriter(self._decoder.filename)
        decode = writer.function(self.message.struct(self.version))
        self._decoder, self._decode = writer, decode

    def _compile_encoder(self) -> None:
        writer = EncoderWriter(self._encoder.filename)
        encode = writer.function(self.message.struct(self.version))
        self._encoder, self._encode = writer, encode

    def _first_decode(self, buffer: memoryview, position: int, end: int) -> tuple[M, int]:
        self._compile_decoder()
        return self._decode(buffer, position, end)

    def _first_encode(self, message: M, tail: bytearray, parts: list[Buffer]) -> bytearray:
        self._compile_encoder()
        return self._encode(message, tail, parts)

    def _decode_error(self, error: Exception, end: int) -> DecodeError:
        line, frame = _innermost(error.__traceback__, self._decoder.filename)
        fields = self._decoder.fields[line]
        position: int = frame["p"]
        if isinstance(error, struct.error):
            # One of several fields that are read together is past the end: find it.
            for size, field in fields.run:
                if position + size > end:
                    reason = f"needs {size} bytes, but {end - position} remain"
                    return self._decode_error_at(field, frame, position, reason)
                position += size
        reason = "unexpected end of the frame" if isinstance(error, IndexError) else str(error)
        return self._decode_error_at(fields.field, frame, position, reason)

    def _decode_error_at(
        self, field: str, frame: dict[str, Any], position: int, reason: str
    ) -> DecodeError:
        name = field.format_map(frame)
        return DecodeError(reason, self.message.__name__, self.version, name, position)

    def _encode_error(self, error: Exception) -> EncodeError:
        line, frame = _innermost(error.__traceback__, self._encoder.filename)
        fields = self._encoder.fields[line]
        name, reason = fields.field, str(error)
        if isinstance(error, struct.error):
            for (_size, field), (code, expression) in zip(fields.run, fields.packed, strict=True):
                value = eval(expression, {}, frame)  # noqa: S307  # generated by us
                try:
                    struct.pack(">" + code, value)
                except struct.error as cause:
                    name, reason = field, f"{value!r}: {cause}"
                    break
        return EncodeError(reason, self.message.__name__, self.version, name)


@cache
def codec(message: type[M], version: int) -> Codec[M]:
    """Return the codec of a message in a version."""
    return Codec(message, version)


def _innermost(traceback: TracebackType | None, filename: str) -> tuple[int, dict[str, Any]]:
    """Return the line and the local variables of the generated function in a traceback."""
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == filename:
            return traceback.tb_lineno, traceback.tb_frame.f_locals
        traceback = traceback.tb_next
    raise AssertionError("no frame of the generated function in the traceback")
