"""confluent-kafka, which is librdkafka."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from compat.clients import (
    PATIENCE_SECONDS,
    Client,
    Cluster,
    Place,
    Records,
    RefusedError,
    Row,
    Starts,
    Wishes,
    without_internal,
)


class Confluent(Client):
    name = "confluent"

    def __init__(self, address: str) -> None:
        super().__init__(address)
        # A client that loses its only broker would forget all it knew, and for a while it says
        # that there are no leaders.
        self._base = {
            "bootstrap.servers": address,
            "log_level": 0,
            "metadata.recovery.strategy": "none",
        }
        self._admin = AdminClient(self._base)

    def _write(self, topic: str, records: Records, wishes: Wishes) -> Sequence[int | None]:
        settings = {
            "compression.type": wishes.codec,
            "acks": wishes.acks,
            "enable.idempotence": wishes.idempotent,
            # It does not compress what gets no smaller by it, such as a batch of one record. A
            # flush waits no longer for more, so that this costs nothing.
            "linger.ms": 1000,
            "message.max.bytes": 10_000_000,
            "topic.metadata.propagation.max.ms": int(self.topic_seconds * 1000),
        }
        producer = Producer(self._base | settings)
        answers: list[tuple[KafkaError | None, Message]] = []
        for record in records:
            producer.produce(
                topic,
                record.value,
                record.key,
                partition=wishes.partition,
                timestamp=record.timestamp or 0,
                headers=list(record.headers) or None,
                on_delivery=lambda *answer: answers.append(answer),
            )
        assert producer.flush(PATIENCE_SECONDS) == 0
        for error, _message in answers:
            if error is not None:
                raise RefusedError(error.code(), error)
        return [message.offset() for _error, message in answers]

    def read(self, starts: Starts, count: int, *, max_wait_ms: int = 100) -> dict[Place, list[Row]]:
        consumer = Consumer(
            self._base
            | {
                "group.id": "nobody",
                "enable.auto.commit": False,
                "check.crcs": True,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": max_wait_ms,
            }
        )
        found: dict[Place, list[Row]] = {place: [] for place in starts}
        try:
            consumer.assign(
                [
                    TopicPartition(*place, OFFSET_BEGINNING if start is None else start)
                    for place, start in starts.items()
                ]
            )
            deadline = time.monotonic() + PATIENCE_SECONDS
            while sum(map(len, found.values())) < count and time.monotonic() < deadline:
                for message in consumer.consume(1, timeout=1) + consumer.consume(500, timeout=0):
                    if error := message.error():
                        raise RefusedError(error.code(), error)
                    found[message.topic(), message.partition()].append(_row(message))
                    self.has_read.set()
        finally:
            consumer.close()
        return found

    def ends(self, topic: str) -> tuple[int, int]:
        place = TopicPartition(topic, 0)
        earliest = self._admin.list_offsets({place: OffsetSpec.earliest()})
        latest = self._admin.list_offsets({place: OffsetSpec.latest()})
        return _result(earliest[place]).offset, _result(latest[place]).offset

    def offset_at(self, topic: str, timestamp: int) -> int | None:
        consumer = Consumer(self._base | {"group.id": "nobody"})
        try:
            asked = TopicPartition(topic, 0, timestamp)
            (found,) = consumer.offsets_for_times([asked], PATIENCE_SECONDS)
        finally:
            consumer.close()
        return found.offset if found.offset >= 0 else None

    def youngest(self, topic: str) -> int:
        place = TopicPartition(topic, 0)
        found = self._admin.list_offsets({place: OffsetSpec.max_timestamp()})
        return _result(found[place]).offset

    def topics(self) -> dict[str, int]:
        found = self._admin.list_topics(timeout=PATIENCE_SECONDS)
        return without_internal(
            {name: len(topic.partitions) for name, topic in found.topics.items()}
        )

    def cluster(self) -> Cluster:
        found = _result(self._admin.describe_cluster())
        brokers = [(node.id, f"{node.host}:{node.port}") for node in found.nodes]
        return Cluster(found.cluster_id, found.controller.id, brokers)

    def create_topic(
        self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        new = NewTopic(topic, partitions, 1, config=dict(configs or {}))
        _result(self._admin.create_topics([new])[topic])

    def create_topics(self, topics: list[str]) -> None:
        made = self._admin.create_topics([NewTopic(topic, 1, 1) for topic in topics])
        for future in made.values():
            _result(future)

    def delete_topic(self, topic: str) -> None:
        _result(self._admin.delete_topics([topic])[topic])

    def add_partitions(self, topic: str, total: int) -> None:
        _result(self._admin.create_partitions([NewPartitions(topic, total)])[topic])

    def configs(self, topic: str) -> dict[str, str]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        found = _result(self._admin.describe_configs([resource])[resource])
        return {name: entry.value for name, entry in found.items()}

    def alter_configs(self, topic: str, changes: Mapping[str, str]) -> None:
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in changes.items()
        ]
        self._alter(ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries))

    def alter_broker(self, changes: Mapping[str, str]) -> None:
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in changes.items()
        ]
        self._alter(ConfigResource(ResourceType.BROKER, "0", incremental_configs=entries))

    def _alter(self, resource: ConfigResource) -> None:
        _result(self._admin.incremental_alter_configs([resource])[resource])

    def delete_records(self, topic: str, offset: int) -> int:
        place = TopicPartition(topic, 0, offset)
        return _result(self._admin.delete_records([place])[place]).low_watermark


def _result(future: Any) -> Any:
    try:
        return future.result(PATIENCE_SECONDS)
    except KafkaException as problem:
        error = problem.args[0]
        raise RefusedError(error.code(), error) from None


def _row(message: Message) -> Row:
    return Row(
        message.offset(),
        message.timestamp()[1],
        message.key(),
        message.value(),
        tuple(message.headers() or ()),
    )
