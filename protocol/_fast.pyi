from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol, TypeVar

from .records import Buffer, Record, Row
from .schema import Message

T = TypeVar("T")

# All return None to leave the work to pure Python.

class OutputBuffer(Protocol):
    """Writable memory, such as a resizable buffer of pyarrow."""

    def __buffer__(self, flags: int, /) -> memoryview: ...
    def resize(self, new_size: int, shrink_to_fit: bool, /) -> None: ...

# The arguments of decode_records: payload, count, base offset, base timestamp, append time.
BatchPayload = tuple[Buffer, int, int, int, int | None]
# Null count, validity (None if there are no nulls), offsets, data.
Binary = tuple[int, OutputBuffer | None, OutputBuffer, OutputBuffer]
# Total number of headers, list offsets, keys, values.
Headers = tuple[int, OutputBuffer, Binary, Binary]
# Record count, keys, values, offsets, timestamps, timestamp types, headers if requested.
Columns = tuple[int, Binary, Binary, OutputBuffer, OutputBuffer, OutputBuffer, Headers | None]

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
    allocate: Callable[[int], OutputBuffer],
    batches: list[BatchPayload],
    first_offset: int,
    last_offset: int,
    time_scale: int,
    with_headers: bool,
) -> Columns | None: ...

# A column of numbers: validity (None: no nulls), numbers, None, the first row.
# A binary or text column: validity, 32-bit offsets, content, the first row.
InputColumn = tuple[Buffer | None, Buffer | None, Buffer | None, int]
# Partition (None: any), encoded records, record count, base and max timestamp.
Pack = tuple[int | None, bytes, int, int, int]

def pack_columns(
    keys: InputColumn | None,
    values: InputColumn,
    partitions: InputColumn | None,
    timestamps: InputColumn | None,
    headers: tuple[InputColumn, InputColumn, InputColumn] | None,
    count: int,
    partition_count: int,
    now: int,
    max_pack_bytes: int,
    max_record_bytes: int,
) -> list[Pack] | None: ...

# Returns the fields of validation.ValidatedRecords, or the malformed part and its record.
def validate_records(
    payload: Buffer,
    count: int,
    base_timestamp: int,
    timestamps: tuple[int, int] | None,
    requires_keys: bool,
    max_listed: int,
) -> tuple[int, int] | tuple[int, int, int, list[int], list[int]] | None: ...

# Returns the offset delta and the timestamp, nothing if there is no such record, or one number if a
# record is malformed.
def find_timestamp(
    payload: Buffer, count: int, base_timestamp: int, timestamp: int, first_delta: int
) -> tuple[int, int] | tuple[()] | tuple[int] | None: ...
def murmur2(data: bytes) -> int: ...

# Of storage/disk.py, which asks the system in another way without it.
def is_resident(mapped: Buffer, step_bytes: int) -> bool: ...

# Kind, whether it is nullable, whether its length is compact, what it consists of.
FieldType = tuple[int, bool, bool, FieldType | Layout | None]

class Layout:
    def __init__(
        self,
        message: type[Message],
        fields: Sequence[tuple[str, FieldType]],
        others: Sequence[tuple[str, Any]],
        unchecked: Collection[str],
        is_flexible: bool,
    ) -> None: ...

def decode_message(layout: Layout, buffer: memoryview, position: int) -> tuple[Any, int] | None: ...
def encode_message(
    layout: Layout,
    message: Message,
    tail: bytearray,
    parts: list[Buffer],
    min_part_bytes: int,
) -> bytearray | None: ...
