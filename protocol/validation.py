"""Validate the records of a produced batch, without building an object per record.

What a consumer has to be able to read must be right: a batch that cannot be decoded blocks every
consumer of its partition. The rules are those of Apache Kafka's LogValidator, and stricter where
Kafka accepts what some consumers cannot read:

- the payload decompresses, within a limit, to exactly as many records as the header declares;
- every length lies within its record, and every record ends where its length says;
- offset deltas count from 0 without a gap (Kafka does not check this in uncompressed batches);
- numbers fit their type, and only -1 is a null length (Kafka takes any negative length for null).

Header keys need not be UTF-8, as in Kafka. Records without a key, where keys are required, and
records with a timestamp outside the permitted range are well-formed; the result lists them, because
the response to the producer names each of them.

The compiled module does the work if it is available, without the GIL for large payloads.
`validate_in_python` defines the result.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from . import compiled
from .batch import HEADER_BYTES, MAX_DECOMPRESSED_BYTES, RecordBatch
from .compression import Compression, DecompressionError, check_lz4_frame
from .errors import BatchError, ErrorCode
from .records import MIN_RECORD_BYTES, Buffer

#: Records that a result lists at most: one response cannot name millions.
MAX_LISTED_RECORDS = 10_000

INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)
_NO_TIMESTAMP = -1
_MIN_HEADER_BYTES = 2


class ValidatedRecords(NamedTuple):
    """The records of a batch are well-formed; what else there is to know about them."""

    #: The largest timestamp and the offset delta of the first record that has it; -1 if no record
    #: has a timestamp, or timestamps were not validated.
    max_timestamp: int
    max_timestamp_delta: int
    #: How many records violate the rules of the topic, and the first of them by their index.
    invalid_count: int
    without_key: list[int]
    out_of_range: list[int]


# Like ValidatedRecords._make, at half the cost: every produced batch has one.
_new_tuple = tuple.__new__


class DecompressionFailedError(BatchError):
    """The records cannot be decompressed: they are corrupt, or larger than the limit."""


class Part(IntEnum):
    """The part of a payload that is malformed; the compiled module has the same numbers."""

    RECORD_COUNT = 1
    RECORD_LENGTH = 2
    TIMESTAMP_DELTA = 3
    OFFSET_DELTA = 4
    KEY = 5
    VALUE = 6
    HEADER_COUNT = 7
    HEADER = 8
    RECORD_END = 9
    PAYLOAD_END = 10


_REASONS = {
    Part.RECORD_COUNT: "the records cannot be as many as the header declares",
    Part.RECORD_LENGTH: "record {}: invalid length",
    Part.TIMESTAMP_DELTA: "record {}: invalid timestamp delta",
    Part.OFFSET_DELTA: "record {}: offset deltas must count from 0",
    Part.KEY: "record {}: invalid key length",
    Part.VALUE: "record {}: invalid value length",
    Part.HEADER_COUNT: "record {}: invalid header count",
    Part.HEADER: "record {}: invalid header",
    Part.RECORD_END: "record {}: the length does not match the fields",
    Part.PAYLOAD_END: "bytes after the last record, {}",
}


def validate_batch(
    batch: RecordBatch,
    timestamps: tuple[int, int] | None,
    *,
    requires_keys: bool = False,
    max_bytes: int = MAX_DECOMPRESSED_BYTES,
    max_listed: int = MAX_LISTED_RECORDS,
) -> ValidatedRecords:
    """Validate the records of a batch, decompressed to at most `max_bytes`. Raises BatchError.

    `timestamps` are the earliest and the latest permitted; None if the broker replaces them. The
    header must be valid already; see `RecordBatch.validate_produced`.
    """
    payload = _decompress(batch, max_bytes) if batch.is_compressed else batch.view[HEADER_BYTES:]
    count, base_timestamp = batch.record_count, batch.base_timestamp
    return validate_records(payload, count, base_timestamp, timestamps, requires_keys, max_listed)


def _decompress(batch: RecordBatch, max_bytes: int) -> Buffer:
    """Return the records of a compressed batch. Raises DecompressionFailedError."""
    try:
        if batch.compression is Compression.LZ4:
            try:
                check_lz4_frame(batch.view[HEADER_BYTES:])
            except DecompressionError as error:
                raise BatchError(str(error), ErrorCode.INVALID_RECORD) from error
        return batch.payload(max_bytes)
    except BatchError as error:
        # The CRC matches, so that is what the producer sent: it need not try again.
        raise DecompressionFailedError(error.reason, ErrorCode.INVALID_RECORD) from error


def validate_records(
    payload: Buffer,
    count: int,
    base_timestamp: int,
    timestamps: tuple[int, int] | None,
    requires_keys: bool,
    max_listed: int,
) -> ValidatedRecords:
    """Validate the `count` records that a payload must consist of. Raises BatchError."""
    fast = compiled.fast
    if fast is not None:
        result = fast.validate_records(
            payload, count, base_timestamp, timestamps, requires_keys, max_listed
        )
        if result is not None:
            if len(result) == 2:
                raise _malformed(Part(result[0]), result[1])
            return _new_tuple(ValidatedRecords, result)
    return validate_in_python(payload, count, base_timestamp, timestamps, requires_keys, max_listed)


def validate_in_python(
    payload: Buffer,
    count: int,
    base_timestamp: int,
    timestamps: tuple[int, int] | None,
    requires_keys: bool,
    max_listed: int,
) -> ValidatedRecords:
    """Validate as `validate_records` does, in pure Python."""
    data = payload if isinstance(payload, bytes) else bytes(payload)
    end = len(data)
    if not 0 <= count <= end // MIN_RECORD_BYTES:
        raise _malformed(Part.RECORD_COUNT, 0)
    max_timestamp = max_timestamp_delta = _NO_TIMESTAMP
    invalid_count = p = 0
    without_key: list[int] = []
    out_of_range: list[int] = []
    for index in range(count):
        delta, has_key, p = _read_record(data, p, end, index)
        timestamp = base_timestamp + delta
        is_representable = INT64_MIN <= timestamp <= INT64_MAX
        if timestamps is not None and is_representable and timestamp > max_timestamp:
            max_timestamp, max_timestamp_delta = timestamp, index
        violations = None
        if requires_keys and not has_key:
            violations = without_key
        elif timestamps is not None and timestamp != _NO_TIMESTAMP:
            earliest, latest = timestamps
            if not (is_representable and earliest <= timestamp <= latest):
                violations = out_of_range
        if violations is not None:
            invalid_count += 1
            if invalid_count <= max_listed:
                violations.append(index)
    if p != end:
        raise _malformed(Part.PAYLOAD_END, count)
    return ValidatedRecords(
        max_timestamp, max_timestamp_delta, invalid_count, without_key, out_of_range
    )


class _InvalidPartError(Exception):
    """A number or a length is invalid."""


def _read_record(data: bytes, p: int, end: int, index: int) -> tuple[int, bool, int]:
    """Return the timestamp delta, whether there is a key, and the position after a record."""
    part = Part.RECORD_LENGTH
    try:
        length, p = _read_length(data, p, end)
        if length == 0:
            raise _InvalidPartError
        stop = p + length
        part = Part.TIMESTAMP_DELTA
        number, p = _read_varint(data, p + 1, stop, 64)  # Skips the attributes, all unused.
        timestamp_delta = (number >> 1) ^ -(number & 1)
        part = Part.OFFSET_DELTA
        number, p = _read_varint(data, p, stop, 32)
        if number != 2 * index:
            raise _InvalidPartError
        part = Part.KEY
        has_key = data[p : p + 1] != b"\x01"
        p = _skip_nullable(data, p, stop)
        part = Part.VALUE
        p = _skip_nullable(data, p, stop)
        part = Part.HEADER_COUNT
        number, p = _read_varint(data, p, stop, 32)
        if number & 1 or number >> 1 > (stop - p) // _MIN_HEADER_BYTES:
            raise _InvalidPartError
        part = Part.HEADER
        for _ in range(number >> 1):
            p = _skip_header(data, p, stop)
        part = Part.RECORD_END
        if p != stop:
            raise _InvalidPartError
    except _InvalidPartError:
        raise _malformed(part, index) from None
    return timestamp_delta, has_key, stop


def _skip_header(data: bytes, p: int, stop: int) -> int:
    length, p = _read_length(data, p, stop)
    p += length
    number, after = _read_varint(data, p, stop, 32)
    if number == 1:
        return after
    length, p = _read_length(data, p, stop)
    return p + length


def _skip_nullable(data: bytes, p: int, stop: int) -> int:
    # Null is exactly this byte, without padding.
    if p < stop and data[p] == 1:
        return p + 1
    length, p = _read_length(data, p, stop)
    return p + length


def _read_length(data: bytes, p: int, stop: int) -> tuple[int, int]:
    """Read the length of something that has to end before `stop`."""
    number, p = _read_varint(data, p, stop, 32)
    if number & 1 or number >> 1 > stop - p:
        raise _InvalidPartError
    return number >> 1, p


def _read_varint(data: bytes, p: int, stop: int, bits: int) -> tuple[int, int]:
    """Read an unsigned varint of at most `bits` bits: the zigzag encoding of a number."""
    value = shift = 0
    while p < stop:
        byte = data[p]
        p += 1
        if shift + 7 > bits and byte >> (bits - shift):
            raise _InvalidPartError
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, p
        shift += 7
    raise _InvalidPartError


def _malformed(part: Part, index: int) -> BatchError:
    return BatchError(_REASONS[part].format(index), ErrorCode.INVALID_RECORD)
