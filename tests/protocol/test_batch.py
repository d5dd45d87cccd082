"""Record batches: the header as a view, validation, records, compression."""

import struct

import pytest

from ottla.protocol.batch import HEADER_BYTES, Record, RecordBatch, build_batch, split_batches
from ottla.protocol.compression import Compression
from ottla.protocol.errors import BatchError, ErrorCode
from ottla.protocol.records import decode_records, encode_records

NOW = 1_700_000_000_000
RECORDS = [
    Record(0, NOW, b"k", b"hello", (("h", b"1"),)),
    Record(1, NOW + 5, None, b"", (("a", None), ("ü", b"\x00" * 70))),
    Record(2, NOW - 5, b"", None),
]

# One idempotent record of librdkafka 2.16, and a commit marker.
PRODUCED = bytes.fromhex(
    "0000000000000000000000420000000002" + "3abf352b" + "0000000000000000018bcfe568000000018bcfe5"
    "680000000000000003e90000000000000000000120000000026b0a68656c6c6f0202680231"
)
MARKER = bytes.fromhex(
    "0000000000000000000000420000000002" + "a1ac499f" + "0030000000000000018bcfe568000000018bcfe5"
    "680000000000000003e80000ffffffff00000001200000000800000001" + "0c00000000000000"
)


def test_a_batch_of_librdkafka_is_decoded():
    batch = RecordBatch(PRODUCED)
    batch.validate_produced()

    assert (batch.size, batch.record_count, batch.last_offset) == (78, 1, 0)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (1001, 0, 0)
    assert (batch.base_timestamp, batch.max_timestamp) == (NOW, NOW)
    assert batch.compression is Compression.NONE
    assert not batch.is_transactional
    assert batch.records() == [Record(0, NOW, b"k", b"hello", (("h", b"1"),))]


def test_the_same_record_encodes_to_the_bytes_of_librdkafka():
    record = Record(0, NOW, b"k", b"hello", (("h", b"1"),))

    batch = build_batch(
        [record], leader_epoch=0, producer_id=1001, producer_epoch=0, base_sequence=0
    )

    assert batch == PRODUCED


def test_a_control_batch_is_valid_but_rejected_from_producers():
    marker = RecordBatch(MARKER)
    marker.validate()

    assert marker.is_control
    assert marker.is_transactional
    assert marker.last_sequence == -1
    (record,) = marker.records()
    assert struct.unpack(">hh", record.key) == (0, 1)
    with pytest.raises(BatchError) as caught:
        marker.validate_produced()
    assert caught.value.code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("compression", Compression)
def test_records_round_trip_through_every_codec(compression):
    batch = RecordBatch(build_batch(RECORDS, compression=compression))
    batch.validate_produced()

    assert batch.compression is compression
    assert batch.records() == RECORDS
    assert (batch.base_timestamp, batch.max_timestamp) == (NOW, NOW + 5)


def test_assign_writes_offset_and_epoch_in_place_and_keeps_the_crc():
    wire = build_batch(RECORDS)
    batch = RecordBatch(wire)

    batch.assign(5_000_000_000, leader_epoch=7)

    again = RecordBatch(wire)
    again.validate()
    assert (again.base_offset, again.partition_leader_epoch) == (5_000_000_000, 7)
    assert (again.last_offset, again.next_offset) == (5_000_000_002, 5_000_000_003)
    assert again.crc == batch.crc
    assert [record.offset for record in again.records()] == [5_000_000_000 + n for n in range(3)]


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
def test_append_time_applies_to_every_record(compression):
    wire = build_batch(RECORDS, compression=compression)

    RecordBatch(wire).stamp_append_time(NOW + 999)

    again = RecordBatch(wire)
    again.validate()
    assert again.has_append_time
    assert again.max_timestamp == NOW + 999
    assert again.base_timestamp == NOW
    assert {record.timestamp for record in again.records()} == {NOW + 999}
    assert again.compression is compression


