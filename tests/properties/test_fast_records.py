"""The compiled module and its twin in Python: the same results, the same errors, for any bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.strategies import records
from ottla.client.types import ConsumerRecord
from ottla.protocol.errors import BatchError
from ottla.protocol.records import (
    Record,
    decode_in_python,
    decode_records,
    encode_in_python,
    encode_records,
)

fast = pytest.importorskip("ottla.protocol._fast", reason="the compiled module was not built")

ROOM = partial(pa.allocate_buffer, resizable=True)
NOW = 1_700_000_000_000
INT64 = st.integers(-(2**63), 2**63 - 1)
#: What a client makes of records: their place before them, and their leader epoch behind.
LONGER = (ConsumerRecord, ("orders", 3), (9,))
SAMPLE = [
    Record(0, NOW, b"key", b"v" * 70, (("a", b"1"), ("ü€😀", None), ("", b""))),
    Record(1, NOW - 70_000, None, b""),
    Record(70, NOW + 2**40, b"", None),
]


def outcome(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a call gives, or what it raises, in a form that can be compared."""
    try:
        return function(*arguments)
    except BatchError as error:
        return BatchError, error.code, str(error)
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        return type(error), str(error)


def in_64_bits(rows: list[Record]) -> bool:
    return all(-(2**63) <= n < 2**63 for row in rows for n in (row.offset, row.timestamp))


def check_decoding(payload: Any, count: int, *bases: Any) -> None:
    """See that the compiled module declines what its twin refuses, and nothing else."""
    wanted = outcome(decode_in_python, Record, (), (), payload, count, *bases)
    got = fast.decode_records(Record, (), (), payload, count, *bases)
    longer = fast.decode_records(*LONGER, payload, count, *bases)
    columns = fast.decode_columns(
        ROOM, [(payload, count, *bases)], -(2**63), 2**63 - 1, 1, with_headers=True
    )

    assert outcome(decode_records, payload, count, *bases) == wanted
    if isinstance(wanted, list) and in_64_bits(wanted):
        assert got == wanted
        assert [type(row) for row in got] == [Record] * count
        assert longer == decode_in_python(*LONGER, payload, count, *bases)
        assert [type(row) for row in longer] == [ConsumerRecord] * count
        assert [tuple(row[2:7]) for row in longer] == got
        assert {(*row[:2], *row[7:]) for row in longer} <= {("orders", 3, 9)}
        assert columns is not None
        assert columns[0] == count
    else:
        assert got is None
        assert longer is None
        assert columns is None


@given(
    rows=records(min_size=0), base_offset=INT64, base_timestamp=INT64, append_time=st.none() | INT64
)
@settings(max_examples=100)
def test_what_one_writes_the_other_writes_and_both_read(
    rows, base_offset, base_timestamp, append_time
):
    written = encode_in_python(rows, 0, NOW)

    assert fast.encode_records(Record, rows, 0, NOW) == written
    check_decoding(written, len(rows), base_offset, base_timestamp, append_time)


def test_the_plain_case_is_not_declined_whatever_buffer_it_is_in():
    written = fast.encode_records(Record, SAMPLE, 0, NOW)
    padded = memoryview(b"\xff" + written + b"\xff")[1:-1]

    for payload in (written, bytearray(written), memoryview(written), padded):
        assert fast.decode_records(Record, (), (), payload, 3, 0, NOW, None) == SAMPLE
        assert fast.decode_columns(ROOM, [(payload, 3, 0, NOW, None)], 0, 9, 1, False)[0] == 2


def test_a_buffer_with_gaps_is_left_to_the_twin():
    written = encode_in_python(SAMPLE, 0, NOW)
    gaps = memoryview(bytes(byte for pair in zip(written, written, strict=True) for byte in pair))

    assert fast.decode_records(Record, (), (), gaps[::2], 3, 0, NOW, None) is None
    assert fast.decode_columns(ROOM, [(gaps[::2], 3, 0, NOW, None)], 0, 9, 1, False) is None
    assert decode_records(gaps[::2], 3, 0, NOW, None) == SAMPLE


def test_no_reference_is_lost_or_kept():
    value = bytes(1000)
    rows = [Record(0, NOW, None, value, (("a", value),))]
    payload = bytearray(encode_records(rows, 0, NOW))

    for count in (1, 2):
        for _ in range(100):
            fast.decode_records(*LONGER, payload, count, 0, NOW, None)
            fast.decode_columns(ROOM, [(payload, count, 0, NOW, None)], 0, 9, 1, True)
    payload += b"no buffer of it is held"

    assert rows == [Record(0, NOW, None, value, (("a", value),))]


# What callers should not give, and might.
NUMBERS = st.integers(-(2**70), 2**70) | INT64 | st.booleans() | st.just(1.5)
BLOBS = (
    st.none()
    | st.binary(max_size=3)
    | st.sampled_from([bytearray(b"ab"), memoryview(b"abc"), memoryview(b"abcd")[::2], "text", 7])
)
NAMES = st.text(max_size=3) | st.sampled_from(["\ud800", b"bytes", None])
PAIRS = st.tuples(NAMES, BLOBS) | st.tuples(NAMES, BLOBS).map(list) | st.just(("alone",))
HEADERS = st.lists(PAIRS, max_size=2) | st.lists(PAIRS, max_size=2).map(tuple) | st.none()
ROWS = st.tuples(NUMBERS, NUMBERS, BLOBS, BLOBS, HEADERS)
ODD = ROWS | ROWS.map(lambda row: Record(*row)) | ROWS.map(list) | ROWS.map(lambda row: row[:4])


