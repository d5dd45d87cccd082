"""A group member as a process: consumes, logs what it received, commits, logs that it did.

    python member.py CLIENT CONFIG

CLIENT is confluent, kafka-python, aiokafka or ottla; CONFIG is JSON, see `Config`. Member.java and
member.js do the same with other clients. Events go to a file that all members of a group share.
Each is one write in append mode, so that their order is the real order, and SIGKILL loses none:

    a assigned 0,1,2
    a received 1 17 value
    a committing 1 18
    a committed 1 18
    a failed 22
    a revoked 0,1,2
    a left

On SIGTERM it leaves the group.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Any


class Config:
    """The configuration of a member."""

    def __init__(self, text: str) -> None:
        config = json.loads(text)
        self.name: str = config["name"]
        self.bootstrap: str = config["bootstrap"]
        self.group: str = config["group"]
        self.topic: str = config["topic"]
        self.events: str = config["events"]
        #: Of range, roundrobin, sticky and cooperative-sticky.
        self.assignors: list[str] = config["assignors"]
        self.instance: str | None = config["instance"]
        self.session_ms: int = config["session_ms"]
        self.heartbeat_ms: int = config["heartbeat_ms"]
        self.rebalance_ms: int = config["rebalance_ms"]
        #: classic or consumer; the latter only with confluent.
        self.protocol: str = config["protocol"]
        self.regex: str | None = config["regex"]
        #: How many members the process has: a-0, a-1 and so on. Only with confluent.
        self.count: int = config["count"]


class EventWriter:
    """Appends to the event log of the group."""

    def __init__(self, config: Config) -> None:
        self._name = config.name
        self._file = os.open(config.events, os.O_WRONLY | os.O_APPEND)

    def write(self, event: str, *words: object) -> None:
        line = " ".join(map(str, (self._name, event, *words)))
        os.write(self._file, line.encode() + b"\n")

    def write_partitions(self, event: str, partitions: Iterable[Any]) -> None:
        self.write(event, ",".join(map(str, sorted(p.partition for p in partitions))))

    def write_offsets(self, event: str, offsets: dict[int, int]) -> None:
        for partition, offset in offsets.items():
            self.write(event, partition, offset)

    def write_received(self, records: Iterable[tuple[int, int, bytes]]) -> dict[int, int]:
        """Write received records; return the next offset of each partition."""
        next_offsets: dict[int, int] = {}
        lines = []
        for partition, offset, value in records:
            next_offsets[partition] = offset + 1
            lines.append(f"{self._name} received {partition} {offset} {value.decode()}\n")
        if lines:
            os.write(self._file, "".join(lines).encode())
        return next_offsets


class CommitError(Exception):
    """A commit failed; the argument is the error code or its name."""


class Confluent:
    """confluent-kafka."""

    def __init__(self, config: Config, events: EventWriter) -> None:
        from confluent_kafka import Consumer  # noqa: PLC0415

        self._topic = config.topic
        classic = {
            "partition.assignment.strategy": ",".join(config.assignors),
            "session.timeout.ms": config.session_ms,
            "heartbeat.interval.ms": config.heartbeat_ms,
        }
        is_classic = config.protocol == "classic"
        self._consumer = Consumer(
            {
                "bootstrap.servers": config.bootstrap,
                "group.id": config.group,
                "client.id": config.name,
                "max.poll.interval.ms": max(config.rebalance_ms, config.session_ms),
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 100,
                "reconnect.backoff.ms": 50,
                "reconnect.backoff.max.ms": 250,
                "retry.backoff.ms": 50,
                "retry.backoff.max.ms": 250,
                "log_level": 0,
            }
            | (classic if is_classic else {"group.protocol": "consumer"})
            | ({"group.instance.id": config.instance} if config.instance else {})
        )
        self._consumer.subscribe(
            [config.regex or config.topic],
            on_assign=lambda _c, partitions: events.write_partitions("assigned", partitions),
            on_revoke=lambda _c, partitions: events.write_partitions("revoked", partitions),
            on_lost=lambda _c, partitions: events.write_partitions("lost", partitions),
        )

    def poll(self) -> Iterator[tuple[int, int, bytes]]:
        for message in self._consumer.consume(100, timeout=0.1):
            if message.error() is None:
                yield message.partition(), message.offset(), message.value()

    def commit(self, offsets: dict[int, int]) -> None:
        from confluent_kafka import KafkaException, TopicPartition  # noqa: PLC0415

        partitions = [TopicPartition(self._topic, *row) for row in offsets.items()]
        try:
            self._consumer.commit(offsets=partitions, asynchronous=False)
        except KafkaException as error:
            raise CommitError(error.args[0].code()) from None

    def close(self) -> None:
        self._consumer.close()


class KafkaPython:
    """kafka-python."""

    def __init__(self, config: Config, events: EventWriter) -> None:
        from kafka import ConsumerRebalanceListener, KafkaConsumer  # noqa: PLC0415
        from kafka.coordinator.assignors.cooperative_sticky import (  # noqa: PLC0415
            CooperativeStickyAssignor,
        )
        from kafka.coordinator.assignors.range import RangePartitionAssignor  # noqa: PLC0415
        from kafka.coordinator.assignors.roundrobin import (  # noqa: PLC0415
            RoundRobinPartitionAssignor,
        )
        from kafka.coordinator.assignors.sticky.sticky_assignor import (  # noqa: PLC0415
            StickyPartitionAssignor,
        )

        class Listener(ConsumerRebalanceListener):
            def on_partitions_assigned(self, assigned: Any) -> None:
                events.write_partitions("assigned", assigned)

            def on_partitions_revoked(self, revoked: Any) -> None:
                events.write_partitions("revoked", revoked)

            def on_partitions_lost(self, lost: Any) -> None:
                events.write_partitions("lost", lost)

        assignors = {
            "range": RangePartitionAssignor,
            "roundrobin": RoundRobinPartitionAssignor,
            "sticky": StickyPartitionAssignor,
            "cooperative-sticky": CooperativeStickyAssignor,
        }
        self._topic = config.topic
        self._consumer = KafkaConsumer(
            bootstrap_servers=config.bootstrap,
            group_id=config.group,
            client_id=config.name,
            group_instance_id=config.instance,
            partition_assignment_strategy=[assignors[name] for name in config.assignors],
            session_timeout_ms=config.session_ms,
            heartbeat_interval_ms=config.heartbeat_ms,
            max_poll_interval_ms=config.rebalance_ms,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=100,
            reconnect_backoff_ms=50,
            reconnect_backoff_max_ms=250,
            retry_backoff_ms=50,
        )
        self._consumer.subscribe([config.topic], listener=Listener())

    def poll(self) -> Iterator[tuple[int, int, bytes]]:
        from kafka.errors import KafkaConnectionError  # noqa: PLC0415

        # A poll that ends before the response to JoinGroup makes it join again.
        timeout_ms = 1000 if self._consumer.assignment() else 10_000
        try:
            polled = self._consumer.poll(timeout_ms=timeout_ms, max_records=100)
        except KafkaConnectionError:
            return  # it leaves retries to the application
        for partition, records in polled.items():
            for record in records:
                yield partition.partition, record.offset, record.value

    def commit(self, offsets: dict[int, int]) -> None:
        from kafka import OffsetAndMetadata, TopicPartition  # noqa: PLC0415
        from kafka.errors import KafkaError  # noqa: PLC0415

        try:
            self._consumer.commit(
                {
                    TopicPartition(self._topic, partition): OffsetAndMetadata(offset, "", -1)
                    for partition, offset in offsets.items()
                }
            )
        except KafkaError as error:
            raise CommitError(getattr(error, "errno", type(error).__name__)) from None

    def close(self) -> None:
        self._consumer.close()


class Aiokafka:
    """aiokafka. Its loop runs in `poll`, which is nearly always."""

    def __init__(self, config: Config, events: EventWriter) -> None:
        from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener  # noqa: PLC0415
        from aiokafka.coordinator.assignors.range import RangePartitionAssignor  # noqa: PLC0415
        from aiokafka.coordinator.assignors.roundrobin import (  # noqa: PLC0415
            RoundRobinPartitionAssignor,
        )
        from aiokafka.coordinator.assignors.sticky.sticky_assignor import (  # noqa: PLC0415
            StickyPartitionAssignor,
        )

        class Listener(ConsumerRebalanceListener):
            def on_partitions_assigned(self, assigned: Any) -> None:
                events.write_partitions("assigned", assigned)

            def on_partitions_revoked(self, revoked: Any) -> None:
                events.write_partitions("revoked", revoked)

        assignors = {
            "range": RangePartitionAssignor,
            "roundrobin": RoundRobinPartitionAssignor,
            "sticky": StickyPartitionAssignor,
        }

        async def start() -> AIOKafkaConsumer:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=config.bootstrap,
                group_id=config.group,
                client_id=config.name,
                group_instance_id=config.instance,
                partition_assignment_strategy=[assignors[name] for name in config.assignors],
                session_timeout_ms=config.session_ms,
                heartbeat_interval_ms=config.heartbeat_ms,
                rebalance_timeout_ms=config.rebalance_ms,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                fetch_max_wait_ms=100,
                retry_backoff_ms=50,
            )
            consumer.subscribe([config.topic], listener=Listener())
            await consumer.start()
            return consumer

        self._topic = config.topic
        self._loop = asyncio.new_event_loop()
        self._consumer = self._loop.run_until_complete(start())

    def poll(self) -> Iterator[tuple[int, int, bytes]]:
        polled = self._loop.run_until_complete(
            self._consumer.getmany(timeout_ms=100, max_records=100)
        )
        for partition, records in polled.items():
            for record in records:
                yield partition.partition, record.offset, record.value

    def commit(self, offsets: dict[int, int]) -> None:
        from aiokafka import TopicPartition  # noqa: PLC0415
        from aiokafka.errors import KafkaError  # noqa: PLC0415

        partitions = {TopicPartition(self._topic, p): offset for p, offset in offsets.items()}
        try:
            self._loop.run_until_complete(self._consumer.commit(partitions))
        except KafkaError as error:
            raise CommitError(getattr(error, "errno", type(error).__name__)) from None

    def close(self) -> None:
        self._loop.run_until_complete(self._consumer.stop())


class Ottla:
    """The SDK. Its loop runs in `poll`, as that of aiokafka."""

    def __init__(self, config: Config, events: EventWriter) -> None:
        from ottla.client import ClientConfig, Consumer, GroupConfig, RetryConfig  # noqa: PLC0415

        async def start() -> Consumer:
            consumer = Consumer(
                config.bootstrap,
                config.topic,
                group=config.group,
                auto_commit=None,
                assignors=config.assignors,
                instance_id=config.instance,
                on_assigned=lambda tps: events.write_partitions("assigned", tps),
                on_revoked=lambda tps: events.write_partitions("revoked", tps),
                group_config=GroupConfig(
                    session_timeout=config.session_ms / 1000,
                    heartbeat_interval=config.heartbeat_ms / 1000,
                    rebalance_timeout=config.rebalance_ms / 1000,
                ),
                client=ClientConfig(retry=RetryConfig(backoff=0.05, max_backoff=0.25)),
            )
            await consumer.start()
            return consumer

        self._topic = config.topic
        self._loop = asyncio.new_event_loop()
        self._consumer = self._loop.run_until_complete(start())

    def poll(self) -> Iterator[tuple[int, int, bytes]]:
        polled = self._loop.run_until_complete(self._consumer.getmany(0.1, max_records=100))
        for partition, records in polled.items():
            for record in records:
                yield partition.partition, record.offset, record.value

    def commit(self, offsets: dict[int, int]) -> None:
        from ottla.client import ClientError, KafkaError, TopicPartition  # noqa: PLC0415

        partitions = {TopicPartition(self._topic, p): offset for p, offset in offsets.items()}
        try:
            self._loop.run_until_complete(self._consumer.commit(partitions))
        except KafkaError as error:
            raise CommitError(int(error.code)) from None
        except ClientError as error:
            raise CommitError(type(error).__name__) from None

    def close(self) -> None:
        self._loop.run_until_complete(self._consumer.close())


CLIENTS = {
    "confluent": Confluent,
    "kafka-python": KafkaPython,
    "aiokafka": Aiokafka,
    "ottla": Ottla,
}


def main(client: str, text: str) -> None:
    """Run a member, or several, until SIGTERM."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    config = Config(text)
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stopping.set())
    if config.count == 1:
        run(client, config, stopping)
        return
    members = []
    for number in range(config.count):
        one = Config(text)
        one.name += f"-{number}"
        members.append(threading.Thread(target=run, args=(client, one, stopping)))
    for member in members:
        member.start()
    for member in members:
        member.join()


def run(client: str, config: Config, stopping: threading.Event) -> None:
    """Run a member until it is to stop."""
    events = EventWriter(config)
    consumer = CLIENTS[client](config, events)
    while not stopping.is_set():
        offsets = events.write_received(consumer.poll())
        if not offsets:
            continue
        events.write_offsets("committing", offsets)
        try:
            consumer.commit(offsets)
        except CommitError as error:
            events.write("failed", error)
        else:
            events.write_offsets("committed", offsets)
    consumer.close()
    events.write("left")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
