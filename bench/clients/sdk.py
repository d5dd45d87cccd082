"""Ours, asynchronous and blocking."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from functools import wraps
from itertools import islice
from typing import Any

from clients.job import (
    BATCH_BYTES,
    BUFFER_BYTES,
    FETCH_BYTES,
    LINGER_MS,
    PARTITION_FETCH_BYTES,
    TAKEN,
    TASKS,
    UNSEEN,
    Job,
)
from meter import Meter
from ottla.client import (
    BatchConfig,
    Consumer,
    FetchConfig,
    Producer,
    ProducerRecord,
    TopicPartition,
)
from ottla.client import blocking as there


def in_loop(
    work: Callable[[Job], Coroutine[Any, Any, dict[str, Any]]],
) -> Callable[..., dict[str, Any]]:
    """Make something that the driver can call."""

    @wraps(work)
    def call(**job: Any) -> dict[str, Any]:
        return asyncio.run(work(Job(**job)))

    return call


def sending(job: Job) -> dict[str, Any]:
    """Give the settings of a producer, which is idempotent with acks=all."""
    batch = BatchConfig(batch_bytes=BATCH_BYTES, linger=LINGER_MS / 1000, buffer_bytes=BUFFER_BYTES)
    return {"acks": "all", "compression": job.codec, "batch": batch}


def reading() -> dict[str, Any]:
    """Give the settings of a consumer."""
    return {"fetch": FetchConfig(max_bytes=FETCH_BYTES, partition_max_bytes=PARTITION_FETCH_BYTES)}


def places(job: Job) -> list[TopicPartition]:
    """Give all partitions."""
    return [TopicPartition(job.topic, number) for number in range(job.partitions)]


def to_send(job: Job) -> Iterator[Any]:
    """Give what `send_many` takes."""
    if job.keyed:
        return (ProducerRecord(value, key) for key, value in job.records_to_send())
    return job.values()


# -- produce ---------------------------------------------------------------------------------------


@in_loop
async def send_many(job: Job) -> dict[str, Any]:
    """Send in bulk."""
    async with Producer(job.address, **sending(job)) as producer:
        await producer.send(job.topic, b"first")
        records, meter = to_send(job), Meter(job.pid)
        written = await producer.send_many(job.topic, records)
        return meter.stop(sum(part.record_count for part in written))


@in_loop
async def enqueue(job: Job) -> dict[str, Any]:
    """Queue each record, and look at each receipt."""
    async with Producer(job.address, **sending(job)) as producer:
        await producer.send(job.topic, b"first")
        records, meter, count = job.records_to_send(), Meter(job.pid), 0
        unseen: list[asyncio.Future[Any]] = []
        for key, value in records:
            unseen.append(await producer.enqueue(job.topic, value, key=key))
            if len(unseen) == UNSEEN:
                for future in unseen[: UNSEEN // 2]:
                    count += (await future).offset >= 0
                del unseen[: UNSEEN // 2]
        for future in unseen:
            count += (await future).offset >= 0
        return meter.stop(count)


@in_loop
async def send(job: Job) -> dict[str, Any]:
    """Send each record in a task of its own."""
    async with Producer(job.address, **sending(job)) as producer:
        await producer.send(job.topic, b"first")
        records, meter, count = job.records_to_send(), Meter(job.pid), 0
        while some := list(islice(records, TASKS)):
            tasks = (producer.send(job.topic, value, key=key) for key, value in some)
            count += sum(receipt.offset >= 0 for receipt in await asyncio.gather(*tasks))
        return meter.stop(count)


def blocking_send_many(**arguments: Any) -> dict[str, Any]:
    """Send in bulk from a thread that waits."""
    job = Job(**arguments)
    with there.Producer(job.address, **sending(job)) as producer:
        producer.send(job.topic, b"first")
        records, meter = to_send(job), Meter(job.pid)
        written = producer.send_many(job.topic, records)
        return meter.stop(sum(part.record_count for part in written))


def blocking_enqueue(**arguments: Any) -> dict[str, Any]:
    """Queue each record from a thread that waits, and look at each receipt."""
    job = Job(**arguments)
    with there.Producer(job.address, **sending(job)) as producer:
        producer.send(job.topic, b"first")
        records, meter, count = job.records_to_send(), Meter(job.pid), 0
        unseen: list[Future[Any]] = []
        for key, value in records:
            unseen.append(producer.enqueue(job.topic, value, key=key))
            if len(unseen) == UNSEEN:
                for future in unseen[: UNSEEN // 2]:
                    count += future.result().offset >= 0
                del unseen[: UNSEEN // 2]
        for future in unseen:
            count += future.result().offset >= 0
        return meter.stop(count)


# -- consume ---------------------------------------------------------------------------------------


@in_loop
async def records(job: Job) -> dict[str, Any]:
    """Take one record after the other."""
    async with Consumer(job.address, **reading()) as consumer:
        meter, count, size = Meter(job.pid), 0, 0
        consumer.assign(places(job))
        async for record in consumer:
            size += len(record.value)
            count += 1
            if count == job.records:
                break
        return meter.stop(count) | {"bytes": size}


@in_loop
async def batches(job: Job) -> dict[str, Any]:
    """Take lists, and look at each record."""
    async with Consumer(job.address, **reading()) as consumer:
        meter, count, size = Meter(job.pid), 0, 0
        consumer.assign(places(job))
        async for batch in consumer.batches(TAKEN):
            for record in batch:
                size += len(record.value)
            count += len(batch)
            if count >= job.records:
                break
        return meter.stop(count) | {"bytes": size}


def blocking_records(**arguments: Any) -> dict[str, Any]:
    """Take one record after the other in a thread that waits."""
    job = Job(**arguments)
    with there.Consumer(job.address, **reading()) as consumer:
        meter, count, size = Meter(job.pid), 0, 0
        consumer.assign(places(job))
        for record in consumer:
            size += len(record.value)
            count += 1
            if count == job.records:
                break
        return meter.stop(count) | {"bytes": size}
