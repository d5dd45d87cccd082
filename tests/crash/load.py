"""Load that outlives brokers: producers and a reader that go on while one is killed and started.

The producers are librdkafka's, idempotent, acks=all. Each numbers what it sends to a partition, and
a record's value says who sent it, to which partition, and its number: whoever reads can tell what
is missing, twice or out of order.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

#: What is in a partition: the offset, who sent it, and its number.
Rows = list[tuple[int, int, int]]

_CLIENT: dict[str, Any] = {
    "log_level": 0,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 100,
    "topic.metadata.refresh.interval.ms": 1000,
    "metadata.recovery.strategy": "none",
}
_PRODUCER = _CLIENT | {
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 1,
    "batch.num.messages": 20,
    "message.timeout.ms": 120_000,
}
_CONSUMER = _CLIENT | {
    "group.id": "nobody",
    "enable.auto.commit": False,
    "check.crcs": True,
    "fetch.wait.max.ms": 50,
    "fetch.error.backoff.ms": 20,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
}
#: What a producer has under way at most, shared among partitions: one whose broker is away is not
#: to keep others from being sent to. It bounds how much there is to verify, too.
_UNDER_WAY = 150


class Producing:
    """One producer, in a thread of its own, until it is told to stop."""

    def __init__(self, address: str, topic: str, partitions: int, number: int) -> None:
        self.number = number
        #: By partition: how many were sent, and which of them were acked at which offset.
        self.sent: dict[int, int] = defaultdict(int)
        self.acked: dict[int, dict[int, int]] = defaultdict(dict)
        self.ack_count = 0
        self.longest_silence = 0.0
        self.problems: list[str] = []
        self._topic = topic
        self._partitions = partitions
        self._last_ack = time.monotonic()
        self._stopping = threading.Event()
        self._producer = Producer(
            _PRODUCER | {"bootstrap.servers": address, "error_cb": self._error}
        )
        self._thread = threading.Thread(target=self._run, name=f"producer {number}")
        self._thread.start()

    def stop(self) -> None:
        """Send no more, and wait for all acks."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        turn, most = 0, max(1, _UNDER_WAY // self._partitions)
        while not self._stopping.is_set():
            partition = turn % self._partitions
            turn += 1
            which = self.sent[partition]
            if which - len(self.acked[partition]) >= most:
                self._producer.poll(0.001)
                continue
            self.sent[partition] += 1
            value = f"{self.number} {partition} {which} ".encode() * (1 + which % 7)
            self._producer.produce(
                self._topic,
                value,
                partition=partition,
                on_delivery=lambda error, message, which=which: self._told(error, message, which),
            )
            self._producer.poll(0)
            time.sleep(0.0005)
        missing = self._producer.flush(60)
        if missing:
            self.problems.append(f"{missing} were never answered")

    def _told(self, error: KafkaError | None, message: Message, which: int) -> None:
        if error is not None:
            self.problems.append(f"{message.value()[:20]!r}: {error}")
            return
        now = time.monotonic()
        self.longest_silence = max(self.longest_silence, now - self._last_ack)
        self._last_ack = now
        self.acked[message.partition()][which] = message.offset()
        self.ack_count += 1

    def _error(self, error: KafkaError) -> None:
        # That the broker is away is no news; what is fatal is.
        if error.fatal():
            self.problems.append(f"fatal: {error}")


class Reading:
    """Reads along, from the start, in a thread of its own."""

    def __init__(self, address: str, topic: str, partitions: int) -> None:
        self.rows: dict[int, Rows] = {partition: [] for partition in range(partitions)}
        self.problems: list[str] = []
        self._stopping = threading.Event()
        self._consumer = consumer_of(address, topic, partitions)
        self._thread = threading.Thread(target=self._run, name="reader")
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                for message in self._consumer.consume(500, timeout=0.1):
                    if row := row_of(message):
                        self.rows[message.partition()].append(row)
        except AssertionError as problem:
            self.problems.append(str(problem))


def consumer_of(address: str, topic: str, partitions: int) -> Consumer:
    consumer = Consumer(_CONSUMER | {"bootstrap.servers": address})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    return consumer


def row_of(message: Message) -> tuple[int, int, int] | None:
    """Read a record. None for what is no record, and may be."""
    error = message.error()
    if error is not None:
        # A broker that is away is retried by itself.
        assert error.code() == KafkaError._PARTITION_EOF or error.retriable(), error
        return None
    value = message.value()
    number, partition, which = map(int, value.split()[:3])
    assert value == f"{number} {partition} {which} ".encode() * (1 + which % 7), value
    assert partition == message.partition(), value
    return message.offset(), number, which


def read_all(address: str, topic: str, partitions: int) -> dict[int, Rows]:
    """Read a topic from start to end, with a consumer that knows nothing of what was."""
    rows: dict[int, Rows] = {partition: [] for partition in range(partitions)}
    consumer = consumer_of(address, topic, partitions)
    try:
        ended: set[int] = set()
        deadline = time.monotonic() + 120
        while len(ended) < partitions:
            assert time.monotonic() < deadline, f"the end of {topic} was not reached"
            for message in consumer.consume(1000, timeout=0.1):
                if row := row_of(message):
                    rows[message.partition()].append(row)
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
    finally:
        consumer.close()
    return rows


@contextmanager
def producing(address: str, topic: str, partitions: int, count: int) -> Iterator[list[Producing]]:
    producers = [Producing(address, topic, partitions, number) for number in range(count)]
    try:
        yield producers
    finally:
        for producer in producers:
            producer._stopping.set()
        for producer in producers:
            producer.stop()


def wait_for_acks(producers: list[Producing]) -> None:
    """Wait until each has been answered since: so each kill meets all of them at work."""
    before = {producer.number: producer.ack_count for producer in producers}
    deadline = time.monotonic() + 30
    while any(producer.ack_count <= before[producer.number] + 5 for producer in producers):
        problems = [problem for producer in producers for problem in producer.problems]
        assert not problems, problems
        assert time.monotonic() < deadline, "no acks in thirty seconds"
        time.sleep(0.002)


def missing_of(producer: Producing, found: dict[int, Rows]) -> set[tuple[int, int]]:
    """Give what was acked and is not there, or not where the ack said."""
    return {
        (partition, which)
        for partition, acked in producer.acked.items()
        for which, offset in acked.items()
    } - {
        (partition, which)
        for partition, rows in found.items()
        for offset, number, which in rows
        if number == producer.number
        and producer.acked[partition].get(which, offset) in (offset, -1)
    }


def times_found(rows: Rows) -> Counter[tuple[int, int]]:
    return Counter((number, which) for _, number, which in rows)
