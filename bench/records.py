"""Record batches to bytes, to objects and to Arrow: compiled, in pure Python, and with aiokafka.

    python bench/records.py [--quick]

Batches of 1,000 records, 10,000 in all, uncompressed, as a producer builds them and a fetch returns
them; "one per batch" has a batch for each record. All three validate the CRC of what they read.
aiokafka's codec is compiled as well; it reaches Arrow through lists. Figures are records/s, the
best of several rounds taken in turns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import aiokafka.record.default_records as aio
import pyarrow as pa
from aiokafka.record.memory_records import MemoryRecords

from benchmark import best_seconds, command_line, progress, recording, run_parts
from ottla.client.arrow.decoder import ArrowDecoder
from ottla.protocol import compiled
from ottla.protocol.batch import Record, build_batch, split_batches

COUNT = 10_000
NOW_MS = 1_700_000_000_000
# A list, because aiokafka accepts no tuple.
HEADERS = [("trace", b"0123456789abcdef"), ("source", b"rides")]

#: Records per batch, bytes per value, headers.
SHAPES: dict[str, tuple[int, int, list[tuple[str, bytes]]]] = {
    "100 bytes": (1000, 100, []),
    "100 bytes, 2 headers": (1000, 100, HEADERS),
    "1,000 bytes": (1000, 1000, []),
    "100 bytes, one per batch": (1, 100, []),
}


def in_python(function: Callable[[], object]) -> Callable[[], object]:
    """Make a function run without the compiled module."""

    def call() -> object:
        fast, compiled.fast = compiled.fast, None
        try:
            return function()
        finally:
            compiled.fast = fast

    return call


def build_with_aiokafka(records: list[Record]) -> object:
    """Build one batch."""
    batch = aio.DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 30,
    )
    for n, record in enumerate(records):
        batch.append(n, record.timestamp, record.key, record.value, record.headers)
    return batch.build()


def read_with_aiokafka(wire: bytes) -> list[Any]:
    """Read all batches, as aiokafka's fetcher does."""
    batches = MemoryRecords(wire)
    records: list[Any] = []
    while batches.has_next():
        batch = batches.next_batch()
        assert batch.validate_crc()
        records += batch
    return records


def arrow_with_aiokafka(wire: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """Read all batches into Arrow columns."""
    rows = read_with_aiokafka(wire)
    columns = [
        pa.array([row.key for row in rows], pa.binary()),
        pa.array([row.value for row in rows], pa.binary()),
        pa.repeat("topic", len(rows)),
        pa.repeat(pa.scalar(0, pa.int32()), len(rows)),
        pa.array([row.offset for row in rows], pa.int64()),
        pa.array([row.timestamp for row in rows], schema.field("timestamp").type),
        pa.array([row.timestamp_type for row in rows], pa.int32()),
    ]
    if "headers" in schema.names:
        headers = [[{"key": key, "value": value} for key, value in row.headers] for row in rows]
        columns.append(pa.array(headers, schema.field("headers").type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def read(wire: bytes) -> list[list[Record]]:
    """Read and validate all batches."""
    records = []
    for batch in split_batches(wire):
        batch.validate()
        records.append(batch.records())
    return records


def tasks_of(shape: str) -> dict[str, dict[str, Callable[[], object]]]:
    """Return the measured functions, by task and contender."""
    batch_size, value_size, headers = SHAPES[shape]
    records = [
        Record(n, NOW_MS + n // 10, b"key-%05d" % n, bytes(value_size), headers)
        for n in range(COUNT)
    ]
    groups = [records[n : n + batch_size] for n in range(0, COUNT, batch_size)]
    wire = b"".join(build_batch(group) for group in groups)
    decoder = ArrowDecoder(headers=bool(headers))

    def build() -> object:
        return [build_batch(group) for group in groups]

    def decode() -> object:
        return read(wire)

    def to_arrow() -> list[pa.RecordBatch]:
        return list(decoder.decode(wire, topic="topic", partition=0))

    def aiokafka_to_arrow() -> list[pa.RecordBatch]:
        return [arrow_with_aiokafka(wire, decoder.schema)]

    assert to_arrow() == in_python(to_arrow)() == aiokafka_to_arrow()
    tasks: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "encode": (build, lambda: [build_with_aiokafka(group) for group in groups]),
        "decode": (decode, lambda: read_with_aiokafka(wire)),
        "to Arrow": (to_arrow, aiokafka_to_arrow),
    }
    return {
        task: {"compiled": ottla, "python": in_python(ottla), "aiokafka": aiokafka}
        for task, (ottla, aiokafka) in tasks.items()
    }


def bench_shapes(is_quick: bool) -> list[dict[str, Any]]:
    """Measure all shapes and tasks."""
    results = []
    for shape in SHAPES:
        for task, functions in tasks_of(shape).items():
            progress(f"{shape}: {task}")
            seconds = best_seconds(functions, is_quick=is_quick)
            rates = {name: COUNT / each for name, each in seconds.items()}
            results.append({"shape": shape, "task": task, **rates})
    return results


def main() -> None:
    """Measure all shapes."""
    options = command_line(__doc__, quick="five seconds instead of thirty").parse_args()
    if compiled.fast is None:
        raise SystemExit("The compiled module ottla.protocol._fast was not built")
    with recording("records", options) as results:
        run_parts("records", options, results, {"shapes": bench_shapes}, options.quick)


if __name__ == "__main__":
    main()
