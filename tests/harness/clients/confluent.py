"""confluent-kafka, which wraps librdkafka."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
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

from harness.clients.base import (
    TIMEOUT_SECONDS,
    Client,
    ClusterDescription,
    ConsumedRecord,
    GroupDescription,
    Partition,
    ProduceOptions,
    Records,
    RequestError,
    StartOffsets,
    without_internal,
)


class Confluent(Client):
    name = "confluent"

    def __init__(self, address: str) -> None:
        super().__init__(address)
        # Rebootstrapping discards the metadata of a client that loses its only broker; for a while
        # it then reports partitions without a leader.
        self._base = {
            "bootstrap.servers": address,
            "log_level": 0,
            "metadata.recovery.strategy": "none",
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
        }
        self._admin = AdminClient(self._base)

    def _produce(
        self, topic: str, records: Records, options: ProduceOptions
    ) -> Sequence[int | None]:
        settings = {
            "compression.type": options.codec,
            "acks": options.acks,
            "enable.idempotence": options.idempotent,
            # A batch of one record does not shrink, and is sent uncompressed. flush() sends at
            # once, so that lingering costs no time.
            "linger.ms": 1000,
            "message.max.bytes": 10_000_000,
            "topic.metadata.propagation.max.ms": int(self.topic_timeout_seconds * 1000),
        }
        producer = Producer(self._base | settings)
        reports: list[tuple[KafkaError | None, Message]] = []
        for record in records:
            producer.produce(
                topic,
                record.value,
                record.key,
                partition=options.partition,
                timestamp=record.timestamp or 0,
                headers=list(record.headers) or None,
                on_delivery=lambda *report: reports.append(report),
            )
        assert producer.flush(TIMEOUT_SECONDS) == 0
        for error, _message in reports:
            if error is not None:
                raise RequestError(error.code(), error)
        return [message.offset() for _error, message in reports]

    def consume(
        self, starts: StartOffsets, count: int, *, max_wait_ms: int = 100
    ) -> dict[Partition, list[ConsumedRecord]]:
        consumer = Consumer(
            self._base
            | {
                "group.id": "unused",
                "enable.auto.commit": False,
                "check.crcs": True,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": max_wait_ms,
            }
        )
        found: dict[Partition, list[ConsumedRecord]] = {partition: [] for partition in starts}
        try:
            consumer.assign(
                [
                    TopicPartition(*partition, OFFSET_BEGINNING if start is None else start)
                    for partition, start in starts.items()
                ]
            )
            deadline = time.monotonic() + TIMEOUT_SECONDS
            while sum(map(len, found.values())) < count and time.monotonic() < deadline:
                for message in consumer.consume(1, timeout=1) + consumer.consume(500, timeout=0):
                    if error := message.error():
                        raise RequestError(error.code(), error)
                    found[message.topic(), message.partition()].append(_row(message))
                    self.has_consumed.set()
        finally:
            consumer.close()
        return found

    def watermarks(self, topic: str) -> tuple[int, int]:
        return (
            self._list_offset(topic, OffsetSpec.earliest()),
            self._list_offset(topic, OffsetSpec.latest()),
        )

    def _list_offset(self, topic: str, spec: OffsetSpec) -> int:
        partition = TopicPartition(topic, 0)
        try:
            return _result(self._admin.list_offsets({partition: spec})[partition]).offset
        except RequestError as error:
            if error.code != KafkaError.FENCED_LEADER_EPOCH:
                raise
        # librdkafka's admin client keeps the leader epoch from before a restart for minutes.
        admin = AdminClient(self._base)
        return _result(admin.list_offsets({partition: spec})[partition]).offset

    def offset_for_time(self, topic: str, timestamp: int) -> int | None:
        consumer = Consumer(self._base | {"group.id": "unused"})
        try:
            partition = TopicPartition(topic, 0, timestamp)
            (found,) = consumer.offsets_for_times([partition], TIMEOUT_SECONDS)
        finally:
            consumer.close()
        return found.offset if found.offset >= 0 else None

    def max_timestamp_offset(self, topic: str) -> int:
        partition = TopicPartition(topic, 0)
        found = self._admin.list_offsets({partition: OffsetSpec.max_timestamp()})
        return _result(found[partition]).offset

    def topics(self) -> dict[str, int]:
        found = self._admin.list_topics(timeout=TIMEOUT_SECONDS)
        return without_internal(
            {name: len(topic.partitions) for name, topic in found.topics.items()}
        )

    def cluster(self) -> ClusterDescription:
        found = _result(self._admin.describe_cluster())
        brokers = [(node.id, f"{node.host}:{node.port}") for node in found.nodes]
        return ClusterDescription(found.cluster_id, found.controller.id, brokers)

    def create_topic(
        self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        new = NewTopic(topic, partitions, 1, config=dict(configs or {}))
        _result(self._admin.create_topics([new])[topic])

    def create_topics(self, topics: list[str]) -> None:
        created = self._admin.create_topics([NewTopic(topic, 1, 1) for topic in topics])
        for future in created.values():
            _result(future)

    def delete_topic(self, topic: str) -> None:
        _result(self._admin.delete_topics([topic])[topic])

    def create_partitions(self, topic: str, total: int) -> None:
        _result(self._admin.create_partitions([NewPartitions(topic, total)])[topic])

    def configs(self, topic: str) -> dict[str, str]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        found = _result(self._admin.describe_configs([resource])[resource])
        return {name: entry.value for name, entry in found.items()}

    def alter_configs(self, topic: str, changes: Mapping[str, str]) -> None:
        self._alter(ResourceType.TOPIC, topic, changes)

    def alter_broker(self, changes: Mapping[str, str]) -> None:
        self._alter(ResourceType.BROKER, "0", changes)

    def _alter(self, kind: ResourceType, name: str, changes: Mapping[str, str]) -> None:
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
            for key, value in changes.items()
        ]
        resource = ConfigResource(kind, name, incremental_configs=entries)
        _result(self._admin.incremental_alter_configs([resource])[resource])

    def delete_records(self, topic: str, offset: int) -> int:
        partition = TopicPartition(topic, 0, offset)
        return _result(self._admin.delete_records([partition])[partition]).low_watermark

    def list_groups(self) -> set[str]:
        listed = _result(self._admin.list_consumer_groups())
        assert listed.errors == []
        return {group.group_id for group in listed.valid}

    def describe_group(self, group: str) -> GroupDescription:
        description = _result(self._admin.describe_consumer_groups([group])[group])
        assignments: dict[str, dict[str, list[int]]] = {}
        for member in description.members:
            assigned = assignments.setdefault(member.client_id, {})
            for partition in member.assignment.topic_partitions:
                assigned.setdefault(partition.topic, []).append(partition.partition)
        state = "".join(word.title() for word in description.state.name.split("_"))
        return GroupDescription(state, description.partition_assignor, assignments)

    def group_offsets(self, group: str, _topic: str) -> dict[int, int]:
        request = ConsumerGroupTopicPartitions(group)
        committed = _result(self._admin.list_consumer_group_offsets([request])[group])
        return {partition.partition: partition.offset for partition in committed.topic_partitions}

    def alter_group_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        partitions = [TopicPartition(topic, *row) for row in offsets.items()]
        request = ConsumerGroupTopicPartitions(group, partitions)
        altered = _result(self._admin.alter_consumer_group_offsets([request])[group])
        for partition in altered.topic_partitions:
            if partition.error is not None:
                raise RequestError(partition.error.code(), partition.error)

    def delete_group(self, group: str) -> None:
        _result(self._admin.delete_consumer_groups([group])[group])

    def lag(self, group: str, topic: str) -> int:
        """Return how many records of a topic a group has not committed."""
        committed = self.group_offsets(group, topic)
        count = self.topics()[topic]
        latest = {TopicPartition(topic, index): OffsetSpec.latest() for index in range(count)}
        ends = {
            partition.partition: _result(future).offset
            for partition, future in self._admin.list_offsets(latest).items()
        }
        return sum(end - committed.get(index, 0) for index, end in ends.items())


def _result(future: Any) -> Any:
    try:
        return future.result(TIMEOUT_SECONDS)
    except KafkaException as exception:
        error = exception.args[0]
        raise RequestError(error.code(), error) from None


def _row(message: Message) -> ConsumedRecord:
    return ConsumedRecord(
        message.offset(),
        message.timestamp()[1],
        message.key(),
        message.value(),
        tuple(message.headers() or ()),
    )
