"""aiokafka, on asyncio's own event loop, like the ottla client."""

from __future__ import annotations

from functools import partial

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from clients.workload import (
    BATCH_BYTES,
    FETCH_BYTES,
    FIRST_VALUE,
    LINGER_MS,
    MAX_POLL_RECORDS,
    PARTITION_FETCH_BYTES,
    Run,
    Workload,
    command,
    enqueue_async,
    read_async,
    send_in_tasks,
)
from metrics import Meter


def producer_of(load: Workload, linger_ms: int = LINGER_MS) -> AIOKafkaProducer:
    """Return a producer."""
    return AIOKafkaProducer(
        bootstrap_servers=load.address,
        acks="all",
        enable_idempotence=True,
        linger_ms=linger_ms,
        max_batch_size=BATCH_BYTES,
        compression_type=load.compression,
    )


@command
async def send(load: Workload) -> Run:
    """Enqueue each record."""
    async with producer_of(load) as producer:
        await producer.send_and_wait(load.topic, FIRST_VALUE)
        return await enqueue_async(load, partial(producer.send, load.topic))


@command
async def send_and_wait(load: Workload) -> Run:
    """Send each record in a task of its own."""
    async with producer_of(load, linger_ms=0) as producer:
        await producer.send_and_wait(load.topic, FIRST_VALUE)
        return await send_in_tasks(load, partial(producer.send_and_wait, load.topic))


def consumer_of(load: Workload) -> AIOKafkaConsumer:
    """Return a consumer without a group."""
    return AIOKafkaConsumer(
        bootstrap_servers=load.address,
        auto_offset_reset="earliest",
        fetch_max_bytes=FETCH_BYTES,
        max_partition_fetch_bytes=PARTITION_FETCH_BYTES,
    )


def partitions_of(load: Workload) -> list[TopicPartition]:
    """Return all partitions."""
    return [TopicPartition(load.topic, number) for number in range(load.partitions)]


@command
async def records(load: Workload) -> Run:
    """Iterate over records."""
    async with consumer_of(load) as consumer:
        meter = Meter(load.pid)
        consumer.assign(partitions_of(load))
        return await read_async(load, meter, consumer)


@command
async def getmany(load: Workload) -> Run:
    """Read lists of records."""
    async with consumer_of(load) as consumer:
        meter, count, size = Meter(load.pid), 0, 0
        consumer.assign(partitions_of(load))
        while count < load.records:
            fetched = await consumer.getmany(timeout_ms=1000, max_records=MAX_POLL_RECORDS)
            for batch in fetched.values():
                for record in batch:
                    size += len(record.value)
                count += len(batch)
        return meter.stop(count) | {"bytes": size}
