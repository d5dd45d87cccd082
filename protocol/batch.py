"""The record batch format, magic 2, on the wire and on disk.

    0   base offset            int64    ┐ assigned by the broker
    8   batch length           int32    │ bytes that follow this field
    12  partition leader epoch int32    │ assigned by the broker
    16  magic                  int8     ┘ 2
    17  CRC-32C                uint32   of everything that follows
    21  attributes             int16    0-2 codec, 3 append time, 4 transactional, 5 control,
                                        6 base timestamp is a delete horizon
    23  last offset delta      int32
    27  base timestamp         int64
    35  max timestamp          int64
    43  producer id            int64    -1 none
    51  producer epoch         int16    -1 none
    53  base sequence          int32    -1 none
    57  record count           int32
    61  records, compressed as a whole if the codec is not 0

The CRC does not cover the fields that the broker assigns, so the broker writes the base offset into
a batch and stores it without looking at the records. `RecordBatch` is a view: it copies nothing and
decodes no record until asked to.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from crc32c import crc32c

from .compression import Compression, DecompressionError, compress, decompress
from .errors import BatchError, ErrorCode
from .records import MIN_RECORD_BYTES, Buffer, Record, Row, T, decode_as, encode_records

__all__ = [
    "HEADER_BYTES",
    "BatchError",
    "EndTxnMarker",
    "Record",
    "RecordBatch",
    "build_batch",
    "build_control_batch",
    "parse_marker",
    "split_batches",
]

HEADER_BYTES = 61
#: Base offset and batch length: the bytes needed to know how large the batch is.
LOG_OVERHEAD_BYTES = 12
#: Default limit on the decompressed size of the records of one batch.
MAX_DECOMPRESSED_BYTES = 128 * 1024 * 1024

#: Maximum number of records in one batch: the largest that clients can be configured to send.
MAX_RECORDS = 1_000_000

#: The CRC covers the batch from here to its end.
CRC_COVERS_FROM = 21

_HEADER = struct.Struct(">qiibIhiqqqhii")
_AFTER_CRC = struct.Struct(">hiqqqhii")
_ASSIGNED = struct.Struct(">qii")
_INT64 = struct.Struct(">q")
_INT32 = struct.Struct(">i")
_UINT32 = struct.Struct(">I")
_INT16 = struct.Struct(">h")
#: Size of a control batch that is a transaction marker.
MARKER_BYTES = 78
_CONTROL_KEY = struct.Struct(">hh")  # Version and type.
_MARKER_VALUE = struct.Struct(">hi")  # Version and coordinator epoch.
_ABORT, _COMMIT = 0, 1

#: Reads a header in place, unchecked, for scans over stored or fetched batches. Called as
#: `unpack_header(buffer, position)`; returns base offset, batch length, partition leader epoch,
#: magic, CRC, last offset delta, max timestamp, producer id, and record count.
unpack_header: Callable[[Buffer, int], tuple[int, int, int, int, int, int, int, int, int]] = (
    struct.Struct(">qiibI2xi8xqq6xi").unpack_from
)

_MAGIC_AT = 16
_CRC_AT = 17
_ATTRIBUTES_AT = 21
_MAX_TIMESTAMP_AT = 35

_CODEC = 0x07
_APPEND_TIME = 0x08
#: The attribute of batches that are part of a transaction, and of its marker.
TRANSACTIONAL = 0x10
_CONTROL = 0x20
_DELETE_HORIZON = 0x40


class EndTxnMarker(NamedTuple):
    """What a control batch says about the end of a transaction."""

    is_commit: bool
    coordinator_epoch: int


class RecordBatch:
    """A view of the batch at the start of a buffer.

    The constructor checks only that the batch is complete and has magic 2; see `validate`.
    """

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "crc",
        "last_offset_delta",
        "max_timestamp",
        "partition_leader_epoch",
        "producer_epoch",
        "producer_id",
        "record_count",
        "size",
        "view",
    )

    base_offset: int
    partition_leader_epoch: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    #: Size in bytes, including the header.
    size: int

    def __init__(self, buffer: Buffer) -> None:
        view = memoryview(buffer)
        # Every format has its magic at the same position: tells old formats from corruption.
        if len(view) > _MAGIC_AT and view[_MAGIC_AT] != 2:
            reason = f"unsupported magic {view[_MAGIC_AT]}: only magic 2 is supported"
            raise BatchError(reason, ErrorCode.INVALID_RECORD, position=_MAGIC_AT)
        if len(view) < HEADER_BYTES:
            reason = f"{len(view)} bytes are too few: the header has {HEADER_BYTES}"
            raise BatchError(reason, ErrorCode.CORRUPT_MESSAGE)
        (
            self.base_offset,
            length,
            self.partition_leader_epoch,
            _magic,
            self.crc,
            self.attributes,
            self.last_offset_delta,
            self.base_timestamp,
            self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.record_count,
        ) = _HEADER.unpack_from(view)
        size = LOG_OVERHEAD_BYTES + length
        if not HEADER_BYTES <= size <= len(view):
            reason = f"invalid batch length {length} in a buffer of {len(view)} bytes"
            raise BatchError(reason, ErrorCode.CORRUPT_MESSAGE, position=8)
        self.view = view[:size]
        self.size = size

    @property
    def last_offset(self) -> int:
        """Offset of the last record, even if compaction removed it."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Offset after the last record."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record, wrapping around to 0; -1 without a producer id."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    @property
    def compression(self) -> Compression:
        """The compression codec; `validate` checks that it is known."""
        return Compression(self.attributes & _CODEC)

    @property
    def is_compressed(self) -> bool:
        """Whether the records are compressed."""
        return bool(self.attributes & _CODEC)

    @property
    def has_append_time(self) -> bool:
        """Whether every record has `max_timestamp`, the broker's time (LogAppendTime)."""
        return bool(self.attributes & _APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch is part of a transaction."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether the batch is a control batch: a transaction marker, not data."""
        return bool(self.attributes & _CONTROL)

    @property
    def has_delete_horizon(self) -> bool:
        """Whether `base_timestamp` is when tombstones may be removed (set by compaction)."""
        return bool(self.attributes & _DELETE_HORIZON)

    def validate(self) -> None:
        """Check everything that does not require decoding records. Raises BatchError."""
        if crc32c(self.view[_ATTRIBUTES_AT:]) != self.crc:
            raise BatchError("CRC mismatch", ErrorCode.CORRUPT_MESSAGE, position=_CRC_AT)
        if self.attributes & _CODEC > Compression.ZSTD:
            reason = f"unknown compression codec {self.attributes & _CODEC}"
            raise BatchError(reason, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, position=21)
        # Compaction removes records and keeps the offsets, down to a batch without records.
        if not 0 <= self.record_count <= self.last_offset_delta + 1:
            reason = (
                f"record count {self.record_count} does not match"
                f" last offset delta {self.last_offset_delta}"
            )
            raise BatchError(reason, ErrorCode.INVALID_RECORD, position=57)

    def validate_produced(self) -> None:
        """Check a batch sent by a producer: `validate`, and stricter rules. Raises BatchError."""
        self.validate()
        if self.record_count < 1 or self.record_count != self.last_offset_delta + 1:
            reason = (
                f"record count {self.record_count} does not match"
                f" last offset delta {self.last_offset_delta}"
            )
            raise BatchError(reason, ErrorCode.INVALID_RECORD, position=57)
        is_compressed = self.attributes & _CODEC
        max_records = MAX_RECORDS
        if not is_compressed:
            max_records = min(max_records, (self.size - HEADER_BYTES) // MIN_RECORD_BYTES)
        if self.record_count > max_records:
            reason = f"record count {self.record_count} is more than {max_records}"
            raise BatchError(reason, ErrorCode.INVALID_RECORD, position=57)
        if self.attributes & (_CONTROL | _DELETE_HORIZON):
            reason = f"attributes {self.attributes:#x}: producers cannot write control batches"
            raise BatchError(reason, ErrorCode.INVALID_RECORD, position=_ATTRIBUTES_AT)
        if self.producer_id >= 0 and (self.base_sequence < 0 or self.producer_epoch < 0):
            reason = f"producer id {self.producer_id} without a base sequence or epoch"
            raise BatchError(reason, ErrorCode.INVALID_RECORD, position=43)

    def assign(self, base_offset: int, leader_epoch: int) -> None:
        """Write base offset and leader epoch into the buffer, which must be writable."""
        length = self.size - LOG_OVERHEAD_BYTES
        _ASSIGNED.pack_into(self.view, 0, base_offset, length, leader_epoch)
        self.base_offset = base_offset
        self.partition_leader_epoch = leader_epoch

    def stamp_append_time(self, timestamp: int) -> None:
        """Write the append time of all records, and the new CRC, into the buffer."""
        self.attributes |= _APPEND_TIME
        _INT16.pack_into(self.view, _ATTRIBUTES_AT, self.attributes)
        self.set_max_timestamp(timestamp)

    def set_max_timestamp(self, timestamp: int) -> None:
        """Write the max timestamp, and the new CRC, into the buffer, which must be writable."""
        self.max_timestamp = timestamp
        _INT64.pack_into(self.view, _MAX_TIMESTAMP_AT, timestamp)
        self.crc = crc32c(self.view[_ATTRIBUTES_AT:])
        _UINT32.pack_into(self.view, _CRC_AT, self.crc)

    def payload(self, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> Buffer:
        """Return the encoded records, decompressed to at most `max_bytes`. Raises BatchError."""
        payload: Buffer = self.view[HEADER_BYTES:]
        if self.attributes & _CODEC:
            try:
                payload = decompress(self.compression, payload, max_bytes)
            except (DecompressionError, ValueError) as error:
                raise BatchError(str(error), ErrorCode.CORRUPT_MESSAGE) from error
        return payload

    def records(self, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> list[Record]:
        """Decode the records, decompressed to at most `max_bytes`. Raises BatchError."""
        return self.records_as(Record, (), (), max_bytes)

    def records_as(
        self,
        kind: type[T],
        before: tuple[Any, ...],
        after: tuple[Any, ...],
        max_bytes: int = MAX_DECOMPRESSED_BYTES,
    ) -> list[T]:
        """Decode the records as named tuples of another class; see `records.decode_as`."""
        return decode_as(
            kind,
            before,
            after,
            self.payload(max_bytes),
            self.record_count,
            self.base_offset,
            self.base_timestamp,
            self.max_timestamp if self.has_append_time else None,
        )

    def __repr__(self) -> str:
        return (
            f"<RecordBatch offsets {self.base_offset} to {self.last_offset},"
            f" {self.record_count} records, {self.size} bytes>"
        )


def batch_size(buffer: Buffer, position: int = 0) -> int:
    """Return the size of the batch at `position`, including the header, from its length field."""
    length: int = _INT32.unpack_from(buffer, position + 8)[0]
    return LOG_OVERHEAD_BYTES + length


def split_batches(buffer: Buffer) -> Iterator[RecordBatch]:
    """Yield the batches in the records of a fetch response.

    An incomplete last batch is skipped: brokers may cut the records at the requested size.
    """
    view = memoryview(buffer)
    while len(view) >= LOG_OVERHEAD_BYTES:
        size = batch_size(view)
        if size > len(view):
            return
        yield RecordBatch(view)
        view = view[size:]


def build_batch(
    records: Sequence[Row],
    *,
    compression: Compression = Compression.NONE,
    level: int | None = None,
    base_offset: int | None = None,
    last_offset: int | None = None,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    delete_horizon: int | None = None,
    max_timestamp: int = -1,
) -> bytearray:
    """Build a batch from records in ascending order of offsets.

    The batch spans the offsets of its records, or `base_offset` to `last_offset`: compaction keeps
    the span of the batches it rewrites. `delete_horizon` replaces the base timestamp, and
    `max_timestamp` applies to a batch without records.
    """
    if base_offset is None:
        base_offset = records[0][0]
    if last_offset is None:
        last_offset = records[-1][0]
    base_timestamp = records[0][1] if records else max_timestamp
    max_timestamp = max([record[1] for record in records], default=max_timestamp)
    attributes = (
        compression | (TRANSACTIONAL if transactional else 0) | (_CONTROL if control else 0)
    )
    if delete_horizon is not None:
        base_timestamp = delete_horizon
        attributes |= _DELETE_HORIZON
    payload = compress(compression, encode_records(records, base_offset, base_timestamp), level)
    fields = (
        attributes,
        last_offset - base_offset,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    return _assemble(base_offset, leader_epoch, fields, payload)


def build_control_batch(
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    is_commit: bool,
    timestamp: int,
) -> bytearray:
    """Build the marker that ends a producer's transaction in a partition."""
    key = _CONTROL_KEY.pack(0, _COMMIT if is_commit else _ABORT)
    value = _MARKER_VALUE.pack(0, coordinator_epoch)
    return build_batch(
        [Record(0, timestamp, key, value, ())],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def parse_marker(batch: RecordBatch) -> EndTxnMarker:
    """Decode the marker in a control batch. Raises BatchError if it is something else."""
    records = batch.records()
    key = records[0].key if records else None
    kind = _CONTROL_KEY.unpack_from(key)[1] if key and len(key) >= _CONTROL_KEY.size else -1
    if not batch.is_control or kind not in (_ABORT, _COMMIT):
        raise BatchError("not a transaction marker", ErrorCode.INVALID_RECORD)
    value = records[0].value
    epoch = -1
    if value is not None and len(value) >= _MARKER_VALUE.size:
        epoch = _MARKER_VALUE.unpack_from(value)[1]
    return EndTxnMarker(kind == _COMMIT, epoch)


def wrap_records(
    payload: Buffer,
    count: int,
    base_timestamp: int,
    max_timestamp: int,
    *,
    compression: Compression = Compression.NONE,
    level: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
) -> bytearray:
    """Build a batch from records that are already encoded, with offsets from 0."""
    producer = (producer_id, producer_epoch, base_sequence)
    attributes = compression | (TRANSACTIONAL if transactional else 0)
    fields = (attributes, count - 1, base_timestamp, max_timestamp, *producer, count)
    return _assemble(0, -1, fields, compress(compression, payload, level))


def _assemble(
    base_offset: int, leader_epoch: int, fields: tuple[int, ...], payload: Buffer
) -> bytearray:
    checked = _AFTER_CRC.pack(*fields)
    length = HEADER_BYTES - LOG_OVERHEAD_BYTES + len(payload)
    crc = crc32c(payload, crc32c(checked))
    batch = bytearray(struct.pack(">qiibI", base_offset, length, leader_epoch, 2, crc))
    batch += checked
    batch += payload
    return batch
