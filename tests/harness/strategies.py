"""Hypothesis strategies: messages of every API and version, and records."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from ottla.protocol import consumer, header, schema
from ottla.protocol.batch import Record
from ottla.protocol.registry import APIS
from ottla.protocol.schema import Array, Field, FieldType, Message, Struct

#: Every top-level message, in every version.
ALL_MESSAGES: list[tuple[type[Message], int]] = [
    (message, version)
    for message in (
        header.RequestHeader,
        header.ResponseHeader,
        consumer.ConsumerProtocolSubscription,
        consumer.ConsumerProtocolAssignment,
        *(message for api in APIS.values() for message in (api.request, api.response)),
    )
    for version in message.versions
]

_INTEGERS = {schema.Int8: 8, schema.Int16: 16, schema.Int32: 32, schema.Int64: 64}
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_TAGS = st.integers(100, 2**31 - 1)


def examples(count: int) -> settings:
    """Run `count` examples; with the profile `check`, in proportion to its own number fewer."""
    profile, fast = settings(), settings.get_profile("fast")
    share = min(1, profile.max_examples / fast.max_examples)
    return settings(max_examples=max(1, round(count * share)))


def id_of(case: Any) -> str:
    return case.__name__ if isinstance(case, type) else f"v{case}"


@cache
def messages(message: type[Message], version: int) -> st.SearchStrategy[Message]:
    """Return messages of a version; fields that it lacks have their defaults."""
    versions = message.versions
    assert versions is not None
    return _messages(message, version, versions.is_flexible(version))


def _messages(message: type[Message], version: int, flexible: bool) -> st.SearchStrategy[Message]:
    fields = {
        name: _field(field, version, flexible)
        for name, field in message.fields.items()
        if field.exists_in(version)
    }
    if flexible:
        known = {field.tag for field in message.fields.values()}
        fields["unknown_tagged_fields"] = st.just(()) | _tagged_fields(known)
    return st.builds(message, **fields)


def _tagged_fields(known: set[int | None]) -> st.SearchStrategy[tuple[tuple[int, bytes], ...]]:
    tags = st.tuples(_TAGS.filter(lambda tag: tag not in known), st.binary(max_size=6))
    return st.lists(tags, max_size=2, unique_by=lambda tag: tag[0]).map(
        lambda tags: tuple(sorted(tags))
    )


def _field(field: Field, version: int, flexible: bool) -> st.SearchStrategy[Any]:
    values = st.just(field.default) | _values(field.type, version, flexible)
    if field.nullable_in(version):
        return st.none() | values
    if field.default is None:  # null only where the field is absent
        return _values(field.type, version, flexible)
    return values


def _values(kind: FieldType[Any], version: int, flexible: bool) -> st.SearchStrategy[Any]:
    if kind in _INTEGERS:
        bound = 2 ** (_INTEGERS[kind] - 1)
        return st.integers(-bound, bound - 1)
    if kind is schema.UInt16:
        return st.integers(0, 2**16 - 1)
    if kind is schema.Float64:
        return st.floats(allow_nan=False)
    if kind is schema.Bool:
        return st.booleans()
    if kind is schema.Uuid:
        return st.uuids()
    if kind in (schema.String, schema.LegacyString):
        return _TEXT | st.just("x" * 200)
    if kind is schema.Bytes:
        # Around the size from which bytes are passed on, and where varints grow.
        return st.binary(max_size=12) | st.sampled_from([b"y" * n for n in (127, 4095, 4096)])
    if isinstance(kind, Array):
        return st.lists(_values(kind.element, version, flexible), max_size=3)
    assert isinstance(kind, Struct)
    return _messages(kind.message, version, flexible)


_HEADERS = st.lists(st.tuples(_TEXT, st.none() | st.binary(max_size=9)), max_size=3).map(tuple)


def records(*, min_size: int = 1) -> st.SearchStrategy[list[Record]]:
    """Return records with consecutive offsets."""
    size = st.binary(max_size=5) | st.sampled_from([b"z" * n for n in (63, 64, 1023, 1024, 9000)])
    parts = st.tuples(st.integers(0, 2**52), st.none() | size, st.none() | size, _HEADERS)
    return st.lists(parts, min_size=min_size, max_size=6).map(
        lambda rows: [Record(offset, *row) for offset, row in enumerate(rows)]
    )


@st.composite
def varints(draw: st.DrawFn, numbers: st.SearchStrategy[int]) -> bytes:
    """A varint, sometimes with more bytes than necessary or allowed."""
    rest = draw(numbers)
    rest = rest << 1 if rest >= 0 else (-rest << 1) - 1
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    padding = draw(st.sampled_from([0, 0, 0, 0, 1, 2, 4, 9]))
    return bytes(out) + bytes([rest | 0x80] + [0x80] * (padding - 1) + [0] if padding else [rest])


@st.composite
def blobs(draw: st.DrawFn) -> bytes:
    """A length and bytes, mostly of that length."""
    content = draw(st.binary(max_size=3) | st.just(b"\xc3\xbc"))
    lengths = st.sampled_from([len(content)] * 4 + [-1, -2, len(content) + 1, 2**31, -(2**31) - 1])
    return draw(varints(lengths)) + content


@st.composite
def nearly_valid_records(draw: st.DrawFn) -> bytes:
    """A record that is nearly valid."""
    times = st.sampled_from([0, 1, -1, 2**62, 2**63 - 1, -(2**63), 2**63, 2**69])
    deltas = st.sampled_from([0, 1, 200, 2**31 - 1, 2**31, -1])
    headers = draw(st.lists(st.tuples(blobs(), blobs()).map(b"".join), max_size=2))
    counts = st.sampled_from([len(headers)] * 6 + [len(headers) + 1, -1, 2**31])
    parts = [varints(times), varints(deltas), blobs(), blobs(), varints(counts)]
    body = b"\0" + b"".join(draw(part) for part in parts) + b"".join(headers)
    size = st.sampled_from([len(body)] * 8 + [len(body) + 1, len(body) - 1, -1, 2**32])
    return draw(varints(size)) + body
