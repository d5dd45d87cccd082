"""A record batch, as it is on the wire and on disk: magic 2.

    0   base offset            int64    ┐ assigned by the broker
    8   batch length           int32    │ bytes that follow this field
    12  partition leader epoch int32    │ assigned by the broker
    16  magic                  int8     ┘ 2
    17  CRC-32C                uint32   of all that follows
    21  attributes             int16    0-2 codec, 3 append time, 4 transactional, 5 control,
                                        6 base timestamp is a delete horizon
    23  last offset delta      int32
    27  base timestamp         int64
    35  max timestamp          int64
    43  producer id            int64    -1 none
    51  producer epoch         int16    -1 none
    53  base sequence          int32    -1 none
    57  record count           int32
    61  records, perhaps compressed all together

The CRC starts behind what a broker assigns, so that it can write an offset into a batch and store
it without looking at the records. `RecordBatch` is a view: it copies nothing and decodes no record
until it is asked for them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from crc32c import crc32c

from .compression import Compression, DecompressionError, compress, decompress
from .errors import BatchError, ErrorCode
from .outline import outlines
from .records import SMALLEST_RECORD_BYTES, Buffer, Record, Row, T, decode_as, encode_records

__all__ = ["HEADER_BYTES", "BatchError", "Record", "RecordBatch", "build_batch", "split_batches"]

HEADER_BYTES = 61
#: What comes before the length has been read: base offset and batch length.
LOG_OVERHEAD_BYTES = 12
#: What the records of one batch may decompress to, unless a caller says otherwise.
DECOMPRESSED_LIMIT_BYTES = 128 * 1024 * 1024

#: Records of one batch, at most: as many as clients can be told to put into one.
MAX_RECORDS = 1_000_000

#: Bytes from here to the end of a batch are covered by its CRC.
CRC_COVERS_FROM = 21

_HEADER = struct.Struct(">qiibIhiqqqhii")
_AFTER_CRC = struct.Struct(">hiqqqhii")
_ASSIGNED = struct.Struct(">qii")
_INT64 = struct.Struct(">q")
_INT32 = struct.Struct(">i")
_UINT32 = struct.Struct(">I")
_INT16 = struct.Struct(">h")

#: Reads a header in place, without checks, for scans over stored or fetched batches. Called as
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
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_DELETE_HORIZON = 0x40


class RecordBatch:
    """One batch at the start of a buffer, of which it takes as much as its length says.

    Making one checks that it is whole and of magic 2, no more; see `validate`.
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
    #: Bytes in all, header included.
    size: int

    def __init__(self, buffer: Buffer) -> None:
        view = memoryview(buffer)
        # All formats have their magic at the same place, so an old one can be told from damage.
        if len(view) > _MAGIC_AT and view[_MAGIC_AT] != 2:
            reason = f"magic {view[_MAGIC_AT]}: only batches of magic 2 are supported"
            raise BatchError(reason, ErrorCode.INVALID_RECORD, position=_MAGIC_AT)
        if len(view) < HEADER_BYTES:
            reason = f"{len(view)} bytes, a header alone has {HEADER_BYTES}"
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
            reason = f"batch length {length} in a buffer of {len(view)} bytes"
            raise BatchError(reason, ErrorCode.CORRUPT_MESSAGE, position=8)
        self.view = view[:size]
        self.size = size

    @property
    def last_offset(self) -> int:
        """Offset of the last record, be it still there or compacted away."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Offset that follows the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record; numbers wrap around to 0. -1 where there are none."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    @property
    def compression(self) -> Compression:
        """The codec; `validate` has made sure that there is such a one."""
        return Compression(self.attributes & _CODEC)

    @property
    def has_append_time(self) -> bool:
        """Whether `max_timestamp` is the broker's time, and that of every record."""
        return bool(self.attributes & _APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch is part of a transaction."""
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether the batch is a marker for clients to act on, and not to hand on."""
        return bool(self.attributes & _CONTROL)

    @property
    def has_delete_horizon(self) -> bool:
        """Whether `base_timestamp` is when tombstones in the batch may go (set by compaction)."""
        return bool(self.attributes & _DELETE_HORIZON)

    def validate(self) -> None:
        """Check all that can be checked without decoding records. Raises BatchError."""
        if crc32c(self.view[_ATTRIBUTES_AT:]) != self.crc:
            raise BatchError("the CRC does not match", ErrorCode.CORRUPT_MESSAGE, position=_CRC_AT)
        if self.attributes & _CODEC > Compression.ZSTD:
            reason = f"codec {self.attributes & _CODEC} is unknown"
            raise BatchError(reason, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, position=21)
        # Compaction removes records and leaves the offsets; it may even leave an empty batch.
        if not 0 <= self.record_count <= self.last_offset_delta + 1:
            reason = f"{self.record_count} records, last offset delta {self.last_offset_delta}"
            raise BatchError(reason, ErrorCode.INVALID_RECORD, position=57)

    def validate_produced(self) -> None:
        """Check what must hold, beyond `validate`, for a batch that a client made."""
        self.validate()
        if self.record_count < 1 or self.record_count != self.last_offset_delta + 1:
            reason = f"{self.record_count} records, last offset delta {self.last_offset_delta}"
            raise BatchError(reason, ErrorCode.INVALID_RECORD, position=57)
        is_compressed = self.attributes & _CODEC
        room = MAX_RECORDS if is_compressed else (self.size - HEADER_BYTES) // SMALLEST_RECORD_BYTES
        if self.record_count > min(room, MAX_RECORDS):
            reason = f"{self.record_count} records: there is room for {min(room, MAX_RECORDS)}"
            raise BatchError(reason, ErrorCode.INVALID_RECORD, position=57)
        if self.attributes & (_CONTROL | _DELETE_HORIZON):
            reason = f"attributes {self.attributes:#x}: control batches are not for producers"
            raise BatchError(reason, ErrorCode.INVALID_RECORD, position=_ATTRIBUTES_AT)
        if self.producer_id >= 0 and (self.base_sequence < 0 or self.producer_epoch < 0):
            reason = f"producer id {self.producer_id} without a sequence or an epoch"
            raise BatchError(reason, ErrorCode.INVALID_RECORD, position=43)

    def assign(self, base_offset: int, leader_epoch: int) -> None:
        """Write the offset and the leader epoch into the buffer, which must be writable."""
        length = self.size - LOG_OVERHEAD_BYTES
        _ASSIGNED.pack_into(self.view, 0, base_offset, length, leader_epoch)
        self.base_offset = base_offset
        self.partition_leader_epoch = leader_epoch

    def stamp_append_time(self, timestamp: int) -> None:
        """Write the broker's time into the buffer, as that of all records, and a new CRC."""
        self.attributes |= _APPEND_TIME
        self.max_timestamp = timestamp
        _INT16.pack_into(self.view, _ATTRIBUTES_AT, self.attributes)
        _INT64.pack_into(self.view, _MAX_TIMESTAMP_AT, timestamp)
        self.crc = crc32c(self.view[_ATTRIBUTES_AT:])
        _UINT32.pack_into(self.view, _CRC_AT, self.crc)

    def payload(self, limit: int = DECOMPRESSED_LIMIT_BYTES) -> Buffer:
        """Give the bytes of the records, decompressed to at most `limit`. Raises BatchError."""
        payload: Buffer = self.view[HEADER_BYTES:]
        if self.attributes & _CODEC:
            try:
                payload = decompress(self.compression, payload, limit)
            except (DecompressionError, ValueError) as error:
                raise BatchError(str(error), ErrorCode.CORRUPT_MESSAGE) from error
        return payload

    def outlines(self) -> Iterator[tuple[int, int, bool]]:
        """Give each record's offset, its time, and whether it has a key. Raises BatchError."""
        time = self.max_timestamp if self.has_append_time else None
        for offset, timestamp, has_key in outlines(self.payload(), self.record_count):
            yield (
                self.base_offset + offset,
                self.base_timestamp + timestamp if time is None else time,
                has_key,
            )

    def records(self, limit: int = DECOMPRESSED_LIMIT_BYTES) -> list[Record]:
        """Decode the records, which may decompress to at most `limit` bytes. Raises BatchError."""
        return self.records_as(Record, (), (), limit)

    def records_as(
        self,
        kind: type[T],
        before: tuple[Any, ...],
        after: tuple[Any, ...],
        limit: int = DECOMPRESSED_LIMIT_BYTES,
    ) -> list[T]:
        """Decode the records as `records.decode_as` does, which see."""
        return decode_as(
            kind,
            before,
            after,
            self.payload(limit),
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
    """Return the size of the batch at `position`, header included, as its length field says."""
    return LOG_OVERHEAD_BYTES + int(_INT32.unpack_from(buffer, position + 8)[0])


def split_batches(buffer: Buffer) -> Iterator[RecordBatch]:
    """Give the batches that lie one after the other in the records of a fetch.

    A last one that is cut off is left out: brokers may cut at the size that was asked for.
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
    """Build a batch from records whose offsets go up.

    It spans the offsets of its records, or more if `base_offset` and `last_offset` say so: what
    compaction rewrites keeps the span that it had. `delete_horizon` takes the place of the base
    timestamp, and `max_timestamp` is that of a batch of which no record is left.
    """
    if base_offset is None:
        base_offset = records[0][0]
    if last_offset is None:
        last_offset = records[-1][0]
    base_timestamp = records[0][1] if records else max_timestamp
    max_timestamp = max([record[1] for record in records], default=max_timestamp)
    attributes = (
        compression | (_TRANSACTIONAL if transactional else 0) | (_CONTROL if control else 0)
    )
    if delete_horizon is not None:
        base_timestamp = delete_horizon
        attributes |= _DELETE_HORIZON
    payload = compress(compression, encode_records(records, base_offset, base_timestamp), level)
    rest = (
        attributes,
        last_offset - base_offset,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    return _assembled(base_offset, leader_epoch, rest, payload)


def wrap_records(
    payload: Buffer,
    count: int,
    base_timestamp: int,
    max_timestamp: int,
    *,
    compression: Compression = Compression.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytearray:
    """Build a batch from records that are encoded already, with offsets from 0 on."""
    producer = (producer_id, producer_epoch, base_sequence)
    rest = (compression, count - 1, base_timestamp, max_timestamp, *producer, count)
    return _assembled(0, -1, rest, compress(compression, payload))


def _assembled(
    base_offset: int, leader_epoch: int, rest: tuple[int, ...], payload: Buffer
) -> bytearray:
    checked = _AFTER_CRC.pack(*rest)
    length = HEADER_BYTES - LOG_OVERHEAD_BYTES + len(payload)
    crc = crc32c(payload, crc32c(checked))
    batch = bytearray(struct.pack(">qiibI", base_offset, length, leader_epoch, 2, crc))
    batch += checked
    batch += payload
    return batch
