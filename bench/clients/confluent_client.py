"""confluent-kafka: librdkafka, which works in its own threads without the GIL."""

from __future__ import annotations

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from clients.workload import (
    BATCH_BYTES,
    BUFFER_BYTES,
    FETCH_BYTES,
    FIRST_VALUE,
    KIB,
    LINGER_MS,
    MAX_POLL_RECORDS,
    PARTITION_FETCH_BYTES,
    TIMEOUT_SECONDS,
    Run,
    Workload,
    command,
)
from metrics import Meter

QUIET = {"log_level": 2}


@command
def produce(load: Workload) -> Run:
    """Enqueue each record, with a delivery callback."""
    count = 0

    def on_delivery(error: object, message: Message) -> None:
        nonlocal count
        count += error is None and message.offset() >= 0

    producer = Producer(
        {
            "bootstrap.servers": load.address,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": LINGER_MS,
            "batch.size": BATCH_BYTES,
            "queue.buffering.max.kbytes": BUFFER_BYTES // KIB,
            "queue.buffering.max.messages": 1_000_000,
            "compression.type": load.codec,
            "partitioner": "murmur2_random",
            **QUIET,
        }
    )
    producer.produce(load.topic, FIRST_VALUE, on_delivery=on_delivery)
    producer.flush(TIMEOUT_SECONDS)
    records, meter, count = load.pairs(), Meter(load.pid), 0
    for number, (key, value) in enumerate(records):
        while True:
            try:
                producer.produce(load.topic, value, key, on_delivery=on_delivery)
                break
            except BufferError:
                producer.poll(0.01)
        if not number % MAX_POLL_RECORDS:
            producer.poll(0)
    unsent = producer.flush(TIMEOUT_SECONDS)
    run = meter.stop(count)
    assert not unsent, f"{unsent} records were not delivered in {TIMEOUT_SECONDS} s"
    return run


def start_consumer(load: Workload) -> tuple[Consumer, Meter]:
    """Return a consumer of all partitions, without a group, and a meter from its assignment on."""
    consumer = Consumer(
        {
            "bootstrap.servers": load.address,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.max.bytes": FETCH_BYTES,
            "max.partition.fetch.bytes": PARTITION_FETCH_BYTES,
            # The default of the other clients.
            "check.crcs": True,
            # With a full queue it would not fetch for a second.
            "queued.min.messages": 1_000_000,
            "fetch.queue.backoff.ms": 10,
            **QUIET,
        }
    )
    consumer.list_topics(load.topic, timeout=TIMEOUT_SECONDS)
    meter = Meter(load.pid)
    consumer.assign([TopicPartition(load.topic, number, 0) for number in range(load.partitions)])
    return consumer, meter


@command
def poll(load: Workload) -> Run:
    """Read one record at a time."""
    (consumer, meter), count, size = start_consumer(load), 0, 0
    while count < load.records:
        message = consumer.poll(1.0)
        if message is not None:
            assert message.error() is None, message.error()
            size += len(message.value())
            count += 1
    run = meter.stop(count) | {"bytes": size}
    consumer.close()
    return run


@command
def consume(load: Workload) -> Run:
    """Read lists of records."""
    (consumer, meter), count, size = start_consumer(load), 0, 0
    while count < load.records:
        for message in consumer.consume(min(MAX_POLL_RECORDS, load.records - count), 1.0):
            assert message.error() is None, message.error()
            size += len(message.value())
            count += 1
    run = meter.stop(count) | {"bytes": size}
    consumer.close()
    return run
