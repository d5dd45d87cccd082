"""Scan the records of a batch without decoding them.

For brokers, which look inside a batch only for compacted topics and lookups by timestamp. A batch
may have a million records and the scan blocks the event loop, so it builds no object per record but
a tuple of two numbers and a flag.
"""

from __future__ import annotations

from collections.abc import Iterator

from .errors import BatchError, ErrorCode
from .records import Buffer


def outlines(payload: Buffer, count: int) -> Iterator[tuple[int, int, bool]]:
    """Yield offset delta, timestamp delta, and whether there is a key, of `count` records.

    Raises BatchError.
    """
    view, position, end = memoryview(payload), 0, len(payload)
    try:
        for _ in range(count):
            size, position = _varint(view, position)
            next_record = position + size
            if size < 0 or next_record > end:
                raise _invalid(position)
            timestamp_delta, position = _varint(view, position + 1)  # after the attributes
            offset_delta, position = _varint(view, position)
            key_size, position = _varint(view, position)
            if position > next_record or key_size > next_record - position:
                raise _invalid(position)
            yield offset_delta, timestamp_delta, key_size >= 0
            position = next_record
    except IndexError:
        raise _invalid(position) from None


def _varint(view: memoryview, position: int) -> tuple[int, int]:
    byte = view[position]
    position += 1
    number = byte & 0x7F
    shift = 7
    while byte & 0x80:
        if shift > 63:
            raise _invalid(position)
        byte = view[position]
        position += 1
        number |= (byte & 0x7F) << shift
        shift += 7
    return (number >> 1) ^ -(number & 1), position


def _invalid(position: int) -> BatchError:
    return BatchError("invalid record", ErrorCode.INVALID_RECORD, position=position)