@given(rows=st.lists(ODD, max_size=3), base_offset=NUMBERS, base_timestamp=NUMBERS)
@example(rows=[Record(0, 0, None, None)], base_offset=-(2**63), base_timestamp=-(2**63))
@example(rows=[Record(2**63 - 1, 0, None, None)], base_offset=-1, base_timestamp=0)
@settings(max_examples=400)
def test_odd_objects_are_written_as_the_twin_writes_them(rows, base_offset, base_timestamp):
    wanted = outcome(encode_in_python, rows, base_offset, base_timestamp)

    for given_as in (list, tuple, iter):
        assert outcome(encode_records, given_as(rows), base_offset, base_timestamp) == wanted


def test_every_byte_of_a_payload_can_be_any_other():
    payload = encode_in_python(SAMPLE, 0, NOW)
    short = payload.replace(b"v" * 70, b"v" * 2)  # of another length than it says, too

    for start in (payload, short):
        for position in [*range(12), *range(len(start) - 60, len(start))]:
            for byte in range(256):
                damaged = bytearray(start)
                damaged[position] = byte
                check_decoding(damaged, 3, 0, NOW, None)


def test_every_length_of_a_payload_is_told_from_the_right_one():
    payload = encode_in_python(SAMPLE, 0, NOW)

    for size in range(len(payload)):
        for count in range(5):
            check_decoding(payload[:size], count, 0, NOW, None)
    for count in (-1, 0, 2, 4, 2**31 - 1, 2**63, -(2**63) - 1):
        check_decoding(payload, count, 0, NOW, None)


@given(rows=records(), data=st.data())
@settings(max_examples=200)
def test_damaged_payloads_are_refused_in_the_same_words(rows, data):
    payload = bytearray(encode_in_python(rows, 0, rows[0].timestamp))
    for _ in range(data.draw(st.integers(0, 3))):
        position = data.draw(st.integers(0, len(payload) - 1))
        payload[position : position + data.draw(st.integers(0, 2))] = data.draw(
            st.binary(max_size=2)
        )
        payload += b"\0" * (not payload)
    count = data.draw(st.sampled_from([len(rows), len(rows) + 1, len(rows) - 1, -1]))

    check_decoding(bytes(payload), count, 0, 0, None)


@st.composite
def varints(draw: st.DrawFn, numbers: st.SearchStrategy[int]) -> bytes:
    """A number, sometimes in more bytes than it needs or may have."""
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
    """A length and bytes, mostly as many as it says."""
    content = draw(st.binary(max_size=3) | st.just(b"\xc3\xbc"))
    says = st.sampled_from([len(content)] * 4 + [-1, -2, len(content) + 1, 2**31, -(2**31) - 1])
    return draw(varints(says)) + content


@st.composite
def crooked_records(draw: st.DrawFn) -> bytes:
    """A record that is nearly right."""
    times = st.sampled_from([0, 1, -1, 2**62, 2**63 - 1, -(2**63), 2**63, 2**69])
    deltas = st.sampled_from([0, 1, 200, 2**31 - 1, 2**31, -1])
    headers = draw(st.lists(st.tuples(blobs(), blobs()).map(b"".join), max_size=2))
    announced = st.sampled_from([len(headers)] * 6 + [len(headers) + 1, -1, 2**31])
    parts = [varints(times), varints(deltas), blobs(), blobs(), varints(announced)]
    body = b"\0" + b"".join(draw(part) for part in parts) + b"".join(headers)
    size = st.sampled_from([len(body)] * 8 + [len(body) + 1, len(body) - 1, -1, 2**32])
    return draw(varints(size)) + body


@given(
    parts=st.lists(crooked_records(), min_size=1, max_size=3),
    bases=st.tuples(
        st.sampled_from([0, -5, 2**63 - 2, -(2**63)]),
        st.sampled_from([0, NOW, 2**63 - 1, -(2**63)]),
        st.sampled_from([None, None, NOW, -(2**63)]),
    ),
)
@settings(max_examples=150)
def test_records_that_are_nearly_right_are_judged_alike(parts, bases):
    check_decoding(b"".join(parts), len(parts), *bases)


@given(names=st.lists(st.binary(max_size=5), max_size=3))
@example(names=[b"\xed\xa0\x80", b"\xed\x9f\xbf"])  # the first surrogate, and what is before it
@example(names=[b"\xf4\x90\x80\x80", b"\xf4\x8f\xbf\xbf"])  # behind the last character, and that
@example(names=[b"\xc0\x80", b"\xe0\x80\x80", b"\xf0\x80\x80\x80"])  # longer than need be
@example(names=[b"\xe2\x82", b"\xf0\x9f\x98", b"\xc3"])  # cut off
@settings(max_examples=500)
def test_a_header_key_is_utf8_to_the_one_if_it_is_to_the_other(names):
    for name in names:
        body = b"\0\0\0\x01\x01\x02" + bytes([2 * len(name)]) + name + b"\x01"

        check_decoding(bytes([2 * len(body)]) + body, 1, 0, 0, None)


def test_every_two_bytes_are_utf8_to_both_or_to_neither():
    for number in range(0x8000, 0x10000):
        name = number.to_bytes(2) + b"\x80"
        body = b"\0\0\0\x01\x01\x02\x06" + name + b"\x01"

        read = fast.decode_records(Record, (), (), bytes([2 * len(body)]) + body, 1, 0, 0, None)

        try:
            text = name.decode()
        except UnicodeDecodeError:
            assert read is None
        else:
            assert read[0].headers == ((text, None),)
