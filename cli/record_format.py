"""Records as text: the input of `ottla produce` and the output of `ottla consume`.

A JSON row is an object:

    {"key": "user-1", "value": "…", "headers": {"trace": "1"}, "partition": 0, "timestamp": 170000}

Only the value is required; a null value is a tombstone. Bytes that are not UTF-8 are base64 under
`key_base64` and `value_base64`. Headers are printed as a list of `{"name": …, "value": …}`, and
accepted as that or as an object. Values that are not strings are sent as JSON.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from .option_types import format_time

if TYPE_CHECKING:
    from ottla.client.types import ConsumerRecord

_Headers = Sequence[tuple[str, bytes | None]]
_KNOWN = {"key", "key_base64", "value", "value_base64", "headers", "partition", "timestamp"}
# Printed by `consume --json`, ignored by `produce --rows`.
_IGNORED = {"topic", "offset", "time"}


class Row(NamedTuple):
    """A record to send."""

    value: bytes | None
    key: bytes | None = None
    headers: _Headers = ()
    partition: int | None = None
    timestamp: int | None = None


def parse_json(line: bytes) -> Row:
    """Parse a JSON row. Raises ValueError."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        # Its own message speaks of line 1, which is the row.
        raise ValueError(f"invalid JSON at column {error.colno}: {error.msg}") from None
    if not isinstance(row, dict):
        raise ValueError('expected a JSON object such as {"key": "k", "value": "v"}')
    if unknown := row.keys() - _KNOWN - _IGNORED:
        raise ValueError(
            f"unknown keys {', '.join(sorted(unknown))}; allowed: {', '.join(sorted(_KNOWN))}"
        )
    if not row.keys() & {"value", "value_base64"}:
        raise ValueError("value is missing; use null for a tombstone")
    return Row(
        _bytes(row, "value"),
        _bytes(row, "key"),
        _headers(row.get("headers") or {}),
        _number(row, "partition"),
        _number(row, "timestamp"),
    )


def _bytes(row: Mapping[str, Any], name: str) -> bytes | None:
    encoded = row.get(f"{name}_base64")
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise ValueError(f"{name}_base64: {error}") from error
    value = row.get(name)
    if value is None:
        return None
    return (value if isinstance(value, str) else _compact(value)).encode()


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _headers(headers: Any) -> _Headers:
    if isinstance(headers, dict):
        return [(name, _bytes({"value": value}, "value")) for name, value in headers.items()]
    if isinstance(headers, list) and all(isinstance(h, dict) and "name" in h for h in headers):
        return [(str(header["name"]), _bytes(header, "value")) for header in headers]
    raise ValueError("invalid headers: expected an object, or a list of objects with a name")


def _number(row: Mapping[str, Any], name: str) -> int | None:
    value = row.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise ValueError(f"invalid {name} {value!r}: expected a number")
    return value


def as_json(record: ConsumerRecord) -> dict[str, Any]:
    """Return a record as a JSON row."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        **_text("key", record.key),
        **_text("value", record.value),
        "headers": _headers_json(record.headers),
    }


def _text(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def _headers_json(headers: _Headers) -> list[dict[str, str | None]]:
    # Always a list: names may be repeated, and programs should not have to handle two shapes.
    return [{"name": name, **_text("value", value)} for name, value in headers]


# Fields of a format string; the letters are kcat's.
_FIELDS: dict[str, Callable[[ConsumerRecord], bytes]] = {
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "k": lambda record: record.key or b"",
    "s": lambda record: record.value or b"",
    "K": lambda record: b"%d" % (-1 if record.key is None else len(record.key)),
    "S": lambda record: b"%d" % (-1 if record.value is None else len(record.value)),
    "T": lambda record: b"%d" % record.timestamp,
    "d": lambda record: (format_time(record.timestamp) or "-").encode(),
    "h": lambda record: b",".join(
        name.encode() + b"=" + (value or b"") for name, value in record.headers
    ),
    "%": lambda _: b"%",
}
_PART = re.compile(r"%(?P<letter>.?)|(?P<text>[^%]+)", re.DOTALL)


def formatter(text: str) -> Callable[[ConsumerRecord], bytes]:
    """Return a function that formats records: `%t %p %o %k %s`, and escapes such as `\\n`."""
    parts: list[Callable[[ConsumerRecord], bytes]] = []
    for match in _PART.finditer(text):
        if match["text"]:
            constant = unescaped(match["text"])
            parts.append(lambda _, constant=constant: constant)  # type: ignore[misc]
        elif match["letter"] in _FIELDS:
            parts.append(_FIELDS[match["letter"]])
        else:
            known = " ".join(f"%{letter}" for letter in _FIELDS)
            raise click.BadParameter(
                f"unknown field %{match['letter']}, allowed: {known}", param_hint="--format"
            )
    return lambda record: b"".join([part(record) for part in parts])


_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}


def unescaped(text: str) -> bytes:
    r"""Replace the escapes \n, \t, \r, \0, \\ and \xHH."""
    return re.sub(
        rb"\\(?:x([0-9a-fA-F]{2})|([nrt0\\]))",
        lambda match: bytes([int(match[1], 16)]) if match[1] else _ESCAPES[match[2].decode()],
        text.encode(),
    )


def header_pairs(texts: Iterable[str]) -> _Headers:
    """Parse NAME=VALUE; a NAME alone is a header with a null value."""
    headers: list[tuple[str, bytes | None]] = []
    for text in texts:
        name, equals, value = text.partition("=")
        headers.append((name, value.encode() if equals else None))
    return headers
