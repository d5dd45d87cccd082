"""From a construct to straight-line Python: the codec of one message in one version.

`Codec` walks the construct that `Message.struct(version)` gives and writes two functions,
`decode(b, p, end)` and `encode(m, w, parts)`. What makes them fast:

- neighbouring fields of fixed size, and the lengths behind them, are one struct call;
- nested messages and arrays are loops in the same function, not calls;
- bytes are slices of the frame going in, and are passed on uncopied going out.

What makes them safe: fixed fields are read by `unpack_from`, which knows where the frame ends; each
length is compared with what is left before it is used; each count with how many of the smallest
possible elements could still follow; and all counts together with what a message of that size may
have.

Nothing is spent on saying what went wrong until it does: every generated line is noted down
together with the field that it handles, so that a traceback's line number names the field, and the
frame's local variables say at which byte and at which element of which array.

`Codec.decode_source` is worth a look: `print(codec(HeartbeatRequest, 4).decode_source)`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from types import TracebackType
from typing import Any, Generic, TypeVar

from ..errors import DecodeError, EncodeError
from ..schema import Buffer, Message
from .decoder import DecoderWriter
from .encoder import PASS_THROUGH_BYTES, EncoderWriter
from .source import MalformedError

__all__ = ["PASS_THROUGH_BYTES", "Codec", "codec"]

M = TypeVar("M", bound=Message)


class Codec(Generic[M]):
    """Encodes and decodes one message class in one version."""

    __slots__ = ("_decode", "_decoder", "_encode", "_encoder", "message", "version")

    def __init__(self, message: type[M], version: int) -> None:
        self.message = message
        self.version = version
        label = f"{message.__name__} v{version}"
        self._decoder = DecoderWriter(f"<decode {label}>")
        self._encoder = EncoderWriter(f"<encode {label}>")
        # Each is compiled when it is first used: who decodes a message seldom encodes it, too.
        self._decode: Callable[[memoryview, int, int], tuple[M, int]] = self._first_decode
        self._encode: Callable[[M, bytearray, list[Buffer]], bytearray] = self._first_encode

    @property
    def decode_source(self) -> str:
        """The generated decoder, to read."""
        if not self._decoder.lines:
            self._compile_decoder()
        return self._decoder.source

    @property
    def encode_source(self) -> str:
        """The generated encoder, to read."""
        if not self._encoder.lines:
            self._compile_encoder()
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

    # Two threads may be at it at a time: both write the same, and the last one has its way.

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
        line, frame = _innermost(error.__traceback__, self._encoder.filename)
        place = self._encoder.places[line]
        name, reason = place.field, str(error)
        if isinstance(error, struct.error):
            for (_size, field), (code, expression) in zip(place.run, place.packed, strict=True):
                value = eval(expression, {}, frame)  # noqa: S307  # our own expression
                try:
                    struct.pack(">" + code, value)
                except struct.error as refusal:
                    name, reason = field, f"{value!r}: {refusal}"
                    break
        return EncodeError(reason, self.message.__name__, self.version, name)


@cache
def codec(message: type[M], version: int) -> Codec[M]:
    """Give the codec of a message in a version."""
    return Codec(message, version)


def _innermost(traceback: TracebackType | None, filename: str) -> tuple[int, dict[str, Any]]:
    """Find the generated function in a traceback: its line, and its local variables."""
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == filename:
            return traceback.tb_lineno, traceback.tb_frame.f_locals
        traceback = traceback.tb_next
    raise AssertionError("the generated function is not in the traceback of its own error")
