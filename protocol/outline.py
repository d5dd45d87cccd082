"""What can be told of records without making them: a broker that must look inside a batch.

Only compacted topics and look-ups by time need that. A batch may have a million records, and the
event loop waits meanwhile, so nothing is made of a record but three numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

from .errors import BatchError, ErrorCode
from .records import Buffer


def outlines(payload: Buffer, count: int) -> Iterator[tuple[int, int, bool]]:
    """Give, of each of `count` records, its offset and its time, and whether it has a key.

    Both are relative to the batch. Raises BatchError.
    """
    view, position, end = memoryview(payload), 0, len(payload)
    try:
        for _ in range(count):
            size, position = _varint(view, position)
            following = position + size
            if size < 0 or following > end:
                raise _damaged(position)
            timestamp_delta, position = _varint(view, position + 1)  # behind the attributes
            offset_delta, position = _varint(view, position)
            key_size, position = _varint(view, position)
            if position > following or key_size > following - position:
                raise _damaged(position)
            yield offset_delta, timestamp_delta, key_size >= 0
            position = following
    except IndexError:
        raise _damaged(position) from None


def _varint(view: memoryview, position: int) -> tuple[int, int]:
    byte = view[position]
    position += 1
    number = byte & 0x7F
    shift = 7
    while byte & 0x80:
        if shift > 63:
            raise _damaged(position)
        byte = view[position]
        position += 1
        number |= (byte & 0x7F) << shift
        shift += 7
    return (number >> 1) ^ -(number & 1), position


def _damaged(position: int) -> BatchError:
    return BatchError("a record makes no sense", ErrorCode.INVALID_RECORD, position=position)