def test_a_batch_is_a_view_and_a_read_only_one_cannot_be_assigned():
    wire = build_batch(RECORDS)

    assert RecordBatch(wire).view.obj is wire
    with pytest.raises(TypeError):
        RecordBatch(bytes(wire)).assign(1, 1)


def test_consecutive_batches_are_split_and_an_incomplete_last_one_is_skipped():
    first, second = build_batch(RECORDS), build_batch(RECORDS[:1])
    wire = bytes(first + second)

    assert [batch.size for batch in split_batches(wire)] == [len(first), len(second)]
    for cut in range(1, len(second) + 1):
        assert [batch.size for batch in split_batches(wire[:-cut])] == [len(first)]
    assert list(split_batches(b"")) == []


def test_a_compacted_batch_keeps_its_offset_span():
    kept = [Record(12, NOW, b"k", b"v"), Record(17, NOW, b"l", b"v")]

    batch = RecordBatch(build_batch(kept, base_offset=10, last_offset=19))
    batch.validate()
    emptied = RecordBatch(build_batch([], base_offset=10, last_offset=19))
    emptied.validate()

    assert (batch.base_offset, batch.last_offset, batch.records()) == (10, 19, kept)
    assert (emptied.next_offset, emptied.records()) == (20, [])
    with pytest.raises(BatchError):
        batch.validate_produced()


def test_a_delete_horizon_replaces_only_the_base_timestamp():
    records = [Record(0, NOW, b"k", None), Record(1, NOW - 5, b"l", b"v")]

    batch = RecordBatch(build_batch(records, delete_horizon=NOW + 86_400_000))
    batch.validate()

    assert batch.has_delete_horizon
    assert (batch.base_timestamp, batch.max_timestamp) == (NOW + 86_400_000, NOW)
    assert batch.records() == records
    assert not RecordBatch(build_batch(records)).has_delete_horizon


def test_a_batch_without_records_keeps_its_max_timestamp():
    batch = RecordBatch(build_batch([], base_offset=3, last_offset=5, max_timestamp=NOW))
    batch.validate()

    assert (batch.base_timestamp, batch.max_timestamp) == (NOW, NOW)


def test_sequence_numbers_wrap_around_to_zero():
    batch = RecordBatch(
        build_batch(RECORDS, producer_id=1, producer_epoch=0, base_sequence=2**31 - 2)
    )

    assert batch.last_sequence == 0


def rewritten(at: int, code: str, value: int, *, crc: bool = True) -> bytearray:
    wire = build_batch(RECORDS)
    struct.pack_into(code, wire, at, value)
    if crc:
        whole = RecordBatch(wire)
        time, attributes = whole.max_timestamp, whole.attributes
        whole.stamp_append_time(time)
        struct.pack_into(">h", wire, 21, attributes)
        from crc32c import crc32c  # noqa: PLC0415

        struct.pack_into(">I", wire, 17, crc32c(wire[21:]))
    return wire


