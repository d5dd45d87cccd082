"""kafka-python."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
from kafka.errors import KafkaError, UnknownTopicOrPartitionError

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


class KafkaPython(Client):
    name = "kafka-python"

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._base = {"bootstrap_servers": address}
        self._admin = KafkaAdminClient(**self._base)

    def _write(self, topic: str, records: Records, wishes: Wishes) -> Sequence[int | None]:
        producer = KafkaProducer(
            **self._base,
            compression_type=None if wishes.codec == "none" else wishes.codec,
            acks=wishes.acks if wishes.acks == "all" else int(wishes.acks),
            enable_idempotence=wishes.idempotent,
            linger_ms=20,
            max_request_size=10_000_000,
            max_block_ms=int(self.topic_seconds * 1000),
        )
        try:
            sent = [
                producer.send(
                    topic,
                    record.value,
                    record.key,
                    headers=list(record.headers),
                    partition=wishes.partition,
                    timestamp_ms=record.timestamp,
                )
                for record in records
            ]
            return [future.get(PATIENCE_SECONDS).offset for future in sent]
        except KafkaError as problem:
            raise _refused(problem) from None
        finally:
            producer.close(5)

    def read(self, starts: Starts, count: int, *, max_wait_ms: int = 100) -> dict[Place, list[Row]]:
        consumer = KafkaConsumer(
            **self._base, fetch_max_wait_ms=max_wait_ms, auto_offset_reset="none"
        )
        found: dict[Place, list[Row]] = {place: [] for place in starts}
        try:
            consumer.assign([TopicPartition(*place) for place in starts])
            for place, start in starts.items():
                if start is None:
                    consumer.seek_to_beginning(TopicPartition(*place))
                else:
                    consumer.seek(TopicPartition(*place), start)
            deadline = time.monotonic() + PATIENCE_SECONDS
            while sum(map(len, found.values())) < count and time.monotonic() < deadline:
                for place, messages in consumer.poll(timeout_ms=1000).items():
                    found[place.topic, place.partition] += [
                        Row(m.offset, m.timestamp, m.key, m.value, tuple(m.headers))
                        for m in messages
                    ]
                    self.has_read.set()
        except KafkaError as problem:
            raise _refused(problem) from None
        finally:
            consumer.close()
        return found

    def _consumer(self) -> KafkaConsumer:
        return KafkaConsumer(**self._base)

    def ends(self, topic: str) -> tuple[int, int]:
        consumer, place = self._consumer(), TopicPartition(topic, 0)
        try:
            return consumer.beginning_offsets([place])[place], consumer.end_offsets([place])[place]
        finally:
            consumer.close()

    def offset_at(self, topic: str, timestamp: int) -> int | None:
        consumer, place = self._consumer(), TopicPartition(topic, 0)
        try:
            found = consumer.offsets_for_times({place: timestamp})[place]
        finally:
            consumer.close()
        return None if found is None else found.offset

    def youngest(self, topic: str) -> int:
        place = TopicPartition(topic, 0)
        found = self._do(self._admin.list_partition_offsets, {place: OffsetSpec.MAX_TIMESTAMP})
        return found[place].offset

    def topics(self) -> dict[str, int]:
        found = self._admin.describe_topics()
        return without_internal({topic["name"]: len(topic["partitions"]) for topic in found})

    def cluster(self) -> Cluster:
        found = self._admin.describe_cluster()
        brokers = [
            (broker["broker_id"], f"{broker['host']}:{broker['port']}")
            for broker in found["brokers"]
        ]
        return Cluster(found["cluster_id"], found["controller_id"], brokers)

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

    def add_partitions(self, topic: str, total: int) -> None:
        self._do(self._admin.create_partitions, {topic: total})

    def configs(self, topic: str) -> dict[str, str]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        found = self._do(self._admin.describe_configs, [resource], config_filter="all")
        if not found["topic"][topic]:  # which is how it tells of an error
            raise RefusedError(UnknownTopicOrPartitionError.errno, topic)
        return {name: facts["value"] for name, facts in found["topic"][topic].items()}

    def alter_configs(self, topic: str, changes: Mapping[str, str]) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, dict(changes))
        # It would rather ask first what there is to be altered, and not ask for anything else.
        told = self._do(
            self._admin.alter_configs, [resource], incremental=True, raise_on_unknown=False
        )["topic"][topic]
        if told != "OK":
            code = re.search(r"\[Error (\d+)\]", told)
            raise RefusedError(int(code[1]) if code else None, told)

    def delete_records(self, topic: str, offset: int) -> int:
        place = TopicPartition(topic, 0)
        return self._do(self._admin.delete_records, {place: offset})[place]["low_watermark"]

    def _do(self, call, *arguments, **options):
        try:
            return call(*arguments, **options)
        except KafkaError as problem:
            raise _refused(problem) from None

    def close(self) -> None:
        self._admin.close()


def _refused(problem: KafkaError) -> RefusedError:
    return RefusedError(getattr(problem, "errno", None), repr(problem))
