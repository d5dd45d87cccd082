"""Records as text: what `ottla produce` reads, and `ottla consume` prints.

A JSON row is an object:

    {"key": "user-1", "value": "…", "headers": {"trace": "1"}, "partition": 0, "timestamp": 170000}

All but the value may be left out, and the value may be null: a tombstone. Bytes that are not text
in UTF-8 stand in base64 under `key_base64` and `value_base64`, and headers that are so, or come
twice, as a list of `{"name": …, "value_base64": …}`. What is no string is sent as JSON.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from .values import format_time

if TYPE_CHECKING:
    from ottla.client.types import ConsumerRecord

_Headers = Sequence[tuple[str, bytes | None]]
_KNOWN = {"key", "key_base64", "value", "value_base64", "headers", "partition", "timestamp"}
# What else `consume --json` prints; of no use to a producer.
_IGNORED = {"topic", "offset", "time"}


class Row(NamedTuple):
    """A record to be sent."""

    value: bytes | None
    key: bytes | None = None
    headers: _Headers = ()
    partition: int | None = None
    timestamp: int | None = None


def parse_json(line: bytes) -> Row:
    """Read a JSON row. Raises ValueError."""
    found = json.loads(line)
    if not isinstance(found, dict):
        raise ValueError('it is no JSON object, such as {"key": "k", "value": "v"}')
    if unknown := found.keys() - _KNOWN - _IGNORED:
        raise ValueError(f"{', '.join(sorted(unknown))}: known are {', '.join(sorted(_KNOWN))}")
    if not found.keys() & {"value", "value_base64"}:
        raise ValueError("there is no value; a tombstone has the value null")
    return Row(
        _bytes(found, "value"),
        _bytes(found, "key"),
        _headers(found.get("headers") or {}),
        _number(found, "partition"),
        _number(found, "timestamp"),
    )


def _bytes(found: Mapping[str, Any], name: str) -> bytes | None:
    encoded = found.get(f"{name}_base64")
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise ValueError(f"{name}_base64: {error}") from error
    value = found.get(name)
    if value is None:
        return None
    return (value if isinstance(value, str) else _compact(value)).encode()


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _headers(found: Any) -> _Headers:
    if isinstance(found, dict):
        return [(name, _bytes({"value": value}, "value")) for name, value in found.items()]
    if isinstance(found, list) and all(isinstance(one, dict) and "name" in one for one in found):
        return [(str(one["name"]), _bytes(one, "value")) for one in found]
    raise ValueError("headers: it is no object, and no list of objects with a name")


def _number(found: Mapping[str, Any], name: str) -> int | None:
    value = found.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise ValueError(f"{name}: {value!r} is no number")
    return value


def as_json(record: ConsumerRecord) -> dict[str, Any]:
    """Give a record as a JSON row."""
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


def _headers_json(headers: _Headers) -> Any:
    texts = [{"name": name, **_text("value", value)} for name, value in headers]
    names = {name for name, _ in headers}
    if len(names) == len(texts) and all("value" in one for one in texts):
        return {one["name"]: one["value"] for one in texts}
    return texts


# What stands for what in a format string; the letters are kcat's.
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
    """Make what writes records in a format: `%t %p %o %k %s`, and escapes such as `\\n`."""
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
                f"%{match['letter']} is none of {known}", param_hint="--format"
            )
    return lambda record: b"".join([part(record) for part in parts])


_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}


def unescaped(text: str) -> bytes:
    r"""Read \n, \t, \r, \0, \\ and \xHH; anything else is itself."""
    return re.sub(
        rb"\\(?:x([0-9a-fA-F]{2})|([nrt0\\]))",
        lambda match: bytes([int(match[1], 16)]) if match[1] else _ESCAPES[match[2].decode()],
        text.encode(),
    )


def header_pairs(given: Iterable[str]) -> _Headers:
    """Read NAME=VALUE; a NAME alone is a header without a value."""
    found: list[tuple[str, bytes | None]] = []
    for text in given:
        name, equals, value = text.partition("=")
        found.append((name, value.encode() if equals else None))
    return found
