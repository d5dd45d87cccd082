"""Bytes of records as people and programs read them: JSON, text, or hex.

Keys, values and headers are anybody's bytes. What leaves here is plain text without control
characters that a terminal or a browser would act upon, and templates escape it.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from datetime import UTC, datetime
from typing import Literal, NamedTuple

#: Control characters, and those that change the direction of text.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]"
)
_HEX_COLUMNS = 16
_PREVIEW_CHARACTERS = 400
_INDENTED = json.JSONEncoder(indent=2, ensure_ascii=False)
# Characters of indented JSON, by the bytes of it that a page may show.
_INDENTED_FACTOR = 4

Encoding = Literal["utf-8", "base64"]


class Encoded(NamedTuple):
    """Bytes in a JSON document."""

    encoding: Encoding
    data: str
    size: int
    is_truncated: bool


class Shown(NamedTuple):
    """Bytes on a page."""

    kind: Literal["json", "text", "hex", "null", "empty"]
    preview: str
    text: str
    size: int
    #: How many of its bytes `text` has.
    shown_bytes: int

    @property
    def is_truncated(self) -> bool:
        """Whether `text` has not all of it."""
        return self.shown_bytes < self.size


def encode(data: bytes | None, max_bytes: int | None) -> Encoded | None:
    """Return bytes as text if they are UTF-8, else as Base64; cut at `max_bytes`."""
    if data is None:
        return None
    is_truncated = max_bytes is not None and len(data) > max_bytes
    part = data[:max_bytes] if is_truncated else data
    text = _decoded(part, is_truncated)
    if text is None:
        return Encoded("base64", base64.b64encode(part).decode(), len(data), is_truncated)
    return Encoded("utf-8", text, len(data), is_truncated)


def decode(data: str, encoding: str) -> bytes:
    """Return the bytes that `encode` returned text of. Raises ValueError."""
    if encoding == "utf-8":
        return data.encode()
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise ValueError(f"Invalid Base64: {error}") from None


def show(data: bytes | None, max_bytes: int, kind: str = "auto") -> Shown:
    """Return bytes for a page: `kind` is auto, json, text or hex."""
    if data is None:
        return Shown("null", "null", "", 0, 0)
    if not data:
        return Shown("empty", "", "", 0, 0)
    part = data[:max_bytes]
    text = _decoded(part, len(part) < len(data))
    if kind in ("auto", "json") and text is not None and len(part) == len(data):
        pretty = _pretty(text, _INDENTED_FACTOR * max_bytes)
        if pretty is not None:
            return Shown("json", _preview(visible(text)), visible(pretty), len(data), len(part))
    if kind == "hex" or text is None:
        return Shown("hex", part[:48].hex(" "), hex_dump(part), len(data), len(part))
    shown = visible(text)
    return Shown("text", _preview(shown), shown, len(data), len(part))


def visible(text: str) -> str:
    """Return text with control characters replaced by escapes."""
    return _CONTROLS.sub(_symbol, text)


def _symbol(match: re.Match[str]) -> str:
    number = ord(match[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


def _preview(text: str) -> str:
    return " ".join(text[:_PREVIEW_CHARACTERS].split())


def _decoded(part: bytes, is_truncated: bool) -> str | None:
    """Return UTF-8 as text; a cut may be inside of a character."""
    for cut in range(4 if is_truncated else 1):
        try:
            return part[: len(part) - cut].decode()
        except UnicodeDecodeError:
            continue
    return None


def _pretty(text: str, max_characters: int) -> str | None:
    """Return an object or array of JSON, indented; None if that is much longer than the text.

    A few kilobytes of nested arrays become megabytes.
    """
    if text.lstrip()[:1] not in ("{", "["):
        return None
    parts: list[str] = []
    remaining = max_characters
    try:
        for part in _INDENTED.iterencode(json.loads(text)):
            parts.append(part)
            remaining -= len(part)
            if remaining < 0:
                return None
    except (ValueError, RecursionError):
        return None
    return "".join(parts)


def hex_dump(data: bytes) -> str:
    """Return lines of offset, bytes and ASCII."""
    lines = []
    for start in range(0, len(data), _HEX_COLUMNS):
        row = data[start : start + _HEX_COLUMNS]
        ascii_ = "".join(chr(byte) if 0x20 <= byte < 0x7F else "·" for byte in row)
        lines.append(f"{start:08x}  {row.hex(' '):<{3 * _HEX_COLUMNS}} {ascii_}")
    return "\n".join(lines)


def iso_time(milliseconds: int | None) -> str | None:
    """Return a timestamp in UTC; None if there is none."""
    if milliseconds is None or milliseconds < 0:
        return None
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
