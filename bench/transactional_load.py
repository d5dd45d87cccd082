"""Transactions on brokers that speak the Kafka protocol, through confluent-kafka (librdkafka).

librdkafka uses transaction.version 1: AddPartitionsToTxn, Produce and EndTxn for each transaction.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from metrics import Meter
from rdkafka import (
    NO_LINGER,
    QUIET,
    TIMEOUT_SECONDS,
    WARM_UP_SECONDS,
    Latencies,
    connect_admin,
    connect_consumer,
    from_beginning,
)

STATE_TOPIC = "__transaction_state"


def connect_transactional(address: str, transactional_id: str) -> Producer:
    """Return an initialized transactional producer."""
    config = {"bootstrap.servers": address, "transactional.id": transactional_id}
    producer = Producer({**config, **NO_LINGER, **QUIET})
    producer.init_transactions(TIMEOUT_SECONDS)
    return producer


def set_state_durability(address: str, durability: str) -> None:
    """Set the durability of ottla's transaction coordinator, whose topic is created first."""
    connect_transactional(address, "create-the-state-topic")
    entry = ConfigEntry("durability", durability, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, STATE_TOPIC, incremental_configs=[entry])
    admin = connect_admin(address)
    admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_SECONDS)


def commit_transactions(
    address: str,
    pid: int,
    topic: str,
    partitions: int,
    records: int,
    producers: int,
    seconds: float,
) -> dict[str, Any]:
    """Commit transactions one after another with each producer, and count them as records."""
    clients = [connect_transactional(address, f"{topic}-{number}") for number in range(producers)]
    counts = [0] * producers
    errors: list[BaseException] = []
    value = b"x" * 100

    def commit_until(number: int, end: float) -> None:
        producer, sent = clients[number], 0
        try:
            while time.perf_counter() < end:
                producer.begin_transaction()
                for _ in range(records):
                    producer.produce(topic, value, partition=sent % partitions)
                    sent += 1
                producer.commit_transaction(TIMEOUT_SECONDS)
                counts[number] += 1
        except BaseException as error:  # noqa: BLE001 - reported by the main thread
            errors.append(error)

    meter = Meter(pid)
    end = time.perf_counter() + seconds
    threads = [threading.Thread(target=commit_until, args=(n, end)) for n in range(producers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run = meter.stop(sum(counts))
    if errors:
        raise errors[0]
    return run


def committed_latency(
    address: str, topic: str, rate: int, interval: float, seconds: float
) -> dict[str, Any]:
    """Produce and commit at fixed rates; return the latencies to a read_committed consumer."""
    producer = connect_transactional(address, topic)
    consumer = connect_consumer(address, topic, {"isolation.level": "read_committed"})
    latencies, warm_up = Latencies(), int(WARM_UP_SECONDS * rate)
    total = warm_up + int(seconds * rate)
    deadline = time.monotonic() + WARM_UP_SECONDS + seconds + TIMEOUT_SECONDS
    consumer.assign(from_beginning(topic, 1))
    reader = threading.Thread(target=_read, args=(consumer, latencies, total, deadline))
    reader.start()
    start = time.perf_counter()
    next_commit = start + interval
    producer.begin_transaction()
    for number in range(total):
        time.sleep(max(0.0, start + number / rate - time.perf_counter()))
        latencies.produce(producer, topic, number)
        if time.perf_counter() >= next_commit:
            producer.commit_transaction(TIMEOUT_SECONDS)
            producer.begin_transaction()
            next_commit = time.perf_counter() + interval
    producer.commit_transaction(TIMEOUT_SECONDS)
    reader.join()
    consumer.close()
    received = len(latencies.consumed)
    assert received == total, f"{received} of {total} records were consumed"
    return latencies.result(warm_up)


def _read(consumer: Consumer, latencies: Latencies, total: int, deadline: float) -> None:
    while len(latencies.consumed) < total and time.monotonic() < deadline:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            latencies.consume(message)
