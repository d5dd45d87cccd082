"""The records inside a batch: bytes to `Record` and back.

A record, all of whose numbers are zigzag varints (n ≥ 0 is 2n, -1 is 1) but for one byte:

    length │ attributes (int8, 0) │ timestamp delta │ offset delta │ key length, key │
    value length, value │ header count │ per header: key length, key, value length, value

A length of -1 is null; a header's key has none.

This is per-record work: the broker's produce and fetch paths do not come here. `encode_records` and
`decode_records` let the compiled module do it where there is one. It does the plain case; what it
declines, because it is odd or makes no sense, is left to `encode_in_python` and `decode_in_python`,
so that these two say what is right, what is wrong, and in which words.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from . import compiled
from .errors import BatchError, ErrorCode

T = TypeVar("T", bound=tuple[Any, ...])

Buffer = bytes | bytearray | memoryview

#: What one record takes at least: seven numbers of one byte.
SMALLEST_RECORD_BYTES = 7


class Record(NamedTuple):
    """One record: where it is in its partition, when it was made, and what it says."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


#: A record, or a tuple of the same: who makes many to encode them does not need their names.
Row = tuple[int, int, bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]


def encode_records(records: Iterable[Row], base_offset: int, base_timestamp: int) -> bytes:
    """Encode records one after the other, uncompressed, as deltas to the base of their batch."""
    rows = records if isinstance(records, (list, tuple)) else list(records)
    if compiled.fast is not None:
        encoded = compiled.fast.encode_records(Record, rows, base_offset, base_timestamp)
        if encoded is not None:
            return encoded
    return encode_in_python(rows, base_offset, base_timestamp)


def decode_records(
    payload: Buffer, count: int, base_offset: int, base_timestamp: int, append_time: int | None
) -> list[Record]:
    """Decode exactly `count` records, which must fill `payload`. Raises BatchError.

    `append_time` is the timestamp of every record of a batch that has the broker's time.
    """
    packed = (payload, count, base_offset, base_timestamp, append_time)
    return decode_as(Record, (), (), *packed)


def decode_as(
    kind: type[T],
    before: tuple[Any, ...],
    after: tuple[Any, ...],
    payload: Buffer,
    count: int,
    base_offset: int,
    base_timestamp: int,
    append_time: int | None,
) -> list[T]:
    """Decode records to named tuples of another kind, which has more fields than `Record` has.

    What they have before and after those is the same for all: strings and numbers.
    """
    if compiled.fast is not None:
        records = compiled.fast.decode_records(
            kind, before, after, payload, count, base_offset, base_timestamp, append_time
        )
        if records is not None:
            return records
    return decode_in_python(
        kind, before, after, payload, count, base_offset, base_timestamp, append_time
    )


def encode_in_python(records: Iterable[Row], base_offset: int, base_timestamp: int) -> bytes:
    """Do what `encode_records` does."""
    parts: list[bytes] = []
    append = parts.append
    join = b"".join
    small, limit = _VARINTS, len(_VARINTS)
    for offset, timestamp, key, value, headers in records:
        time = timestamp - base_timestamp
        delta = offset - base_offset
        time_bytes = small[time] if 0 <= time < limit else _varint(time)
        delta_bytes = small[delta] if 0 <= delta < limit else _varint(delta)
        if key is None:
            key_bytes, key_size = b"", _NULL
        else:
            key_bytes, size = key, len(key)
            key_size = small[size] if size < limit else _varint(size)
        if value is None:
            value_bytes, value_size = b"", _NULL
        else:
            value_bytes, size = value, len(value)
            value_size = small[size] if size < limit else _varint(size)
        tail = _encode_headers(headers) if headers else b"\x00"
        body = join(
            (b"\0", time_bytes, delta_bytes, key_size, key_bytes, value_size, value_bytes, tail)
        )
        size = len(body)
        append(small[size] if size < limit else _varint(size))
        append(body)
    return join(parts)


