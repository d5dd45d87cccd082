"""Record validation: the compiled module equals pure Python, and both agree with the decoder."""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.strategies import examples, nearly_valid_records, records
from ottla.protocol.batch import RecordBatch, build_batch
from ottla.protocol.compression import Compression
from ottla.protocol.errors import BatchError, ErrorCode
from ottla.protocol.records import Record, decode_in_python, encode_in_python
from ottla.protocol.timestamps import find_in_python
from ottla.protocol.validation import (
    INT64_MAX,
    INT64_MIN,
    ValidatedRecords,
    validate_batch,
    validate_in_python,
)

fast = pytest.importorskip("ottla.protocol._fast", reason="the compiled module was not built")

NOW = 1_700_000_000_000
INT64 = st.integers(INT64_MIN, INT64_MAX)
RANGES = (
    st.none() | st.just((INT64_MIN, INT64_MAX)) | st.just((NOW, NOW + 10)) | st.tuples(INT64, INT64)
)


def outcome(*arguments: Any) -> Any:
    """Return the result of pure Python, or the reason that it gives for an error."""
    try:
        return validate_in_python(*arguments)
    except BatchError as error:
        assert error.code == ErrorCode.INVALID_RECORD
        return error.reason


def compiled_outcome(*arguments: Any) -> Any:
    """Return the same of the compiled module."""
    from ottla.protocol.validation import _REASONS, Part  # noqa: PLC0415

    result = fast.validate_records(*arguments)
    assert result is not None
    if len(result) == 2:
        return _REASONS[Part(result[0])].format(result[1])
    return ValidatedRecords._make(result)


def is_decodable(payload: bytes, count: int) -> bool:
    """Whether consumers can decode the records, and their offsets count from 0."""
    try:
        decoded = decode_in_python(Record, (), (), payload, count, 0, 0, None)
    except BatchError as error:
        return "not UTF-8" in str(error)
    return [record.offset for record in decoded] == list(range(count))


def check(payload: bytes, count: int, base_timestamp: int, timestamps: Any, keys: bool) -> Any:
    arguments = (payload, count, base_timestamp, timestamps, keys, 3)

    result = outcome(*arguments)

    assert compiled_outcome(*arguments) == result
    if isinstance(result, ValidatedRecords):
        assert is_decodable(payload, count)
    elif "header" not in result:  # A later header may be malformed where an earlier is not UTF-8.
        assert not is_decodable(payload, count)
    return result


@given(rows=records(min_size=0), base_timestamp=INT64, timestamps=RANGES, keys=st.booleans())
def test_valid_records_have_the_same_result(rows, base_timestamp, timestamps, keys):
    rows = [row._replace(offset=index) for index, row in enumerate(rows)]
    payload = encode_in_python(rows, 0, rows[0].timestamp if rows else 0)

    result = check(payload, len(rows), base_timestamp, timestamps, keys)

    assert isinstance(result, ValidatedRecords)


@given(rows=records(), timestamps=RANGES, keys=st.booleans(), data=st.data())
@examples(300)
def test_mutated_records_have_the_same_outcome(rows, timestamps, keys, data):
    rows = [row._replace(offset=index) for index, row in enumerate(rows)]
    payload = bytearray(encode_in_python(rows, 0, rows[0].timestamp))
    for _ in range(data.draw(st.integers(0, 3))):
        position = data.draw(st.integers(0, len(payload)))
        payload[position : position + data.draw(st.integers(0, 2))] = data.draw(
            st.binary(max_size=2)
        )
    count = data.draw(st.sampled_from([len(rows), len(rows) + 1, len(rows) - 1, -1]))

    check(bytes(payload), count, rows[0].timestamp, timestamps, keys)


@given(
    parts=st.lists(nearly_valid_records(), min_size=1, max_size=3),
    base_timestamp=st.sampled_from([0, NOW, -1, INT64_MAX, INT64_MIN]),
    timestamps=RANGES,
    keys=st.booleans(),
)
@example(parts=[b"\x0c\0\0\0\x01\x01\0"], base_timestamp=-1, timestamps=(5, 6), keys=False)
@example(parts=[b"\x0e\0\x02\0\x81\0\x01\0"], base_timestamp=0, timestamps=None, keys=True)
@examples(300)
def test_nearly_valid_records_have_the_same_outcome(parts, base_timestamp, timestamps, keys):
    check(b"".join(parts), len(parts), base_timestamp, timestamps, keys)


