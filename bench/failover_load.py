"""The load during a failover: a record to each partition at a fixed rate, through librdkafka.

The producer is idempotent and retries by itself, as an application's does: what counts is when the
records of a partition are acknowledged again.
"""

from __future__ import annotations

import os
import time
from typing import Any

from confluent_kafka import Message

from rdkafka import NO_LINGER, TIMEOUT_SECONDS, connect_admin, connect_producer

POLL_SECONDS = 0.02
#: A partition without an ack for so long is not served steadily.
SILENCE_SECONDS = 0.5


def replicas_of(address: str, topic: str) -> list[dict[str, Any]]:
    """Return the leader and the number of in-sync replicas of each partition."""
    admin = connect_admin(address)
    partitions: dict[int, Any] = {}
    while not partitions:  # Another broker may answer than the one that knew the new topic.
        partitions = admin.list_topics(topic, timeout=TIMEOUT_SECONDS).topics[topic].partitions
    return [
        {"leader": partitions[number].leader, "isr": len(partitions[number].isrs)}
        for number in sorted(partitions)
    ]


def wait_for_isrs(address: str, topic: str, count: int) -> float:
    """Wait until each partition has so many in-sync replicas; return the time."""
    admin, deadline = connect_admin(address), time.monotonic() + TIMEOUT_SECONDS
    while True:
        partitions = admin.list_topics(topic, timeout=TIMEOUT_SECONDS).topics[topic].partitions
        if partitions and all(
            len(each.isrs) == count and each.leader >= 0 for each in partitions.values()
        ):
            return time.monotonic()
        assert time.monotonic() < deadline, f"{topic} has fewer than {count} replicas in sync"
        time.sleep(POLL_SECONDS)


def produce_through_failover(
    address: str, topic: str, partitions: int, rate: int, pid: int, signal: int, seconds: float
) -> dict[str, Any]:
    """Send `rate` records per second to each partition, and a signal to a broker meanwhile.

    The signal is sent after `seconds` of acks for all partitions. The load ends when there was no
    longer silence for as long. Returns when each record was acknowledged, and the signal sent.
    """
    acknowledged: list[list[float]] = [[] for _ in range(partitions)]
    failed = 0

    def on_delivery(error: object, message: Message) -> None:
        nonlocal failed
        failed += error is not None
        partition = message.partition()
        assert partition is not None
        if error is None:
            acknowledged[partition].append(time.monotonic())

    config = {"acks": "all", "enable.idempotence": True, **NO_LINGER}
    producer = connect_producer(address, topic, config)
    start, number, signalled_at = time.monotonic(), 0, 0.0
    steady_since = start
    while (now := time.monotonic()) < start + TIMEOUT_SECONDS:
        for partition in range(partitions):
            producer.produce(topic, b"%100d" % number, partition=partition, on_delivery=on_delivery)
        number += 1
        producer.poll(0)
        if any(not times or now - times[-1] > SILENCE_SECONDS for times in acknowledged):
            steady_since = now
        if now > steady_since + seconds:
            if signalled_at:
                break
            signalled_at = steady_since = time.monotonic()
            os.kill(pid, signal)
        while time.monotonic() < start + number / rate:
            producer.poll(max(0.0, start + number / rate - time.monotonic()))
    failed += producer.flush(TIMEOUT_SECONDS)
    return {
        "acknowledged": acknowledged,
        "signalled_at": signalled_at,
        "failed": failed,
        "records": number * partitions,
    }
