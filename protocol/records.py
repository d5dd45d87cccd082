"""Encode and decode the records inside a batch.

Every number in a record but the attributes is a zigzag varint (n ≥ 0 is 2n, -1 is 1):

    length │ attributes (int8, 0) │ timestamp delta │ offset delta │ key length, key │
    value length, value │ header count │ per header: key length, key, value length, value

Length -1 is null; header keys are not nullable.

This is work per record: the broker's produce and fetch paths do not use it. `encode_records` and
`decode_records` use the compiled module, if there is one, for the common case. It leaves everything
unusual or invalid to `encode_in_python` and `decode_in_python`, so these two alone define what is
valid, and the error messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from . import compiled
from .errors import BatchError, ErrorCode

T = TypeVar("T", bound=tuple[Any, ...])

Buffer = bytes | bytearray | memoryview

#: The smallest record: seven numbers of one byte.
MIN_RECORD_BYTES = 7


class Record(NamedTuple):
    """A record: its offset in the partition, its timestamp (ms) and its content."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


#: A `Record` or a plain tuple of the same fields, which is cheaper to create.
Row = tuple[int, int, bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]


def encode_records(records: Iterable[Row], base_offset: int, base_timestamp: int) -> bytes:
    """Encode records, uncompressed, with offsets and timestamps as deltas to those of the batch."""
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

    `append_time`, unless None, is the timestamp of every record (LogAppendTime).
    """
    return decode_as(Record, (), (), payload, count, base_offset, base_timestamp, append_time)


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
    """Decode records as named tuples of a class with more fields than `Record`.

    The fields `before` and `after` those of `Record` are the same for all: strings and numbers.
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
    """Encode as `encode_records` does, in pure Python."""
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
    """Decode as `decode_as` does, in pure Python."""
    data = payload if isinstance(payload, bytes) else bytes(payload)
    end = len(data)
    if not 0 <= count <= end // MIN_RECORD_BYTES:
        raise _invalid(f"record count {count} in {end} bytes", 0)
    records: list[T] = []
    append = records.append
    new = tuple.__new__
    p = 0
    try:
        for _ in range(count):
            # Every number is a varint, nearly always of one or two bytes: those are decoded inline,
            # because a call costs more than the rest. _read_varint decodes the longer ones.
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
                raise _invalid("invalid record length", p)
            n = data[p + 1]  # skips the attributes: no bit is defined
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
                raise _invalid("negative offset delta", p)
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
                    raise _invalid("negative key length", p)
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
                    raise _invalid("negative value length", p)
                q = p + (n >> 1)
                value = data[p:q]
                p = q
            n = data[p]
            p += 1
            headers: Sequence[tuple[str, bytes | None]] = ()
            if n:
                headers, p = _decode_headers(data, p, n, stop)
            # Slices past the end come out shorter, without an error; p is then larger than stop.
            if p != stop:
                raise _invalid(f"record length does not match its fields ({p - stop:+} bytes)", p)
            if append_time is not None:
                timestamp = append_time
            append(new(kind, (*before, offset, timestamp, key, value, headers, *after)))
    except IndexError as error:
        raise _invalid("record is cut off", p) from error
    if p != end:
        raise _invalid(f"{end - p} bytes after the last record", p)
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
        raise _invalid(f"header count {count} in {stop - p} bytes", p)
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        size, p = _read_signed(data, p + 1, data[p])
        if not 0 <= size <= stop - p:
            raise _invalid(f"header key length {size}, but {stop - p} bytes remain", p)
        try:
            key = data[p : p + size].decode()
        except UnicodeDecodeError as error:
            raise _invalid(f"header key is not UTF-8: {error}", p) from error
        p += size
        size, p = _read_signed(data, p + 1, data[p])
        value = None
        if size != -1:
            if not 0 <= size <= stop - p:
                raise _invalid(f"header value length {size}, but {stop - p} bytes remain", p)
            value = data[p : p + size]
            p += size
        headers.append((key, value))
    return tuple(headers), p


def _read_varint(data: bytes, p: int, first: int, max_bytes: int) -> tuple[int, int]:
    """Read the remainder of a varint whose first byte is over 127."""
    value = first & 0x7F
    shift = 7
    while True:
        byte = data[p]
        p += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            # The last of ten bytes may carry one bit, the last of five may carry four.
            if value >> (64 if max_bytes == 10 else 32):
                raise _invalid("varint out of range", p)
            return value, p
        shift += 7
        if shift == 7 * max_bytes:
            raise _invalid(f"varint longer than {max_bytes} bytes", p)


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
    return BatchError(f"{reason}, at byte {position} of the records", ErrorCode.INVALID_RECORD)


_NULL = _varint(-1)
# Lengths and deltas are mostly small: look them up.
_VARINTS = [_varint(value) for value in range(1024)]
