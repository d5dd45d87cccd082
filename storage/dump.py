"""Dumps a segment file for people: its batches, and their records on request.

It reads only the `.log` file, so that it works on a copy, and on a file that no log would open: an
invalid batch is reported with its error, and the dump continues with the next batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ottla.protocol.batch import HEADER_BYTES, BatchError, Record, RecordBatch, batch_size


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
            if not HEADER_BYTES <= size <= file_size - position:
                error = _describe_rest(header, file_size - position)
                yield DumpedBatch(position, file_size - position, {}, [], error)
                return
            data = header + file.read(size - HEADER_BYTES)
            yield _dump_batch(position, data, records=records)
            position += size


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
        if records:
            decoded = batch.records()
    except BatchError as batch_error:
        error = str(batch_error)
    return DumpedBatch(position, len(data), header, decoded, error)


def _describe_rest(header: bytes, size: int) -> str:
    if not header.strip(b"\0"):
        return f"{size} bytes of zeros: space for appends, or lost data"
    return f"{size} bytes that are not a complete batch"
