"""Validation of produced records: what is rejected, and what the result says."""

import cramjam
import pytest

from harness.raw_batches import raw_batch
from ottla.protocol import compiled
from ottla.protocol.batch import Record, RecordBatch, build_batch
from ottla.protocol.compression import Compression, compress
from ottla.protocol.errors import BatchError, ErrorCode
from ottla.protocol.records import _varint, encode_records
from ottla.protocol.validation import ValidatedRecords, validate_batch, validate_records

NOW = 1_700_000_000_000
ANY_TIME = (-(2**63), 2**63 - 1)


@pytest.fixture(autouse=True, params=["compiled", "pure Python"])
def implementation(request, monkeypatch):
    if request.param == "pure Python":
        monkeypatch.setattr(compiled, "fast", None)
    elif compiled.fast is None:
        pytest.skip("the compiled module was not built")


def validated(payload, count=1, base_timestamp=NOW, timestamps=ANY_TIME, keys=False, listed=100):
    return validate_records(payload, count, base_timestamp, timestamps, keys, listed)


def reason(payload, count=1):
    """Return why records are rejected."""
    with pytest.raises(BatchError) as caught:
        validated(payload, count)
    assert caught.value.code == ErrorCode.INVALID_RECORD
    return caught.value.reason


def a_record(  # The fields of a record.
    timestamp_delta=0, offset_delta=0, key=b"\x01", value=b"\x02v", headers=b"\0", attributes=b"\0"
):
    """Return an encoded record; key, value and headers are raw bytes, with their lengths."""
    deltas = _varint(timestamp_delta) + _varint(offset_delta)
    body = attributes + deltas + key + value + headers
    return _varint(len(body)) + body


def test_the_result_has_the_largest_timestamp_and_its_first_record():
    rows = [Record(n, NOW + time, b"k", b"v") for n, time in enumerate((5, 9, -3, 9))]

    assert validated(encode_records(rows, 0, NOW), 4) == ValidatedRecords(NOW + 9, 1, 0, [], [])


def test_records_without_a_timestamp_have_no_largest_timestamp():
    # As librdkafka sends them: base and max timestamp 0, and a delta of -1.
    payload = a_record(-1) + a_record(-1, 1)

    assert validated(payload, 2, 0, (0, NOW)) == ValidatedRecords(-1, -1, 0, [], [])


def test_every_record_without_a_key_is_listed_where_keys_are_required():
    rows = [Record(n, NOW, None if n in (0, 2, 5) else b"", b"v") for n in range(6)]
    payload = encode_records(rows, 0, NOW)

    assert validated(payload, 6, keys=True).without_key == [0, 2, 5]
    assert validated(payload, 6).without_key == []


def test_timestamps_out_of_range_are_listed():
    rows = [Record(n, NOW + n * 10, None if n == 4 else b"k", b"v") for n in range(5)]
    payload = encode_records(rows, 0, NOW)

    result = validated(payload, 5, timestamps=(NOW + 10, NOW + 20), keys=True)

    assert result.out_of_range == [0, 3]
    assert result.without_key == [4]  # A record is listed once.
    assert result.invalid_count == 3


@pytest.mark.parametrize(
    ("base", "delta"), [(NOW, 2**63 - 1), (2**63 - 1, 1), (-(2**63), -1), (-(2**63), -(2**63))]
)
def test_a_timestamp_beyond_64_bits_is_out_of_range(base, delta):
    result = validated(a_record(delta), base_timestamp=base)

    assert result.out_of_range == [0]
    assert result.max_timestamp == -1


def test_timestamps_that_the_broker_replaces_are_ignored():
    assert validated(a_record(2**63 - 1), timestamps=None) == ValidatedRecords(-1, -1, 0, [], [])


def test_the_list_of_invalid_records_is_limited():
    payload = encode_records([Record(n, NOW, None, b"v") for n in range(50)], 0, NOW)

    result = validated(payload, 50, keys=True, listed=7)

    assert result.without_key == list(range(7))
    assert result.invalid_count == 50


def test_unused_attributes_and_binary_header_keys_are_accepted():
    assert validated(a_record(attributes=b"\x07")).invalid_count == 0
    assert validated(a_record(headers=b"\x02\x02\xff\x01")).invalid_count == 0