@pytest.mark.parametrize(
    ("wire", "code", "reason"),
    [
        (rewritten(16, ">b", 0, crc=False), ErrorCode.INVALID_RECORD, "magic 0"),
        (rewritten(16, ">b", 1, crc=False), ErrorCode.INVALID_RECORD, "magic 1"),
        (rewritten(16, ">b", 3, crc=False), ErrorCode.INVALID_RECORD, "magic 3"),
        (rewritten(8, ">i", -1, crc=False), ErrorCode.CORRUPT_MESSAGE, "batch length -1"),
        (rewritten(8, ">i", 48, crc=False), ErrorCode.CORRUPT_MESSAGE, "batch length 48"),
        (rewritten(8, ">i", 2**31 - 1, crc=False), ErrorCode.CORRUPT_MESSAGE, "batch length"),
        (rewritten(30, ">b", 1, crc=False), ErrorCode.CORRUPT_MESSAGE, "CRC"),
        (rewritten(21, ">h", 5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "codec 5"),
        (rewritten(21, ">h", 0x20), ErrorCode.INVALID_RECORD, "control"),
        (rewritten(21, ">h", 0x40), ErrorCode.INVALID_RECORD, "attributes 0x40"),
        (rewritten(57, ">i", -1), ErrorCode.INVALID_RECORD, "record count -1 "),
        (rewritten(57, ">i", 0), ErrorCode.INVALID_RECORD, "record count 0 "),
        (rewritten(57, ">i", 4), ErrorCode.INVALID_RECORD, "record count 4 "),
        (rewritten(23, ">i", 5), ErrorCode.INVALID_RECORD, "last offset delta 5"),
        (rewritten(23, ">i", -1), ErrorCode.INVALID_RECORD, "last offset delta -1"),
        (rewritten(43, ">q", 7), ErrorCode.INVALID_RECORD, "producer id 7"),
        (b"", ErrorCode.CORRUPT_MESSAGE, "0 bytes"),
        (PRODUCED[:60], ErrorCode.CORRUPT_MESSAGE, "60 bytes"),
        (PRODUCED[:77], ErrorCode.CORRUPT_MESSAGE, "batch length 66"),
    ],
)
def test_an_invalid_batch_raises_the_error_code_of_the_response(wire, code, reason):
    with pytest.raises(BatchError, match=reason) as caught:
        RecordBatch(wire).validate_produced()

    assert caught.value.code is code


def test_the_crc_detects_every_flipped_bit():
    for position in range(17, len(PRODUCED)):
        for bit in range(8):
            wire = bytearray(PRODUCED)
            wire[position] ^= 1 << bit
            with pytest.raises(BatchError, match="CRC"):
                RecordBatch(wire).validate()


@pytest.mark.parametrize(
    ("payload", "count"),
    [
        ("0c00000001010000", 1),  # a trailing byte
        ("0c000000010100", 2),  # two records, but only one in the payload
        ("0e000000010100", 1),  # a record longer than the payload
        ("0a000000010100", 1),  # a record longer than its length field
        ("0b000000010100", 1),  # a negative record length
        ("0c000001010100", 1),  # a negative offset delta
        ("0c000000030100", 1),  # key length -2
        ("0c000000010300", 1),  # value length -2
        ("0c0000007e0100", 1),  # a key longer than the payload
        ("0c000000010102", 1),  # a missing header
        ("0c000000010101", 1),  # header count -1
        ("100000000101020101", 1),  # a header with a null key
        ("120000000101020203ff", 1),
        ("12000000010102 02ff 01".replace(" ", ""), 1),  # a header key that is not UTF-8
        ("ffffffffff7f", 1),  # a varint that is too long
        ("1800ffffffffffffffffff7f000101", 1),  # a timestamp of more than 64 bits
        ("", 1),
        ("0c000000010100", -1),
        ("0c000000010100", 2**31 - 1),
    ],
)
def test_invalid_records_are_rejected(payload, count):
    with pytest.raises(BatchError) as caught:
        decode_records(bytes.fromhex(payload), count, 0, 0, None)

    assert caught.value.code is ErrorCode.INVALID_RECORD


def test_timestamp_and_offset_deltas_may_be_large():
    records = [
        Record(0, 0, None, None),
        Record(2**31 - 1, 2**62, None, None),
        Record(2**31 - 1, -(2**62), None, None),
    ]

    assert decode_records(encode_records(records, 0, 0), 3, 0, 0, None) == records


def test_a_decompression_bomb_is_an_error():
    bomb = [Record(0, NOW, None, bytes(8 * 1024 * 1024))]
    for compression in (Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD):
        batch = RecordBatch(build_batch(bomb, compression=compression))

        with pytest.raises(BatchError, match="1048576") as caught:
            batch.records(max_bytes=1024 * 1024)

        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
        assert batch.records()[0].value == bomb[0].value


def test_header_bytes_is_the_size_of_a_batch_without_records():
    assert len(build_batch([], base_offset=0, last_offset=0)) == HEADER_BYTES
