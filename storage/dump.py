"""What is in a segment file, for people: one line for each batch, and for each record on request.

Reads the file alone, so that it works on a copy, and on one that no log would open: what is wrong
with a batch is said in its line, and what can be found behind it comes after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ottla.protocol.batch import HEADER_BYTES, LOG_OVERHEAD_BYTES, BatchError, Record, RecordBatch


@dataclass(frozen=True)
class DumpedBatch:
    """One batch: where it is, what its header says, and what is wrong with it, if anything is."""

    position: int
    size: int
    facts: dict[str, Any]
    records: list[Record]
    error: str | None = None


def dump(path: Path, *, records: bool = False) -> Iterator[DumpedBatch]:
    """Give the batches of a `.log` file one by one."""
    size = path.stat().st_size
    with path.open("rb") as file:
        position = 0
        while position < size:
            file.seek(position)
            head = file.read(LOG_OVERHEAD_BYTES)
            length = int.from_bytes(head[8:12], "big", signed=True) if len(head) == 12 else 0
            total = LOG_OVERHEAD_BYTES + length
            if not HEADER_BYTES <= total <= size - position:
                file.seek(position)
                rest = _describe_rest(file.read(HEADER_BYTES), size - position)
                yield DumpedBatch(position, size - position, {}, [], rest)
                return
            yield _batch(position, head + file.read(length), records=records)
            position += total


def _batch(position: int, data: bytes, *, records: bool) -> DumpedBatch:
    error: str | None = None
    facts: dict[str, Any] = {}
    decoded: list[Record] = []
    try:
        batch = RecordBatch(data)
        facts = {
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
        facts["compression"] = batch.compression.name.lower()
        if records:
            decoded = batch.records()
    except BatchError as problem:
        error = str(problem)
    return DumpedBatch(position, len(data), facts, decoded, error)


def _describe_rest(head: bytes, size: int) -> str:
    if not head.strip(b"\0"):
        return f"{size} bytes that were set aside for appends, or lost: zeros"
    return f"{size} bytes that are no whole batch"
