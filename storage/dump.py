"""Dumps a segment file for people: its batches, and their records on request.

It reads only the `.log` file, so that it works on a copy, and on a file that no log would open: an
invalid batch is reported with its error, and the dump continues with the next batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ottla.protocol.batch import (
    HEADER_BYTES,
    BatchError,
    Record,
    RecordBatch,
    batch_size,
    parse_marker,
)

_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class DumpedBatch:
    """One batch: its position, its header fields, and its error if it is invalid."""

    position: int
    size: int
    header: dict[str, Any]
    records: list[Record]
    error: str | None = None


def dump(path: Path, *, records: bool = False) -> Iterator[DumpedBatch]:
    """Yield the batches of a `.log` file."""
    file_size = path.stat().st_size
    with path.open("rb") as file:
        position = 0
        while position < file_size:
            file.seek(position)
            header = file.read(HEADER_BYTES)
            size = batch_size(header) if len(header) == HEADER_BYTES else 0
            if not header.strip(b"\0") and _is_zero_to_the_end(file, file_size):
                return  # allocated for appends
            if not HEADER_BYTES <= size <= file_size - position:
                error = _describe_rest(header, file_size - position)
                yield DumpedBatch(position, file_size - position, {}, [], error)
                return
            data = header + file.read(size - HEADER_BYTES)
            yield _dump_batch(position, data, records=records)
            position += size


def _is_zero_to_the_end(file: BinaryIO, file_size: int) -> bool:
    """Whether only zeros follow, as in the active segment, whose space is allocated ahead."""
    while file.tell() < file_size:
        data = file.read(_READ_BYTES)
        if data.strip(b"\0"):
            return False
        if not data:
            break
    return True


def _dump_batch(position: int, data: bytes, *, records: bool) -> DumpedBatch:
    error: str | None = None
    header: dict[str, Any] = {}
    decoded: list[Record] = []
    try:
        batch = RecordBatch(data)
        header = {
            "base_offset": batch.base_offset,
            "last_offset": batch.last_offset,
            "records": batch.record_count,
            "max_timestamp": batch.max_timestamp,
            "leader_epoch": batch.partition_leader_epoch,
            "producer_id": batch.producer_id,
            "producer_epoch": batch.producer_epoch,
            "base_sequence": batch.base_sequence,
            "attributes": batch.attributes,
        }
        batch.validate()
        header["compression"] = batch.compression.name.lower()
        if batch.is_control:
            header["marker"] = _describe_control(batch)
        if records:
            decoded = batch.records()
    except BatchError as batch_error:
        error = str(batch_error)
    return DumpedBatch(position, len(data), header, decoded, error)


def _describe_control(batch: RecordBatch) -> str:
    """Describe a control batch: as a marker of a transaction, or as something else."""
    try:
        marker = parse_marker(batch)
    except BatchError:
        return "unknown"
    kind = "commit" if marker.is_commit else "abort"
    return f"{kind}, coordinator epoch {marker.coordinator_epoch}"


def _describe_rest(header: bytes, size: int) -> str:
    if not header.strip(b"\0"):
        return f"{size} bytes that begin with zeros, and then are not: lost data"
    return f"{size} bytes that are not a complete batch"
