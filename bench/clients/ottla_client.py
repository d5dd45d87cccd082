"""The ottla client, async and sync."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from operator import methodcaller
from typing import Any

from clients.workload import (
    BATCH_BYTES,
    BUFFER_BYTES,
    FETCH_BYTES,
    FIRST_VALUE,
    LINGER_MS,
    MAX_POLL_RECORDS,
    PARTITION_FETCH_BYTES,
    Run,
    Workload,
    command,
    enqueue_async,
    enqueue_sync,
    read_async,
    read_sync,
    send_in_tasks,
)
from metrics import Meter
from ottla.client import (
    BatchConfig,
    Consumer,
    FetchConfig,
    Producer,
    ProducerRecord,
    TopicPartition,
    blocking,
)

FETCH_CONFIG = FetchConfig(max_bytes=FETCH_BYTES, partition_max_bytes=PARTITION_FETCH_BYTES)


def producer_config(load: Workload, linger_ms: int = LINGER_MS) -> dict[str, Any]:
    """Return the configs of a producer, which is idempotent with acks=all."""
    batch = BatchConfig(batch_bytes=BATCH_BYTES, linger=linger_ms / 1000, buffer_bytes=BUFFER_BYTES)
    return {"acks": "all", "compression": load.codec, "batch": batch}


def partitions_of(load: Workload) -> list[TopicPartition]:
    """Return all partitions."""
    return [TopicPartition(load.topic, number) for number in range(load.partitions)]


def records_for_send_many(load: Workload) -> Iterator[Any]:
    """Yield plain values, or records if there are keys."""
    if load.keyed:
        return (ProducerRecord(value, key) for key, value in load.pairs())
    return load.values()


@command
async def send_many(load: Workload) -> Run:
    """Send in bulk."""
    async with Producer(load.address, **producer_config(load)) as producer:
        await producer.send(load.topic, FIRST_VALUE)
        records, meter = records_for_send_many(load), Meter(load.pid)
        written = await producer.send_many(load.topic, records)
        return meter.stop(sum(part.record_count for part in written))


@command
async def enqueue(load: Workload) -> Run:
    """Enqueue each record."""
    async with Producer(load.address, **producer_config(load)) as producer:
        await producer.send(load.topic, FIRST_VALUE)
        return await enqueue_async(load, partial(producer.enqueue, load.topic))


@command
async def send(load: Workload) -> Run:
    """Send each record in a task of its own."""
    async with Producer(load.address, **producer_config(load, linger_ms=0)) as producer:
        await producer.send(load.topic, FIRST_VALUE)
        return await send_in_tasks(load, partial(producer.send, load.topic))


@command
def blocking_send_many(load: Workload) -> Run:
    """Send in bulk with the sync client."""
    with blocking.Producer(load.address, **producer_config(load)) as producer:
        producer.send(load.topic, FIRST_VALUE)
        records, meter = records_for_send_many(load), Meter(load.pid)
        written = producer.send_many(load.topic, records)
        return meter.stop(sum(part.record_count for part in written))


@command
def blocking_enqueue(load: Workload) -> Run:
    """Enqueue each record with the sync client."""
    with blocking.Producer(load.address, **producer_config(load)) as producer:
        producer.send(load.topic, FIRST_VALUE)
        return enqueue_sync(load, partial(producer.enqueue, load.topic), methodcaller("result"))


@command
async def records(load: Workload) -> Run:
    """Iterate over records."""
    async with Consumer(load.address, fetch=FETCH_CONFIG) as consumer:
        meter = Meter(load.pid)
        consumer.assign(partitions_of(load))
        return await read_async(load, meter, consumer)


@command
async def batches(load: Workload) -> Run:
    """Read lists of records."""
    async with Consumer(load.address, fetch=FETCH_CONFIG) as consumer:
        meter, count, size = Meter(load.pid), 0, 0
        consumer.assign(partitions_of(load))
        async for batch in consumer.batches(MAX_POLL_RECORDS):
            for record in batch:
                size += len(record.value)
            count += len(batch)
            if count >= load.records:
                break
        return meter.stop(count) | {"bytes": size}


@command
def blocking_records(load: Workload) -> Run:
    """Iterate over records with the sync client."""
    with blocking.Consumer(load.address, fetch=FETCH_CONFIG) as consumer:
        meter = Meter(load.pid)
        consumer.assign(partitions_of(load))
        return read_sync(load, meter, consumer)