def decode_in_python(
    kind: type[T],
    before: tuple[Any, ...],
    after: tuple[Any, ...],
    payload: Buffer,
    count: int,
    base_offset: int,
    base_timestamp: int,
    append_time: int | None,
) -> list[T]:
    """Do what `decode_as` does."""
    data = payload if isinstance(payload, bytes) else bytes(payload)
    end = len(data)
    if not 0 <= count <= end // SMALLEST_RECORD_BYTES:
        raise _invalid(f"{count} records in {end} bytes", 0)
    records: list[T] = []
    append = records.append
    new = tuple.__new__
    p = 0
    try:
        for _ in range(count):
            # Every number is a varint, nearly always of one or two bytes: those are read in line,
            # because a call costs more than all else. _read_varint has the longer ones.
            n = data[p]
            p += 1
            if n > 127:
                if (m := data[p]) < 128:
                    n += (m << 7) - 128
                    p += 1
                else:
                    n, p = _read_varint(data, p, n, 5)
            stop = p + (n >> 1)
            if n & 1 or stop > end:
                raise _invalid("a record of a length that cannot be", p)
            n = data[p + 1]  # the byte before it are attributes, of which none is defined
            p += 2
            if n > 127:
                if (m := data[p]) < 128:
                    n += (m << 7) - 128
                    p += 1
                else:
                    n, p = _read_varint(data, p, n, 10)
            timestamp = base_timestamp + ((n >> 1) ^ -(n & 1))
            n = data[p]
            p += 1
            if n > 127:
                if (m := data[p]) < 128:
                    n += (m << 7) - 128
                    p += 1
                else:
                    n, p = _read_varint(data, p, n, 5)
            if n & 1:
                raise _invalid("a negative offset delta", p)
            offset = base_offset + (n >> 1)
            n = data[p]
            p += 1
            if n == 1:
                key = None
            else:
                if n > 127:
                    if (m := data[p]) < 128:
                        n += (m << 7) - 128
                        p += 1
                    else:
                        n, p = _read_varint(data, p, n, 5)
                if n & 1:
                    raise _invalid("a negative key length", p)
                q = p + (n >> 1)
                key = data[p:q]
                p = q
            n = data[p]
            p += 1
            if n == 1:
                value = None
            else:
                if n > 127:
                    if (m := data[p]) < 128:
                        n += (m << 7) - 128
                        p += 1
                    else:
                        n, p = _read_varint(data, p, n, 5)
                if n & 1:
                    raise _invalid("a negative value length", p)
                q = p + (n >> 1)
                value = data[p:q]
                p = q
            n = data[p]
            p += 1
            headers: Sequence[tuple[str, bytes | None]] = ()
            if n:
                headers, p = _decode_headers(data, p, n, stop)
            # A slice that ran over the end was cut short; then p is past it, and we see it here.
            if p != stop:
                raise _invalid(f"a record of another length than it says ({p - stop:+} bytes)", p)
            if append_time is not None:
                timestamp = append_time
            append(new(kind, (*before, offset, timestamp, key, value, headers, *after)))
    except IndexError as error:
        raise _invalid("a record is cut short", p) from error
    if p != end:
        raise _invalid(f"{end - p} bytes behind the last record", p)
    return records


def _encode_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    parts = [_varint(len(headers))]
    for key, value in headers:
        name = key.encode()
        parts += (_varint(len(name)), name)
        parts += (_NULL,) if value is None else (_varint(len(value)), value)
    return b"".join(parts)


def _decode_headers(
    data: bytes, p: int, first: int, stop: int
) -> tuple[Sequence[tuple[str, bytes | None]], int]:
    count, p = _read_signed(data, p, first)
    if not 0 <= count <= (stop - p) // 2:
        raise _invalid(f"{count} headers in {stop - p} bytes", p)
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        size, p = _read_signed(data, p + 1, data[p])
        if not 0 <= size <= stop - p:
            raise _invalid(f"a header key of {size} bytes, {stop - p} left", p)
        try:
            key = data[p : p + size].decode()
        except UnicodeDecodeError as error:
            raise _invalid(f"a header key is not UTF-8: {error}", p) from error
        p += size
        size, p = _read_signed(data, p + 1, data[p])
        value = None
        if size != -1:
            if not 0 <= size <= stop - p:
                raise _invalid(f"a header value of {size} bytes, {stop - p} left", p)
            value = data[p : p + size]
            p += size
        headers.append((key, value))
    return tuple(headers), p


def _read_varint(data: bytes, p: int, first: int, most: int) -> tuple[int, int]:
    """Read on in a varint of at most `most` bytes whose first byte is over 127."""
    value = first & 0x7F
    shift = 7
    while True:
        byte = data[p]
        p += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            # The last of ten bytes can carry one bit, the last of five can carry four.
            if value >> (64 if most == 10 else 32):
                raise _invalid("a varint out of range", p)
            return value, p
        shift += 7
        if shift == 7 * most:
            raise _invalid(f"a varint of more than {most} bytes", p)


def _read_signed(data: bytes, p: int, first: int) -> tuple[int, int]:
    value = first
    if first > 127:
        value, p = _read_varint(data, p, first, 5)
    return (value >> 1) ^ -(value & 1), p


def _varint(value: int) -> bytes:
    """Encode a zigzag varint."""
    rest = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _invalid(reason: str, position: int) -> BatchError:
    return BatchError(f"{reason}, at byte {position} of its records", ErrorCode.INVALID_RECORD)


_NULL = _varint(-1)
# Lengths and deltas are mostly small: they are looked up, not computed.
_VARINTS = [_varint(value) for value in range(1024)]
