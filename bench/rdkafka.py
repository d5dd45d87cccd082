"""The work on whatever speaks the Kafka protocol, through confluent-kafka, which is librdkafka.

Where nothing else is said, the settings are librdkafka's own: batches of up to 1,000,000 bytes or
10,000 records, 5 ms of lingering, no compression, a partition that sticks for 10 ms, fetches of up
to 1 MiB a partition. Only the queues are longer, so that they are never what is waited for: a
consumer whose queue has 100,000 records would not fetch for a second (fetch.queue.backoff.ms).
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from meter import Meter

ANSWER_SECONDS = 60
#: Records that are handed over, and taken, in one call, at most; and bytes that are handed over.
BLOCK = 10_000
BLOCK_BYTES = 10 * 1024 * 1024
QUIET = {"log_level": 2}
QUEUE = {"queue.buffering.max.messages": 1_000_000, "queue.buffering.max.kbytes": 512 * 1024}
FETCHED = {"queued.min.messages": 10_000_000, "queued.max.messages.kbytes": 1024 * 1024}
#: Of a consumer that has all the time in the world.
SLOWLY = {"queued.max.messages.kbytes": 16 * 1024, "fetch.queue.backoff.ms": 10}
AT_ONCE = {"linger.ms": 0, "socket.nagle.disable": True}
ANY_PARTITION = -1
STATISTICS_MS = 100
#: What is left out at the start of a latency run, where connections are made and code warms up.
SETTLE_SECONDS = 1.0


# -- topics ----------------------------------------------------------------------------------------


def create_topic(
    address: str, topic: str, partitions: int, config: dict[str, str]
) -> dict[str, Any]:
    """Create a topic, and wait until all of its partitions have a leader."""
    admin = AdminClient({"bootstrap.servers": address, **QUIET})
    new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=config)
    admin.create_topics([new])[topic].result(ANSWER_SECONDS)
    deadline = time.monotonic() + ANSWER_SECONDS
    while True:
        found = admin.list_topics(topic, timeout=ANSWER_SECONDS).topics[topic].partitions
        if len(found) == partitions and all(each.leader >= 0 for each in found.values()):
            return {}
        assert time.monotonic() < deadline, f"{topic} has no leaders after {ANSWER_SECONDS} s"
        time.sleep(0.01)


def delete_topic(address: str, topic: str) -> dict[str, Any]:
    """Delete a topic, which makes room on the disk."""
    admin = AdminClient({"bootstrap.servers": address, **QUIET})
    admin.delete_topics([topic])[topic].result(ANSWER_SECONDS)
    return {}


def list_topics(address: str) -> dict[str, Any]:
    """Ask for everything, as tools do."""
    admin = AdminClient({"bootstrap.servers": address, **QUIET})
    start = time.perf_counter()
    found = admin.list_topics(timeout=ANSWER_SECONDS).topics.values()
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "partitions": sum(len(topic.partitions) for topic in found)}


def connect_producer(address: str, topic: str, settings: dict[str, Any]) -> Producer:
    """Give a producer that has found its broker."""
    producer = Producer({"bootstrap.servers": address, **QUEUE, **QUIET, **settings})
    producer.list_topics(topic, timeout=ANSWER_SECONDS)
    return producer


def connect_consumer(address: str, topic: str, settings: dict[str, Any]) -> Consumer:
    """Give a consumer, which joins no group, that has found its broker."""
    group = {"group.id": "bench", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": address, **group, **QUIET, **settings})
    consumer.list_topics(topic, timeout=ANSWER_SECONDS)
    return consumer


# -- throughput ------------------------------------------------------------------------------------


def fill(
    producer: Producer, topic: str, size: int, seconds: float, most: int, partition: int
) -> int:
    """Hand records over until time or records are up, and wait until the broker has them all."""
    value = b"x" * size
    block = [{"value": value} for _ in range(min(BLOCK, most, BLOCK_BYTES // size))]
    end, sent = time.perf_counter() + seconds, 0
    while time.perf_counter() < end and sent < most:
        queued = producer.produce_batch(topic, block, partition)
        sent += queued
        # When the queue is full, what came last was not taken.
        producer.poll(0 if queued == len(block) else 0.01)
    left = producer.flush(ANSWER_SECONDS)
    assert not left, f"{left} records were not delivered in {ANSWER_SECONDS} s"
    return sent


def produce(
    address: str,
    pid: int | list[int],
    topic: str,
    partitions: int,
    size: int,
    acks: str,
    seconds: float,
    most: int,
) -> dict[str, Any]:
    """Produce until time or records are up."""
    producer = connect_producer(address, topic, {"acks": acks})
    meter = Meter(pid)
    run = meter.stop(fill(producer, topic, size, seconds, most, ANY_PARTITION))
    # Instead of delivery reports, which would cost the client more than all the rest.
    consumer = connect_consumer(address, topic, {})
    ends = [
        consumer.get_watermark_offsets(TopicPartition(topic, number), ANSWER_SECONDS)[1]
        for number in range(partitions)
    ]
    consumer.close()
    assert sum(ends) == run["records"], f"{sum(ends)} of {run['records']} records are there"
    return run


def produce_to_mock(
    partitions: int, size: int, acks: str, seconds: float, most: int
) -> dict[str, Any]:
    """Produce to librdkafka's mock cluster, which lives in the client's own process.

    It cannot be told how many partitions a topic has (four), and keeps the last 5 MB of each.
    """
    producer = connect_producer("", "mock", {"acks": acks, "test.mock.num.brokers": 1})
    meter = Meter(None)
    partition = 0 if partitions == 1 else ANY_PARTITION
    return meter.stop(fill(producer, "mock", size, seconds, most, partition))


def take(consumer: Consumer, most: int) -> list[Message]:
    """Take records that have come, and wait if there are none."""
    messages: list[Message] = consumer.consume(most, ANSWER_SECONDS)
    if not messages:
        raise TimeoutError(f"no record came for {ANSWER_SECONDS} s")
    error = messages[0].error()
    if error is not None:
        raise KafkaException(error)
    return messages


def from_start(topic: str, partitions: int) -> list[TopicPartition]:
    """Give what a consumer of all partitions, from the first record on, is assigned."""
    return [TopicPartition(topic, number, 0) for number in range(partitions)]


def consume(
    address: str, pid: int | list[int], topic: str, partitions: int, records: int
) -> dict[str, Any]:
    """Consume all records of a topic."""
    consumer = connect_consumer(address, topic, FETCHED)
    meter, left = Meter(pid), records
    consumer.assign(from_start(topic, partitions))
    while left:
        left -= len(take(consumer, min(left, BLOCK)))
    run = meter.stop(records)
    consumer.close()
    return run


# -- single records --------------------------------------------------------------------------------


class Requests:
    """How many Produce requests a producer sent, as its own statistics say."""

    def __init__(self) -> None:
        self.settings = {"statistics.interval.ms": STATISTICS_MS, "stats_cb": self._take}
        self._count = 0
        self._reports = 0

    def count(self, producer: Producer) -> int:
        """Wait for statistics from after now."""
        enough = self._reports + 2
        while self._reports < enough:
            producer.poll(STATISTICS_MS / 1000)
        return self._count

    def _take(self, text: str) -> None:
        brokers = json.loads(text)["brokers"].values()
        self._count = sum(broker.get("req", {}).get("Produce", 0) for broker in brokers)
        self._reports += 1


def single(
    address: str, pid: int, topic: str, size: int, acks: str, seconds: float, on_their_way: int
) -> dict[str, Any]:
    """Produce one record with each request, with so many on their way."""
    requests, reported, failed = Requests(), 0, 0

    def report(error: object, _message: Message) -> None:
        nonlocal reported, failed
        reported += 1
        failed += error is not None

    settings = {"acks": acks, "batch.num.messages": 1, **AT_ONCE, **requests.settings}
    producer = connect_producer(address, topic, settings)
    value = b"x" * size
    meter, sent = Meter(pid), 0
    while meter.elapsed < seconds:
        producer.produce(topic, value, partition=0, on_delivery=report)
        sent += 1
        while sent - reported >= on_their_way:
            producer.poll(ANSWER_SECONDS)
    left = producer.flush(ANSWER_SECONDS)
    run = meter.stop(sent)
    assert not left + failed, f"{left + failed} of {sent} records were not delivered"
    return run | {"requests": requests.count(producer)}


# -- latency ---------------------------------------------------------------------------------------


class Latencies:
    """Seconds from a produce call to the delivery report, and to the consumer."""

    def __init__(self) -> None:
        self.delivered: dict[int, float] = {}
        self.consumed: dict[int, float] = {}
        self._sent: dict[int, float] = {}
        self._failed = 0

    def produce(self, producer: Producer, topic: str, number: int) -> None:
        """Send a record that says which it is."""

        def report(error: object, _message: Message) -> None:
            self.delivered[number] = time.perf_counter() - self._sent[number]
            self._failed += error is not None

        self._sent[number] = time.perf_counter()
        producer.produce(topic, b"%100d" % number, partition=0, on_delivery=report)

    def take(self, message: Message) -> None:
        """Note that a record has come."""
        now, value = time.perf_counter(), message.value()
        assert value is not None
        self.consumed[int(value)] = now - self._sent[int(value)]

    def result(self, first: int) -> dict[str, Any]:
        """Give the sorted latencies of all records but the first."""
        assert not self._failed, f"{self._failed} of {len(self._sent)} records were not delivered"
        return {
            name: sorted(seconds for number, seconds in found.items() if number >= first)
            for name, found in {"delivered": self.delivered, "consumed": self.consumed}.items()
        }


def latency(address: str, topic: str, acks: str, rate: int, seconds: float) -> dict[str, Any]:
    """Produce single records at a fixed rate, and say how long each took."""
    producer = connect_producer(address, topic, {"acks": acks, **AT_ONCE})
    consumer = connect_consumer(address, topic, {})
    latencies, settling = Latencies(), int(SETTLE_SECONDS * rate)
    total = settling + int(seconds * rate)
    deadline = time.monotonic() + SETTLE_SECONDS + seconds + ANSWER_SECONDS

    # Each in a thread that sleeps in librdkafka: poll() counts in milliseconds, and a client that
    # produced and polled in turn would be late for both.
    def take_reports() -> None:
        while len(latencies.delivered) < total and time.monotonic() < deadline:
            producer.poll(0.1)

    def take_records() -> None:
        while len(latencies.consumed) < total and time.monotonic() < deadline:
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                latencies.take(message)

    consumer.assign(from_start(topic, 1))
    threads = [threading.Thread(target=each) for each in (take_reports, take_records)]
    for thread in threads:
        thread.start()
    start = time.perf_counter()
    for number in range(total):
        time.sleep(max(0.0, start + number / rate - time.perf_counter()))
        latencies.produce(producer, topic, number)
    for thread in threads:
        thread.join()
    consumer.close()
    assert len(latencies.consumed) == total, f"{len(latencies.consumed)} of {total} records came"
    return latencies.result(settling)


# -- cold data -------------------------------------------------------------------------------------


def write_cold(address: str, topic: str, data: str, size: int, records: int) -> dict[str, Any]:
    """Fill a topic, and have the page cache forget its files."""
    producer = connect_producer(address, topic, {"acks": "1"})
    sent = fill(producer, topic, size, ANSWER_SECONDS, records, ANY_PARTITION)
    for path in Path(data).glob(f"{topic}-*/*"):
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)  # what the device does not have stays
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    return {"records": sent}


def replay(address: str, topic: str, records: int, seconds: float) -> dict[str, Any]:
    """Consume a topic from its start in a given time, or in what it takes if that is more.

    At a rate that all brokers can keep up with, so that all of them have the same to do.
    """
    consumer = connect_consumer(address, topic, SLOWLY)
    consumer.assign(from_start(topic, 1))
    start, taken = time.perf_counter(), 0
    step = max(1, records // 500)
    while taken < records:
        time.sleep(max(0.0, start + taken / records * seconds - time.perf_counter()))
        taken += len(take(consumer, min(step, records - taken)))
    elapsed = time.perf_counter() - start
    consumer.close()
    return {"records": taken, "seconds": elapsed}
