"""The compiled module equals pure Python: same results and same errors for any bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.strategies import examples, nearly_valid_records, records
from ottla.client.types import ConsumerRecord
from ottla.protocol.errors import BatchError
from ottla.protocol.records import (
    Record,
    decode_in_python,
    decode_records,
    encode_in_python,
    encode_records,
)

pytestmark = pytest.mark.exhaustive

fast = pytest.importorskip("ottla.protocol._fast", reason="the compiled module was not built")

ALLOCATE = partial(pa.allocate_buffer, resizable=True)
NOW = 1_700_000_000_000
INT64 = st.integers(-(2**63), 2**63 - 1)
#: As the consumer decodes: topic and partition before the fields of Record, leader epoch after.
AS_CONSUMER_RECORD = (ConsumerRecord, ("orders", 3), (9,))
SAMPLE = [
    Record(0, NOW, b"key", b"v" * 70, (("a", b"1"), ("ü€😀", None), ("", b""))),
    Record(1, NOW - 70_000, None, b""),
    Record(70, NOW + 2**40, b"", None),
]


def outcome(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a call, or its exception in a form that can be compared."""
    try:
        return function(*arguments)
    except BatchError as error:
        return BatchError, error.code, str(error)
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        return type(error), str(error)


def in_64_bits(rows: list[Record]) -> bool:
    return all(-(2**63) <= n < 2**63 for row in rows for n in (row.offset, row.timestamp))


def check_decoding(payload: Any, count: int, *bases: Any) -> None:
    """Check that the compiled module declines exactly what pure Python rejects."""
    expected = outcome(decode_in_python, Record, (), (), payload, count, *bases)
    got = fast.decode_records(Record, (), (), payload, count, *bases)
    longer = fast.decode_records(*AS_CONSUMER_RECORD, payload, count, *bases)
    columns = fast.decode_columns(
        ALLOCATE, [(payload, count, *bases)], -(2**63), 2**63 - 1, 1, with_headers=True
    )

    assert outcome(decode_records, payload, count, *bases) == expected
    if isinstance(expected, list) and in_64_bits(expected):
        assert got == expected
        assert [type(row) for row in got] == [Record] * count
        assert longer == decode_in_python(*AS_CONSUMER_RECORD, payload, count, *bases)
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
@examples(100)
def test_both_encode_the_same_bytes_and_decode_them(rows, base_offset, base_timestamp, append_time):
    written = encode_in_python(rows, 0, NOW)

    assert fast.encode_records(Record, rows, 0, NOW) == written
    check_decoding(written, len(rows), base_offset, base_timestamp, append_time)


def test_the_compiled_module_accepts_any_contiguous_buffer():
    written = fast.encode_records(Record, SAMPLE, 0, NOW)
    padded = memoryview(b"\xff" + written + b"\xff")[1:-1]

    for payload in (written, bytearray(written), memoryview(written), padded):
        assert fast.decode_records(Record, (), (), payload, 3, 0, NOW, None) == SAMPLE
        assert fast.decode_columns(ALLOCATE, [(payload, 3, 0, NOW, None)], 0, 9, 1, False)[0] == 2


def test_a_strided_buffer_is_left_to_pure_python():
    written = encode_in_python(SAMPLE, 0, NOW)
    strided = memoryview(
        bytes(byte for pair in zip(written, written, strict=True) for byte in pair)
    )

    assert fast.decode_records(Record, (), (), strided[::2], 3, 0, NOW, None) is None
    assert fast.decode_columns(ALLOCATE, [(strided[::2], 3, 0, NOW, None)], 0, 9, 1, False) is None
    assert decode_records(strided[::2], 3, 0, NOW, None) == SAMPLE


def test_no_reference_is_leaked():
    value = bytes(1000)
    rows = [Record(0, NOW, None, value, (("a", value),))]
    payload = bytearray(encode_records(rows, 0, NOW))

    for count in (1, 2):
        for _ in range(100):
            fast.decode_records(*AS_CONSUMER_RECORD, payload, count, 0, NOW, None)
            fast.decode_columns(ALLOCATE, [(payload, count, 0, NOW, None)], 0, 9, 1, True)
    payload += b"raises BufferError if a view of it is still exported"

    assert rows == [Record(0, NOW, None, value, (("a", value),))]


# Values of wrong types and ranges.
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
@examples(400)
def test_unusual_values_are_encoded_as_pure_python_does(rows, base_offset, base_timestamp):
    expected = outcome(encode_in_python, rows, base_offset, base_timestamp)

    for collection in (list, tuple, iter):
        assert outcome(encode_records, collection(rows), base_offset, base_timestamp) == expected


def test_every_byte_of_a_payload_may_be_corrupt():
    payload = encode_in_python(SAMPLE, 0, NOW)
    short = payload.replace(b"v" * 70, b"v" * 2)  # with a length field that does not match, too

    for start in (payload, short):
        for position in [*range(12), *range(len(start) - 60, len(start))]:
            for byte in range(256):
                corrupt = bytearray(start)
                corrupt[position] = byte
                check_decoding(corrupt, 3, 0, NOW, None)


def test_truncated_payloads_and_wrong_counts_are_rejected():
    payload = encode_in_python(SAMPLE, 0, NOW)

    for size in range(len(payload)):
        for count in range(5):
            check_decoding(payload[:size], count, 0, NOW, None)
    for count in (-1, 0, 2, 4, 2**31 - 1, 2**63, -(2**63) - 1):
        check_decoding(payload, count, 0, NOW, None)


@given(rows=records(), data=st.data())
@examples(200)
def test_corrupt_payloads_raise_the_same_errors(rows, data):
    payload = bytearray(encode_in_python(rows, 0, rows[0].timestamp))
    for _ in range(data.draw(st.integers(0, 3))):
        position = data.draw(st.integers(0, len(payload) - 1))
        payload[position : position + data.draw(st.integers(0, 2))] = data.draw(
            st.binary(max_size=2)
        )
        payload += b"\0" * (not payload)
    count = data.draw(st.sampled_from([len(rows), len(rows) + 1, len(rows) - 1, -1]))

    check_decoding(bytes(payload), count, 0, 0, None)


@given(
    parts=st.lists(nearly_valid_records(), min_size=1, max_size=3),
    bases=st.tuples(
        st.sampled_from([0, -5, 2**63 - 2, -(2**63)]),
        st.sampled_from([0, NOW, 2**63 - 1, -(2**63)]),
        st.sampled_from([None, None, NOW, -(2**63)]),
    ),
)
@examples(150)
def test_nearly_valid_records_have_the_same_outcome(parts, bases):
    check_decoding(b"".join(parts), len(parts), *bases)


@given(names=st.lists(st.binary(max_size=5), max_size=3))
@example(names=[b"\xed\xa0\x80", b"\xed\x9f\xbf"])  # the first surrogate, and before it
@example(names=[b"\xf4\x90\x80\x80", b"\xf4\x8f\xbf\xbf"])  # past the last character, and the last
@example(names=[b"\xc0\x80", b"\xe0\x80\x80", b"\xf0\x80\x80\x80"])  # overlong
@example(names=[b"\xe2\x82", b"\xf0\x9f\x98", b"\xc3"])  # cut off
@examples(500)
def test_utf8_header_keys_have_the_same_outcome(names):
    for name in names:
        body = b"\0\0\0\x01\x01\x02" + bytes([2 * len(name)]) + name + b"\x01"

        check_decoding(bytes([2 * len(body)]) + body, 1, 0, 0, None)


def test_every_two_byte_prefix_is_utf8_to_both_or_to_neither():
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
