from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from .records import Buffer, Record, Row

T = TypeVar("T")

# What the compiled functions give is None where they leave the work to their twins in Python.

class Room(Protocol):
    """Writable memory, such as a resizable buffer of pyarrow's."""

    def __buffer__(self, flags: int, /) -> memoryview: ...
    def resize(self, new_size: int, shrink_to_fit: bool, /) -> None: ...

# The arguments of decode_records: payload, count, base offset, base timestamp, append time.
Packed = tuple[Buffer, int, int, int, int | None]
# Nulls, validity (None where there are no nulls), offsets, data.
Binary = tuple[int, Room | None, Room, Room]
# Headers of all records together, offsets of the lists, keys, values.
Headers = tuple[int, Room, Binary, Binary]
# Records, keys, values, offsets, timestamps, timestamp types, headers if they were wanted.
Columns = tuple[int, Binary, Binary, Room, Room, Room, Headers | None]

def encode_records(
    record_type: type[Record], records: Sequence[Row], base_offset: int, base_timestamp: int
) -> bytes | None: ...
def decode_records(
    record_type: type[T],
    before: tuple[Any, ...],
    after: tuple[Any, ...],
    payload: Buffer,
    count: int,
    base_offset: int,
    base_timestamp: int,
    append_time: int | None,
) -> list[T] | None: ...
def decode_columns(
    allocate: Callable[[int], Room],
    batches: list[Packed],
    first_offset: int,
    last_offset: int,
    time_scale: int,
    with_headers: bool,
) -> Columns | None: ...

# A column of numbers: validity (None: no nulls), numbers, None, the first row.
# One of bytes or text: validity, offsets of 32 bits, content, the first row.
Given = tuple[Buffer | None, Buffer | None, Buffer | None, int]
# A partition (None: any), encoded records, how many, their base and largest timestamp.
Pack = tuple[int | None, bytes, int, int, int]

def pack_columns(
    keys: Given | None,
    values: Given,
    partitions: Given | None,
    timestamps: Given | None,
    headers: tuple[Given, Given, Given] | None,
    count: int,
    partition_count: int,
    now: int,
    limit: int,
    largest: int,
) -> list[Pack] | None: ...
def murmur2(data: bytes) -> int: ...
