"""confluent-kafka: librdkafka, which does its work in threads of its own, without the GIL."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from clients.job import (
    ANSWER_SECONDS,
    BATCH_BYTES,
    BUFFER_BYTES,
    FETCH_BYTES,
    KIB,
    LINGER_MS,
    PARTITION_FETCH_BYTES,
    TAKEN,
    Job,
)
from meter import Meter

QUIET = {"log_level": 2}


def produce(**arguments: Any) -> dict[str, Any]:
    """Queue each record, and take each delivery report."""
    job = Job(**arguments)
    count = 0

    def report(error: object, message: Message) -> None:
        nonlocal count
        count += error is None and message.offset() >= 0

    producer = Producer(
        {
            "bootstrap.servers": job.address,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": LINGER_MS,
            "batch.size": BATCH_BYTES,
            "queue.buffering.max.kbytes": BUFFER_BYTES // KIB,
            "queue.buffering.max.messages": 1_000_000,
            "compression.type": job.codec,
            "partitioner": "murmur2_random",
            **QUIET,
        }
    )
    producer.produce(job.topic, b"first", on_delivery=report)
    producer.flush(ANSWER_SECONDS)
    records, meter, count = job.records_to_send(), Meter(job.pid), 0
    for number, (key, value) in enumerate(records):
        while True:
            try:
                producer.produce(job.topic, value, key, on_delivery=report)
                break
            except BufferError:
                producer.poll(0.01)
        if not number % TAKEN:
            producer.poll(0)
    left = producer.flush(ANSWER_SECONDS)
    run = meter.stop(count)
    assert not left, f"{left} records were not delivered in {ANSWER_SECONDS} s"
    return run


def consumer_of(job: Job) -> Consumer:
    """Give a consumer that joins no group and has found its broker."""
    consumer = Consumer(
        {
            "bootstrap.servers": job.address,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.max.bytes": FETCH_BYTES,
            "max.partition.fetch.bytes": PARTITION_FETCH_BYTES,
            # The others do, unless they are told not to.
            "check.crcs": True,
            # A queue that is full would not be looked at for a second.
            "queued.min.messages": 1_000_000,
            "fetch.queue.backoff.ms": 10,
            **QUIET,
        }
    )
    consumer.list_topics(job.topic, timeout=ANSWER_SECONDS)
    return consumer


def from_start(job: Job) -> list[TopicPartition]:
    """Give all partitions, from their first record on."""
    return [TopicPartition(job.topic, number, 0) for number in range(job.partitions)]


def poll(**arguments: Any) -> dict[str, Any]:
    """Take one record after the other."""
    job = Job(**arguments)
    consumer = consumer_of(job)
    meter, count, size = Meter(job.pid), 0, 0
    consumer.assign(from_start(job))
    while count < job.records:
        message = consumer.poll(1.0)
        if message is not None:
            assert message.error() is None, message.error()
            size += len(message.value())
            count += 1
    run = meter.stop(count) | {"bytes": size}
    consumer.close()
    return run


def consume(**arguments: Any) -> dict[str, Any]:
    """Take lists, and look at each record."""
    job = Job(**arguments)
    consumer = consumer_of(job)
    meter, count, size = Meter(job.pid), 0, 0
    consumer.assign(from_start(job))
    while count < job.records:
        for message in consumer.consume(min(TAKEN, job.records - count), 1.0):
            assert message.error() is None, message.error()
            size += len(message.value())
            count += 1
    run = meter.stop(count) | {"bytes": size}
    consumer.close()
    return run
