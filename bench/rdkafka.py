"""The load on brokers that speak the Kafka protocol, through confluent-kafka (librdkafka).

Unless noted, configs are librdkafka's defaults: batches of up to 1,000,000 bytes or 10,000 records,
5 ms of linger, no compression, a sticky partition for 10 ms, fetches of up to 1 MiB per partition.
Only the queue of a producer is longer, and a consumer with 100,000 queued records looks for room
after a millisecond instead of a second, so that queues are never the bottleneck. (Without a limit,
a consumer spends a quarter of its time in page faults of new memory: the faster the broker, the
more.)
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from metrics import Meter

TIMEOUT_SECONDS = 60
#: Limits of one produce_batch or consume call.
MAX_CALL_RECORDS = 10_000
MAX_CALL_BYTES = 10 * 1024 * 1024
QUIET = {"log_level": 2}
#: Of all clients from now on: see `use`.
SECURITY: dict[str, str] = {}
PRODUCER_QUEUE = {
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 512 * 1024,
}
CONSUMER_QUEUE = {"fetch.queue.backoff.ms": 1}
#: For a consumer that reads at a limited rate.
SHORT_CONSUMER_QUEUE = {"queued.max.messages.kbytes": 16 * 1024, "fetch.queue.backoff.ms": 10}
NO_LINGER = {"linger.ms": 0, "socket.nagle.disable": True}
ANY_PARTITION = -1
STATISTICS_MS = 100
#: The start of a latency run, which connects and warms up, is not measured.
WARM_UP_SECONDS = 1.0


def use(configs: dict[str, str]) -> None:
    """Connect with these configs from now on: security.protocol and the like."""
    SECURITY.clear()
    SECURITY.update(configs)


# -- topics ----------------------------------------------------------------------------------------


def connect_admin(address: str) -> AdminClient:
    """Return an admin client."""
    return AdminClient({"bootstrap.servers": address, **QUIET, **SECURITY})


def create_topic(
    address: str,
    topic: str,
    partitions: int,
    config: dict[str, str],
    replication_factor: int = 1,
) -> None:
    """Create a topic, and wait until all of its partitions have a leader."""
    admin = connect_admin(address)
    new = NewTopic(
        topic, num_partitions=partitions, replication_factor=replication_factor, config=config
    )
    admin.create_topics([new])[topic].result(TIMEOUT_SECONDS)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        found = admin.list_topics(topic, timeout=TIMEOUT_SECONDS).topics[topic].partitions
        if len(found) == partitions and all(each.leader >= 0 for each in found.values()):
            return
        assert time.monotonic() < deadline, f"{topic} has no leaders after {TIMEOUT_SECONDS} s"
        time.sleep(0.01)


def delete_topic(address: str, topic: str) -> None:
    """Delete a topic to free its disk space."""
    admin = connect_admin(address)
    admin.delete_topics([topic])[topic].result(TIMEOUT_SECONDS)


def create_acls(address: str, count: int) -> None:
    """Create ACLs of users that do not exist."""
    bindings = [
        AclBinding(
            ResourceType.TOPIC,
            f"topic-{number}",
            ResourcePatternType.LITERAL,
            f"User:{number}",
            "*",
            AclOperation.WRITE,
            AclPermissionType.ALLOW,
        )
        for number in range(count)
    ]
    admin = connect_admin(address)
    for created in admin.create_acls(bindings).values():
        created.result(TIMEOUT_SECONDS)


def list_topics(address: str) -> dict[str, Any]:
    """Request the metadata of all topics, as tools do."""
    admin = connect_admin(address)
    start = time.perf_counter()
    topics = admin.list_topics(timeout=TIMEOUT_SECONDS).topics.values()
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "partitions": sum(len(topic.partitions) for topic in topics)}


def connect_producer(address: str, topic: str, config: dict[str, Any]) -> Producer:
    """Return a producer that is connected to its broker."""
    common = {"bootstrap.servers": address, **QUIET, **SECURITY}
    producer = Producer({**common, **PRODUCER_QUEUE, **config})
    producer.list_topics(topic, timeout=TIMEOUT_SECONDS)
    return producer


def connect_consumer(address: str, topic: str, config: dict[str, Any]) -> Consumer:
    """Return a consumer that is connected to its broker; it joins no group."""
    group = {"group.id": "bench", "enable.auto.commit": False}
    common = {"bootstrap.servers": address, **QUIET, **SECURITY}
    consumer = Consumer({**common, **group, **config})
    consumer.list_topics(topic, timeout=TIMEOUT_SECONDS)
    return consumer


# -- throughput ------------------------------------------------------------------------------------


def fill(
    producer: Producer, topic: str, size: int, seconds: float, max_records: int, partition: int
) -> int:
    """Produce until the time or the records are used up, and flush; return the record count."""
    value = b"x" * size
    count = min(MAX_CALL_RECORDS, max_records, MAX_CALL_BYTES // size)
    batch = [{"value": value} for _ in range(count)]
    end, sent = time.perf_counter() + seconds, 0
    while time.perf_counter() < end and sent < max_records:
        queued = producer.produce_batch(topic, batch, partition)
        sent += queued
        # With a full queue, the last records of the batch were rejected.
        producer.poll(0 if queued == len(batch) else 0.01)
    unsent = producer.flush(TIMEOUT_SECONDS)
    assert not unsent, f"{unsent} records were not delivered in {TIMEOUT_SECONDS} s"
    return sent


def produce(
    address: str,
    pid: int | list[int],
    topic: str,
    partitions: int,
    size: int,
    acks: str,
    seconds: float,
    max_records: int,
) -> dict[str, Any]:
    """Produce until the time or the records are used up."""
    producer = connect_producer(address, topic, {"acks": acks})
    meter = Meter(pid)
    run = meter.stop(fill(producer, topic, size, seconds, max_records, ANY_PARTITION))
    # Count on the broker: delivery reports would cost the client more than all the rest.
    consumer = connect_consumer(address, topic, {})
    count = sum(
        consumer.get_watermark_offsets(TopicPartition(topic, number), TIMEOUT_SECONDS)[1]
        for number in range(partitions)
    )
    consumer.close()
    assert count == run["records"], f"the broker has {count} of {run['records']} records"
    return run


def produce_to_mock(
    partitions: int, size: int, acks: str, seconds: float, max_records: int
) -> dict[str, Any]:
    """Produce to librdkafka's mock cluster, which runs inside the client process.

    Its topics always have four partitions, and it keeps the last 5 MB of each.
    """
    producer = connect_producer("", "mock", {"acks": acks, "test.mock.num.brokers": 1})
    meter = Meter(None)
    partition = 0 if partitions == 1 else ANY_PARTITION
    return meter.stop(fill(producer, "mock", size, seconds, max_records, partition))


def receive(consumer: Consumer, max_records: int) -> list[Message]:
    """Return the next records, at least one."""
    messages: list[Message] = consumer.consume(max_records, TIMEOUT_SECONDS)
    if not messages:
        raise TimeoutError(f"no record arrived in {TIMEOUT_SECONDS} s")
    if (error := messages[0].error()) is not None:
        raise KafkaException(error)
    return messages


def from_beginning(topic: str, partitions: int) -> list[TopicPartition]:
    """Return an assignment of all partitions from offset 0."""
    return [TopicPartition(topic, number, 0) for number in range(partitions)]


def consume(
    address: str, pid: int | list[int], topic: str, partitions: int, records: int
) -> dict[str, Any]:
    """Consume all records of a topic."""
    consumer = connect_consumer(address, topic, CONSUMER_QUEUE)
    meter, remaining = Meter(pid), records
    consumer.assign(from_beginning(topic, partitions))
    while remaining:
        remaining -= len(receive(consumer, min(remaining, MAX_CALL_RECORDS)))
    run = meter.stop(records)
    consumer.close()
    return run


# -- single records --------------------------------------------------------------------------------


class RequestCounter:
    """The number of Produce requests of a producer, from its statistics."""

    def __init__(self) -> None:
        self.config = {"statistics.interval.ms": STATISTICS_MS, "stats_cb": self._update}
        self._count = 0
        self._reports = 0

    def count(self, producer: Producer) -> int:
        """Wait for fresh statistics, and return the count."""
        last = self._reports + 2
        while self._reports < last:
            producer.poll(STATISTICS_MS / 1000)
        return self._count

    def _update(self, text: str) -> None:
        brokers = json.loads(text)["brokers"].values()
        self._count = sum(broker.get("req", {}).get("Produce", 0) for broker in brokers)
        self._reports += 1


def single(
    address: str, pid: int, topic: str, size: int, acks: str, seconds: float, in_flight: int
) -> dict[str, Any]:
    """Produce one record per request, with a fixed number of requests in flight."""
    requests, reported, failed = RequestCounter(), 0, 0

    def on_delivery(error: object, _message: Message) -> None:
        nonlocal reported, failed
        reported += 1
        failed += error is not None

    config = {"acks": acks, "batch.num.messages": 1, **NO_LINGER, **requests.config}
    producer = connect_producer(address, topic, config)
    value = b"x" * size
    meter, sent = Meter(pid), 0
    while meter.elapsed < seconds:
        producer.produce(topic, value, partition=0, on_delivery=on_delivery)
        sent += 1
        while sent - reported >= in_flight:
            producer.poll(TIMEOUT_SECONDS)
    failed += producer.flush(TIMEOUT_SECONDS)
    run = meter.stop(sent)
    assert not failed, f"{failed} of {sent} records were not delivered"
    return run | {"requests": requests.count(producer)}


# -- latency ---------------------------------------------------------------------------------------


class Latencies:
    """Seconds from a produce call to the delivery report, and to the consumer, by record."""

    def __init__(self) -> None:
        self.delivered: dict[int, float] = {}
        self.consumed: dict[int, float] = {}
        self._sent: dict[int, float] = {}
        self._failed = 0

    def produce(self, producer: Producer, topic: str, number: int) -> None:
        """Send a record whose value is its number."""

        def on_delivery(error: object, _message: Message) -> None:
            self.delivered[number] = time.perf_counter() - self._sent[number]
            self._failed += error is not None

        self._sent[number] = time.perf_counter()
        producer.produce(topic, b"%100d" % number, partition=0, on_delivery=on_delivery)

    def consume(self, message: Message) -> None:
        """Record the arrival of a record."""
        now, value = time.perf_counter(), message.value()
        assert value is not None
        self.consumed[int(value)] = now - self._sent[int(value)]

    def result(self, first: int) -> dict[str, Any]:
        """Return the sorted latencies of all records from the given number on."""
        assert not self._failed, f"{self._failed} of {len(self._sent)} records were not delivered"
        return {
            name: sorted(seconds for number, seconds in found.items() if number >= first)
            for name, found in {"delivered": self.delivered, "consumed": self.consumed}.items()
        }


def latency(address: str, topic: str, acks: str, rate: int, seconds: float) -> dict[str, Any]:
    """Produce single records at a fixed rate, and return the latency of each one."""
    producer = connect_producer(address, topic, {"acks": acks, **NO_LINGER})
    consumer = connect_consumer(address, topic, {})
    latencies, warm_up = Latencies(), int(WARM_UP_SECONDS * rate)
    total = warm_up + int(seconds * rate)
    deadline = time.monotonic() + WARM_UP_SECONDS + seconds + TIMEOUT_SECONDS

    # Threads that sleep in librdkafka: poll() has a resolution of milliseconds, so a client that
    # alternated between produce and poll would be late for both.
    def poll_reports() -> None:
        while len(latencies.delivered) < total and time.monotonic() < deadline:
            producer.poll(0.1)

    def poll_records() -> None:
        while len(latencies.consumed) < total and time.monotonic() < deadline:
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                latencies.consume(message)

    consumer.assign(from_beginning(topic, 1))
    threads = [threading.Thread(target=target) for target in (poll_reports, poll_records)]
    for thread in threads:
        thread.start()
    start = time.perf_counter()
    for number in range(total):
        time.sleep(max(0.0, start + number / rate - time.perf_counter()))
        latencies.produce(producer, topic, number)
    for thread in threads:
        thread.join()
    consumer.close()
    received = len(latencies.consumed)
    assert received == total, f"{received} of {total} records were consumed"
    return latencies.result(warm_up)


# -- cold data -------------------------------------------------------------------------------------


def write_cold(address: str, topic: str, data: str, size: int, records: int) -> None:
    """Fill a topic, and drop its files from the page cache."""
    producer = connect_producer(address, topic, {"acks": "1"})
    fill(producer, topic, size, TIMEOUT_SECONDS, records, ANY_PARTITION)
    for path in Path(data).glob(f"{topic}-*/*"):
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)  # dirty pages cannot be dropped
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def replay(address: str, topic: str, records: int, seconds: float) -> None:
    """Consume a topic from its start, evenly spread over the given time.

    The rate is one that all brokers can sustain, so that all have the same load.
    """
    consumer = connect_consumer(address, topic, SHORT_CONSUMER_QUEUE)
    consumer.assign(from_beginning(topic, 1))
    start, count = time.perf_counter(), 0
    step = max(1, records // 500)
    while count < records:
        time.sleep(max(0.0, start + count / records * seconds - time.perf_counter()))
        count += len(receive(consumer, min(step, records - count)))
    consumer.close()