@given(payload=st.binary(max_size=40), count=st.integers(-1, 6), base_timestamp=INT64)
@examples(300)
def test_arbitrary_bytes_have_the_same_outcome(payload, count, base_timestamp):
    check(payload, count, base_timestamp, (INT64_MIN, INT64_MAX), keys=True)


def test_every_byte_of_a_record_may_have_every_value():
    row = Record(0, NOW, b"k", b"v" * 3, (("a", b"1"), ("b", None)))
    payload = encode_in_python([row, row._replace(offset=1, key=None)], 0, NOW)

    for position in range(len(payload)):
        for byte in range(256):
            mutated = payload[:position] + bytes([byte]) + payload[position + 1 :]
            check(mutated, 2, NOW, (NOW, NOW + 5), keys=True)
    for size in range(len(payload)):
        check(payload[:size], 2, NOW, None, keys=False)


@pytest.mark.parametrize("codec", list(Compression), ids=lambda codec: codec.name)
@given(rows=records(), data=st.data())
@examples(40)
def test_a_mutated_batch_is_rejected_or_can_be_read_by_consumers(codec, rows, data):
    rows = [row._replace(offset=index) for index, row in enumerate(rows)]
    built = build_batch(rows, compression=codec)
    for _ in range(data.draw(st.integers(0, 2))):
        built[data.draw(st.integers(61, len(built) - 1))] = data.draw(st.integers(0, 255))
    struct.pack_into(">i", built, 8, len(built) - 12)
    batch = RecordBatch(built)

    try:
        result = validate_batch(batch, (INT64_MIN, INT64_MAX), max_bytes=1 << 20)
    except BatchError as error:
        assert error.code == ErrorCode.INVALID_RECORD
    else:
        try:
            read = batch.records()
        except BatchError as error:
            assert "not UTF-8" in str(error)  # One of two valid outcomes.
        else:
            stamps = [record.timestamp for record in read]
            in_range = [stamp for stamp in stamps if INT64_MIN <= stamp <= INT64_MAX]
            assert result.max_timestamp == max([-1, *in_range])
            assert result.invalid_count == len(stamps) - len(in_range)


def test_large_payloads_without_the_gil_have_the_same_result():
    rows = [
        Record(index, NOW + index % 7, None if index % 3 else b"k", bytes(90))
        for index in range(1000)
    ]
    payload = encode_in_python(rows, 0, NOW)
    assert len(payload) > 64 * 1024

    result = outcome(payload, 1000, NOW, (NOW, NOW + 5), True, 100)

    assert compiled_outcome(payload, 1000, NOW, (NOW, NOW + 5), True, 100) == result
    assert result.max_timestamp == NOW + 6
    assert result.max_timestamp_delta == 6
    assert result.invalid_count == 666 + 48
    assert len(result.without_key) + len(result.out_of_range) == 100
    assert result.without_key[:3] == [1, 2, 4]
    assert result.out_of_range[:1] == [6]


@given(
    parts=st.lists(nearly_valid_records(), max_size=4),
    base_timestamp=st.sampled_from([0, NOW, -1, INT64_MAX, INT64_MIN]),
    timestamp=st.sampled_from([0, 1, -1, NOW + 1, INT64_MAX, INT64_MIN]),
    first_delta=st.sampled_from([0, 1, 200, 2**31]),
)
@examples(300)
def test_the_first_record_at_a_timestamp_is_the_same(parts, base_timestamp, timestamp, first_delta):
    payload = b"".join(parts)
    arguments = (payload, len(parts), base_timestamp, timestamp, first_delta)

    try:
        expected = find_in_python(*arguments)
    except BatchError:
        assert fast.find_timestamp(*arguments) == (0,)
    else:
        assert fast.find_timestamp(*arguments) == (expected or ())
        if is_decodable(payload, len(parts)):
            with suppress(BatchError):  # A header key that is not UTF-8.
                decoded = decode_in_python(
                    Record, (), (), payload, len(parts), 0, base_timestamp, None
                )
                assert expected == next(
                    (
                        (record.offset, record.timestamp)
                        for record in decoded
                        if timestamp <= record.timestamp <= INT64_MAX
                        and record.timestamp >= INT64_MIN
                        and record.offset >= first_delta
                    ),
                    None,
                )


def test_the_buffer_is_released_after_success_and_after_an_error():
    payload = bytearray(encode_in_python([Record(0, NOW, None, b"v")], 0, NOW))

    for count in (0, 1, 2):
        for keys in (True, False):
            fast.validate_records(payload, count, NOW, (0, 1), keys, 5)
    payload += b"raises BufferError if a view of it is still exported"
