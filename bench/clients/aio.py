"""aiokafka, in the event loop that asyncio makes, as ours."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from clients.job import (
    BATCH_BYTES,
    FETCH_BYTES,
    LINGER_MS,
    PARTITION_FETCH_BYTES,
    TAKEN,
    TASKS,
    UNSEEN,
    Job,
)
from meter import Meter


def produce(**job: Any) -> dict[str, Any]:
    """Queue each record, and look at each receipt."""
    return asyncio.run(_produce(Job(**job)))


def producer_of(job: Job) -> AIOKafkaProducer:
    """Give a producer."""
    return AIOKafkaProducer(
        bootstrap_servers=job.address,
        acks="all",
        enable_idempotence=True,
        linger_ms=LINGER_MS,
        max_batch_size=BATCH_BYTES,
        compression_type=None if job.codec == "none" else job.codec,
    )


async def _produce(job: Job) -> dict[str, Any]:
    async with producer_of(job) as producer:
        await producer.send_and_wait(job.topic, b"first")
        records, meter, count = job.records_to_send(), Meter(job.pid), 0
        unseen: list[asyncio.Future[Any]] = []
        for key, value in records:
            unseen.append(await producer.send(job.topic, value, key))
            if len(unseen) == UNSEEN:
                for future in unseen[: UNSEEN // 2]:
                    count += (await future).offset >= 0
                del unseen[: UNSEEN // 2]
        for future in unseen:
            count += (await future).offset >= 0
        return meter.stop(count)


def produce_and_wait(**job: Any) -> dict[str, Any]:
    """Send each record in a task of its own."""
    return asyncio.run(_produce_and_wait(Job(**job)))


async def _produce_and_wait(job: Job) -> dict[str, Any]:
    async with producer_of(job) as producer:
        await producer.send_and_wait(job.topic, b"first")
        records, meter, count = job.records_to_send(), Meter(job.pid), 0
        while some := list(islice(records, TASKS)):
            tasks = (producer.send_and_wait(job.topic, value, key) for key, value in some)
            count += sum(receipt.offset >= 0 for receipt in await asyncio.gather(*tasks))
        return meter.stop(count)


def consumer_of(job: Job) -> AIOKafkaConsumer:
    """Give a consumer that joins no group."""
    return AIOKafkaConsumer(
        bootstrap_servers=job.address,
        auto_offset_reset="earliest",
        fetch_max_bytes=FETCH_BYTES,
        max_partition_fetch_bytes=PARTITION_FETCH_BYTES,
    )


def places(job: Job) -> list[TopicPartition]:
    """Give all partitions."""
    return [TopicPartition(job.topic, number) for number in range(job.partitions)]


def records(**job: Any) -> dict[str, Any]:
    """Take one record after the other."""
    return asyncio.run(_records(Job(**job)))


async def _records(job: Job) -> dict[str, Any]:
    async with consumer_of(job) as consumer:
        meter, count, size = Meter(job.pid), 0, 0
        consumer.assign(places(job))
        async for record in consumer:
            size += len(record.value)
            count += 1
            if count == job.records:
                break
        return meter.stop(count) | {"bytes": size}


def getmany(**job: Any) -> dict[str, Any]:
    """Take lists, and look at each record."""
    return asyncio.run(_getmany(Job(**job)))


async def _getmany(job: Job) -> dict[str, Any]:
    async with consumer_of(job) as consumer:
        meter, count, size = Meter(job.pid), 0, 0
        consumer.assign(places(job))
        while count < job.records:
            found = await consumer.getmany(timeout_ms=1000, max_records=TAKEN)
            for batch in found.values():
                for record in batch:
                    size += len(record.value)
                count += len(batch)
        return meter.stop(count) | {"bytes": size}
