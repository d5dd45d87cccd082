"""Ours, with Arrow: apart, because pyarrow takes more memory than all else."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from clients.job import Job
from clients.sdk import in_loop, places, reading, sending
from meter import Meter
from ottla.client import Consumer, Producer

#: As many as Spark gives at a time.
_ROWS = 10_000


def batched(records: Iterator[Any], count: int) -> Iterator[list[Any]]:
    """Give lists of so many."""
    while some := list(islice(records, count)):
        yield some


@in_loop
async def send_arrow(job: Job) -> dict[str, Any]:
    """Send tables that are there already."""
    tables = []
    for some in batched(job.records_to_send(), _ROWS):
        keys, values = zip(*some, strict=True)
        columns = {"value": pa.array(values, pa.binary())}
        if job.keyed:
            columns["key"] = pa.array(keys, pa.binary())
        tables.append(pa.record_batch(columns))
    async with Producer(job.address, **sending(job)) as producer:
        await producer.send(job.topic, b"first")
        meter = Meter(job.pid)
        written = await producer.send_arrow(job.topic, tables)
        return meter.stop(sum(part.record_count for part in written))


@in_loop
async def arrow_batches(job: Job) -> dict[str, Any]:
    """Take tables, and look at the length of each value."""
    async with Consumer(job.address, **reading()) as consumer:
        meter, count, size = Meter(job.pid), 0, 0
        consumer.assign(places(job))
        async for table in consumer.arrow_batches():
            size += pc.sum(pc.binary_length(table.column("value"))).as_py()
            count += table.num_rows
            if count >= job.records:
                break
        return meter.stop(count) | {"bytes": size}
