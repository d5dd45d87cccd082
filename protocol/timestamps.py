"""Find a record by its timestamp in the payload of a batch, without decoding the others.

For brokers: a batch may have a million records, and be of a hostile producer. The compiled module
does it without the GIL; `find_in_python` defines the result.
"""

from __future__ import annotations

from . import compiled
from .errors import BatchError, ErrorCode
from .records import Buffer

_INT64_MAX = 2**63 - 1
_INT64_MIN = -(2**63)


def find_timestamp(
    payload: Buffer, count: int, base_timestamp: int, timestamp: int, first_delta: int
) -> tuple[int, int] | None:
    """Return offset delta and timestamp of the first record that is not older than `timestamp`.

    Records with an offset delta below `first_delta` do not count, nor do those with a timestamp
    beyond 64 bits. Raises BatchError if a record is malformed, as far as they were read.
    """
    arguments = (payload, count, base_timestamp, timestamp, first_delta)
    if compiled.fast is not None:
        result = compiled.fast.find_timestamp(*arguments)
        if result is not None:
            if len(result) == 1:
                raise _invalid()
            return result or None
    return find_in_python(*arguments)


def find_in_python(
    payload: Buffer, count: int, base_timestamp: int, timestamp: int, first_delta: int
) -> tuple[int, int] | None:
    """Find as `find_timestamp` does, in pure Python."""
    view, position, end = memoryview(payload), 0, len(payload)
    for _ in range(count):
        number, position = _read_varint(view, position, end, 32)
        if number & 1 or number < 2 or number >> 1 > end - position:
            raise _invalid()
        stop = position + (number >> 1)
        number, position = _read_varint(view, position + 1, stop, 64)  # Skips the attributes.
        found = base_timestamp + ((number >> 1) ^ -(number & 1))
        number, position = _read_varint(view, position, stop, 32)
        if number & 1:
            raise _invalid()
        is_representable = _INT64_MIN <= found <= _INT64_MAX
        if found >= timestamp and number >> 1 >= first_delta and is_representable:
            return number >> 1, found
        position = stop
    return None


def _read_varint(view: memoryview, position: int, stop: int, bits: int) -> tuple[int, int]:
    number = shift = 0
    while position < stop:
        byte = view[position]
        position += 1
        if shift + 7 > bits and byte >> (bits - shift):
            break
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7
    raise _invalid()


def _invalid() -> BatchError:
    return BatchError("malformed record", ErrorCode.INVALID_RECORD)
