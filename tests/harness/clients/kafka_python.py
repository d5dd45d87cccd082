"""kafka-python."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import kafka.errors
from kafka import (
    KafkaAdminClient,
    KafkaConsumer,
    KafkaProducer,
    OffsetAndMetadata,
    TopicPartition,
)
from kafka.admin import ConfigResource, ConfigResourceType, MemberToRemove, OffsetSpec
from kafka.errors import KafkaError, UnknownTopicOrPartitionError

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


class KafkaPython(Client):
    name = "kafka-python"

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._base = {"bootstrap_servers": address}
        self._admin = KafkaAdminClient(**self._base)

    def _produce(
        self, topic: str, records: Records, options: ProduceOptions
    ) -> Sequence[int | None]:
        producer = KafkaProducer(
            **self._base,
            compression_type=None if options.codec == "none" else options.codec,
            acks=options.acks if options.acks == "all" else int(options.acks),
            enable_idempotence=options.idempotent,
            linger_ms=20,
            max_request_size=10_000_000,
            max_block_ms=int(self.topic_timeout_seconds * 1000),
        )
        try:
            sent = [
                producer.send(
                    topic,
                    record.value,
                    record.key,
                    headers=list(record.headers),
                    partition=options.partition,
                    timestamp_ms=record.timestamp,
                )
                for record in records
            ]
            return [future.get(TIMEOUT_SECONDS).offset for future in sent]
        except KafkaError as error:
            raise _request_error(error) from None
        finally:
            producer.close(5)

    def consume(
        self, starts: StartOffsets, count: int, *, max_wait_ms: int = 100
    ) -> dict[Partition, list[ConsumedRecord]]:
        consumer = KafkaConsumer(
            **self._base, fetch_max_wait_ms=max_wait_ms, auto_offset_reset="none"
        )
        found: dict[Partition, list[ConsumedRecord]] = {partition: [] for partition in starts}
        try:
            consumer.assign([TopicPartition(*partition) for partition in starts])
            for partition, start in starts.items():
                if start is None:
                    consumer.seek_to_beginning(TopicPartition(*partition))
                else:
                    consumer.seek(TopicPartition(*partition), start)
            deadline = time.monotonic() + TIMEOUT_SECONDS
            while sum(map(len, found.values())) < count and time.monotonic() < deadline:
                for partition, messages in consumer.poll(timeout_ms=1000).items():
                    found[partition.topic, partition.partition] += [
                        ConsumedRecord(m.offset, m.timestamp, m.key, m.value, tuple(m.headers))
                        for m in messages
                    ]
                    self.has_consumed.set()
        except KafkaError as error:
            raise _request_error(error) from None
        finally:
            consumer.close()
        return found

    def _consumer(self) -> KafkaConsumer:
        return KafkaConsumer(**self._base)

    def watermarks(self, topic: str) -> tuple[int, int]:
        consumer, partition = self._consumer(), TopicPartition(topic, 0)
        try:
            return consumer.beginning_offsets([partition])[partition], consumer.end_offsets(
                [partition]
            )[partition]
        finally:
            consumer.close()

    def offset_for_time(self, topic: str, timestamp: int) -> int | None:
        consumer, partition = self._consumer(), TopicPartition(topic, 0)
        try:
            found = consumer.offsets_for_times({partition: timestamp})[partition]
        finally:
            consumer.close()
        return None if found is None else found.offset

    def max_timestamp_offset(self, topic: str) -> int:
        partition = TopicPartition(topic, 0)
        found = self._do(self._admin.list_partition_offsets, {partition: OffsetSpec.MAX_TIMESTAMP})
        return found[partition].offset

    def topics(self) -> dict[str, int]:
        found = self._admin.describe_topics()
        return without_internal({topic["name"]: len(topic["partitions"]) for topic in found})

    def cluster(self) -> ClusterDescription:
        found = self._admin.describe_cluster()
        brokers = [
            (broker["broker_id"], f"{broker['host']}:{broker['port']}")
            for broker in found["brokers"]
        ]
        return ClusterDescription(found["cluster_id"], found["controller_id"], brokers)

    def create_topic(
        self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        facts = {
            "num_partitions": partitions,
            "replication_factor": 1,
            "configs": dict(configs or {}),
        }
        self._do(self._admin.create_topics, {topic: facts})

    def delete_topic(self, topic: str) -> None:
        self._do(self._admin.delete_topics, [topic])

    def create_partitions(self, topic: str, total: int) -> None:
        self._do(self._admin.create_partitions, {topic: total})

    def configs(self, topic: str) -> dict[str, str]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        found = self._do(self._admin.describe_configs, [resource], config_filter="all")
        if not found["topic"][topic]:  # it hides the error code
            raise RequestError(UnknownTopicOrPartitionError.errno, topic)
        return {name: facts["value"] for name, facts in found["topic"][topic].items()}

    def alter_configs(self, topic: str, changes: Mapping[str, str]) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, dict(changes))
        # By default it asks for the known configs first, and sends no others.
        outcome = self._do(
            self._admin.alter_configs, [resource], incremental=True, raise_on_unknown=False
        )["topic"][topic]
        if outcome != "OK":
            code = re.search(r"\[Error (\d+)\]", outcome)
            raise RequestError(int(code[1]) if code else None, outcome)

    def delete_records(self, topic: str, offset: int) -> int:
        partition = TopicPartition(topic, 0)
        return self._do(self._admin.delete_records, {partition: offset})[partition]["low_watermark"]

    def list_groups(self) -> set[str]:
        return {group["group_id"] for group in self._admin.list_groups()}

    def describe_group(self, group: str) -> GroupDescription:
        description = self._admin.describe_groups([group])[group]
        assignments = {
            member["client_id"]: {
                assigned["topic"]: list(assigned["partitions"])
                for assigned in member["member_assignment"]["assigned_partitions"]
            }
            for member in description["members"]
        }
        return GroupDescription(
            description["group_state"], description["protocol_data"], assignments
        )

    def group_offsets(self, group: str, _topic: str) -> dict[int, int]:
        committed = self._admin.list_group_offsets(group)[group]
        return {partition.partition: offset.offset for partition, offset in committed.items()}

    def alter_group_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        changes = {
            TopicPartition(topic, index): OffsetAndMetadata(offset, "", -1)
            for index, offset in offsets.items()
        }
        _check(self._admin.alter_group_offsets(group, changes).values())

    def delete_group_offsets(self, group: str, topic: str, partitions: Sequence[int]) -> None:
        wanted = [TopicPartition(topic, index) for index in partitions]
        _check(self._admin.delete_group_offsets(group, wanted).values())

    def delete_group(self, group: str) -> None:
        outcome = self._admin.delete_groups([group])[group]
        if outcome != "OK":
            raise RequestError(getattr(kafka.errors, outcome).errno, outcome)

    def remove_member(self, group: str, instance_id: str) -> None:
        member = MemberToRemove(group_instance_id=instance_id)
        _check(self._admin.remove_group_members(group, [member]).values())

    def _do(self, call, *arguments, **options):
        try:
            return call(*arguments, **options)
        except KafkaError as error:
            raise _request_error(error) from None

    def close(self) -> None:
        self._admin.close()


def _check(errors: Iterable[Any]) -> None:
    """Raise the first error of a list of exceptions, or of their classes."""
    for error in errors:
        kind = error if isinstance(error, type) else type(error)
        if getattr(kind, "errno", 0):
            raise RequestError(kind.errno, error)


def _request_error(error: KafkaError) -> RequestError:
    return RequestError(getattr(error, "errno", None), repr(error))
