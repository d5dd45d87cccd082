"""Ours, with Arrow: apart, because pyarrow takes more memory than all else."""

from __future__ import annotations

from typing import Any

import pyarrow.compute as pc

from clients.job import Job
from clients.sdk import in_loop, places, reading
from meter import Meter
from ottla.client import Consumer


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
