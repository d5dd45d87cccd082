"""kafka-python, which is pure Python; its producer has a thread of its own."""

from __future__ import annotations

from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from clients.job import (
    ANSWER_SECONDS,
    BATCH_BYTES,
    FETCH_BYTES,
    LINGER_MS,
    PARTITION_FETCH_BYTES,
    TAKEN,
    UNSEEN,
    Job,
)
from meter import Meter


def produce(**arguments: Any) -> dict[str, Any]:
    """Queue each record, and look at each receipt."""
    job = Job(**arguments)
    producer = KafkaProducer(
        bootstrap_servers=job.address,
        acks="all",
        enable_idempotence=True,
        linger_ms=LINGER_MS,
        batch_size=BATCH_BYTES,
        compression_type=None if job.codec == "none" else job.codec,
    )
    producer.send(job.topic, b"first").get(ANSWER_SECONDS)
    records, meter, count = job.records_to_send(), Meter(job.pid), 0
    unseen: list[Any] = []
    for key, value in records:
        unseen.append(producer.send(job.topic, value, key))
        if len(unseen) == UNSEEN:
            for future in unseen[: UNSEEN // 2]:
                count += future.get(ANSWER_SECONDS).offset >= 0
            del unseen[: UNSEEN // 2]
    for future in unseen:
        count += future.get(ANSWER_SECONDS).offset >= 0
    run = meter.stop(count)
    producer.close()
    return run


def consumer_of(job: Job) -> KafkaConsumer:
    """Give a consumer that joins no group and has found its broker."""
    consumer = KafkaConsumer(
        bootstrap_servers=job.address,
        auto_offset_reset="earliest",
        fetch_max_bytes=FETCH_BYTES,
        max_partition_fetch_bytes=PARTITION_FETCH_BYTES,
        max_poll_records=TAKEN,
    )
    consumer.partitions_for_topic(job.topic)
    return consumer


def places(job: Job) -> list[TopicPartition]:
    """Give all partitions."""
    return [TopicPartition(job.topic, number) for number in range(job.partitions)]


def records(**arguments: Any) -> dict[str, Any]:
    """Take one record after the other."""
    job = Job(**arguments)
    consumer = consumer_of(job)
    meter, count, size = Meter(job.pid), 0, 0
    consumer.assign(places(job))
    for record in consumer:
        size += len(record.value)
        count += 1
        if count == job.records:
            break
    run = meter.stop(count) | {"bytes": size}
    consumer.close()
    return run


def poll(**arguments: Any) -> dict[str, Any]:
    """Take lists, and look at each record."""
    job = Job(**arguments)
    consumer = consumer_of(job)
    meter, count, size = Meter(job.pid), 0, 0
    consumer.assign(places(job))
    while count < job.records:
        for batch in consumer.poll(1000, TAKEN).values():
            for record in batch:
                size += len(record.value)
            count += len(batch)
    run = meter.stop(count) | {"bytes": size}
    consumer.close()
    return run
