"""kafka-python: pure Python; its producer has a background thread."""

from __future__ import annotations

from functools import partial
from operator import methodcaller

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from clients.workload import (
    BATCH_BYTES,
    FETCH_BYTES,
    FIRST_VALUE,
    LINGER_MS,
    MAX_POLL_RECORDS,
    PARTITION_FETCH_BYTES,
    TIMEOUT_SECONDS,
    Run,
    Workload,
    command,
    enqueue_sync,
    read_sync,
)
from metrics import Meter


@command
def send(load: Workload) -> Run:
    """Enqueue each record."""
    producer = KafkaProducer(
        bootstrap_servers=load.address,
        acks="all",
        enable_idempotence=True,
        linger_ms=LINGER_MS,
        batch_size=BATCH_BYTES,
        compression_type=load.compression,
    )
    wait = methodcaller("get", TIMEOUT_SECONDS)
    wait(producer.send(load.topic, FIRST_VALUE))
    run = enqueue_sync(load, partial(producer.send, load.topic), wait)
    producer.close()
    return run


def start_consumer(load: Workload) -> tuple[KafkaConsumer, Meter]:
    """Return a consumer of all partitions, without a group, and a meter from its assignment on."""
    consumer = KafkaConsumer(
        bootstrap_servers=load.address,
        auto_offset_reset="earliest",
        fetch_max_bytes=FETCH_BYTES,
        max_partition_fetch_bytes=PARTITION_FETCH_BYTES,
        max_poll_records=MAX_POLL_RECORDS,
    )
    consumer.partitions_for_topic(load.topic)
    meter = Meter(load.pid)
    consumer.assign([TopicPartition(load.topic, number) for number in range(load.partitions)])
    return consumer, meter


@command
def records(load: Workload) -> Run:
    """Iterate over records."""
    consumer, meter = start_consumer(load)
    run = read_sync(load, meter, consumer)
    consumer.close()
    return run


@command
def poll(load: Workload) -> Run:
    """Read lists of records."""
    (consumer, meter), count, size = start_consumer(load), 0, 0
    while count < load.records:
        for batch in consumer.poll(1000, MAX_POLL_RECORDS).values():
            for record in batch:
                size += len(record.value)
            count += len(batch)
    run = meter.stop(count) | {"bytes": size}
    consumer.close()
    return run