MALFORMED = {
    "garbage": (b"garbage! garbage!", "record 0: invalid length"),
    "no records": (b"", "the records cannot be as many as the header declares"),
    "bytes after the records": (a_record() + b"xx", "bytes after the last record, 1"),
    "length 0": (b"\0" * 7, "record 0: invalid length"),
    "negative length": (b"\x01" * 7, "record 0: invalid length"),
    "length beyond the batch": (b"\x7e" + bytes(10), "record 0: invalid length"),
    "length of six bytes": (b"\x80" * 5 + b"\x01\0", "record 0: invalid length"),
    "cut in the timestamp": (b"\x04\0\x80" + bytes(9), "record 0: invalid timestamp delta"),
    "first offset delta 1": (a_record(0, 1), "record 0: offset deltas must count from 0"),
    "negative offset delta": (a_record(0, -1), "record 0: offset deltas must count from 0"),
    "key length -2": (a_record(key=b"\x03"), "record 0: invalid key length"),
    "key beyond the record": (a_record(key=b"\x7e"), "record 0: invalid key length"),
    "value beyond the record": (a_record(value=b"\x7e"), "record 0: invalid value length"),
    "header count -1": (a_record(headers=b"\x01"), "record 0: invalid header count"),
    "header count too large": (a_record(headers=b"\x7e"), "record 0: invalid header count"),
    "header key null": (a_record(headers=b"\x02\x01\x01"), "record 0: invalid header"),
    "header value -2": (a_record(headers=b"\x02\x02a\x03"), "record 0: invalid header"),
    "longer than its fields": (
        a_record(headers=b"\0\0"),
        "record 0: the length does not match the fields",
    ),
}


@pytest.mark.parametrize(("payload", "expected"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_records_are_rejected(payload, expected):
    assert reason(payload) == expected


@pytest.mark.parametrize("deltas", [(0, 0), (0, 5), (1, 0)])
def test_offset_deltas_must_count_from_0(deltas):
    payload = b"".join(a_record(0, delta) for delta in deltas)

    assert "offset deltas must count from 0" in reason(payload, 2)


@pytest.mark.parametrize("count", [1, 3])
def test_the_record_count_must_be_that_of_the_header(count):
    assert reason(a_record() + a_record(0, 1), count)


def a_compressed_batch(codec, payload, count=2):
    """Return a batch with a payload that is already compressed."""
    built = build_batch([Record(n, NOW, b"k", b"v") for n in range(count)], compression=codec)
    return RecordBatch(built[:8] + (49 + len(payload)).to_bytes(4) + built[12:61] + payload)


@pytest.mark.parametrize("codec", list(Compression)[1:], ids=lambda codec: codec.name)
def test_compressed_records_are_validated_after_decompression(codec):
    payload = a_record() + a_record(7, 1)
    whole = bytes(compress(codec, payload))

    assert validate_batch(a_compressed_batch(codec, whole), ANY_TIME).max_timestamp == NOW + 7
    for invalid in (
        b"garbage! garbage!",
        whole[:-3],
        bytes(compress(codec, b"garbage! garbage!")),
        bytes(compress(codec, payload + b"xx")),
        bytes(compress(codec, a_record())),
    ):
        with pytest.raises(BatchError) as caught:
            validate_batch(a_compressed_batch(codec, invalid), ANY_TIME)
        assert caught.value.code == ErrorCode.INVALID_RECORD


def test_decompression_is_limited():
    payload = a_record() + a_record(0, 1, value=_varint(50_000) + bytes(50_000))
    batch = a_compressed_batch(Compression.ZSTD, bytes(compress(Compression.ZSTD, payload)))

    assert validate_batch(batch, ANY_TIME, max_bytes=60_000).invalid_count == 0
    with pytest.raises(BatchError, match="at most 40000 bytes"):
        validate_batch(batch, ANY_TIME, max_bytes=40_000)


def lz4_frame(data, **options):
    codec = cramjam.lz4.Compressor(0, **{"block_linked": False, **options})
    codec.compress(data)
    return bytes(memoryview(codec.finish()))


FIRST, SECOND = a_record(), a_record(0, 1)


@pytest.mark.parametrize("options", [{}, {"content_checksum": True}, {"content_checksum": False}])
def test_one_lz4_frame_is_accepted(options):
    payload = lz4_frame(FIRST + a_record(0, 1, value=_varint(200_000) + bytes(200_000)))
    batch = RecordBatch(raw_batch(payload, 2, codec=Compression.LZ4))
    assert validate_batch(batch, ANY_TIME).max_timestamp == NOW
    batch = RecordBatch(raw_batch(lz4_frame(FIRST, **options), codec=Compression.LZ4))
    assert validate_batch(batch, ANY_TIME).max_timestamp == NOW


@pytest.mark.parametrize(
    ("payload", "count"),
    [
        pytest.param(lz4_frame(FIRST) + lz4_frame(SECOND), 2, id="two frames"),
        pytest.param(lz4_frame(FIRST) + lz4_frame(b""), 1, id="an empty frame behind"),
        pytest.param(lz4_frame(FIRST, block_linked=True), 1, id="linked blocks"),
        pytest.param(lz4_frame(FIRST)[:-4], 1, id="no end mark"),
        pytest.param(b"\x50\x2a\x4d\x18\4\0\0\0skip" + lz4_frame(FIRST), 1, id="skippable frame"),
    ],
)
def test_lz4_that_java_or_librdkafka_cannot_read_is_rejected(payload, count):
    with pytest.raises(BatchError) as caught:
        validate_batch(RecordBatch(raw_batch(payload, count, codec=Compression.LZ4)), ANY_TIME)
    assert caught.value.code == ErrorCode.INVALID_RECORD
