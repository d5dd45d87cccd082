"""The ottla client with Arrow: a module of its own, because pyarrow dominates the memory."""

from __future__ import annotations

from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc

from clients.ottla_client import FETCH_CONFIG, partitions_of, producer_config
from clients.workload import FIRST_VALUE, Run, Workload, command
from metrics import Meter
from ottla.client import Consumer, Producer

#: As in an Arrow batch of Spark.
BATCH_ROWS = 10_000


@command
async def send_arrow(load: Workload) -> Run:
    """Send record batches that were built before."""
    tables, pairs = [], load.pairs()
    while rows := list(islice(pairs, BATCH_ROWS)):
        keys, values = zip(*rows, strict=True)
        columns = {"value": pa.array(values, pa.binary())}
        if load.keyed:
            columns["key"] = pa.array(keys, pa.binary())
        tables.append(pa.record_batch(columns))
    async with Producer(load.address, **producer_config(load)) as producer:
        await producer.send(load.topic, FIRST_VALUE)
        meter = Meter(load.pid)
        written = await producer.send_arrow(load.topic, tables)
        return meter.stop(sum(part.record_count for part in written))


@command
async def arrow_batches(load: Workload) -> Run:
    """Read record batches, and sum up the lengths of values."""
    async with Consumer(load.address, fetch=FETCH_CONFIG) as consumer:
        meter, count, size = Meter(load.pid), 0, 0
        consumer.assign(partitions_of(load))
        async for table in consumer.arrow_batches():
            size += pc.sum(pc.binary_length(table.column("value"))).as_py()
            count += table.num_rows
            if count >= load.records:
                break
        return meter.stop(count) | {"bytes": size}
