"""ottla's own SDK."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from harness.clients.base import (
    TIMEOUT_SECONDS,
    Client,
    ClusterDescription,
    ConsumedRecord,
    Partition,
    ProduceOptions,
    Records,
    RequestError,
    StartOffsets,
    without_internal,
)
from ottla.client import (
    ClientConfig,
    DeadlineError,
    FetchConfig,
    KafkaError,
    TopicPartition,
)
from ottla.client.blocking import Admin, Consumer, Producer
from ottla.client.config import TimeoutConfig

T = TypeVar("T")


class Ottla(Client):
    name = "ottla"

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._admin = Admin(address)

    def close(self) -> None:
        self._admin.close()

    def _produce(
        self, topic: str, records: Records, options: ProduceOptions
    ) -> Sequence[int | None]:
        producer = Producer(
            self.address,
            compression=options.codec,
            acks=options.acks if options.acks == "all" else int(options.acks),
            idempotent=options.idempotent,
            client=ClientConfig(timeouts=TimeoutConfig(operation=self.topic_timeout_seconds)),
        )
        with producer:
            sent = [
                _do(
                    producer.enqueue,
                    topic,
                    record.value,
                    key=record.key,
                    headers=record.headers,
                    partition=options.partition,
                    timestamp=record.timestamp,
                )
                for record in records
            ]
            return [_do(one.result, TIMEOUT_SECONDS).offset for one in sent]

    def consume(
        self, starts: StartOffsets, count: int, *, max_wait_ms: int = 100
    ) -> dict[Partition, list[ConsumedRecord]]:
        found: dict[Partition, list[ConsumedRecord]] = {partition: [] for partition in starts}
        fetch = FetchConfig(max_wait=max_wait_ms / 1000)
        with Consumer(self.address, auto_offset_reset="none", fetch=fetch) as consumer:
            partitions = {TopicPartition(*partition): start for partition, start in starts.items()}
            consumer.assign(partitions)
            for partition, start in partitions.items():
                if start is None:
                    consumer.seek_to_beginning(partition)
                else:
                    consumer.seek(partition, start)
            while sum(map(len, found.values())) < count:
                records = _do(consumer.getmany, TIMEOUT_SECONDS)
                if not records:
                    break
                for partition, some in records.items():
                    found[tuple(partition)] += [
                        ConsumedRecord(
                            one.offset, one.timestamp, one.key, one.value, tuple(one.headers)
                        )
                        for one in some
                    ]
                self.has_consumed.set()
        return found

    def watermarks(self, topic: str) -> tuple[int, int]:
        partition = TopicPartition(topic, 0)
        starts = self._admin.beginning_offsets(partition)
        return starts[partition], self._admin.end_offsets(partition)[partition]

    def offset_for_time(self, topic: str, timestamp: int) -> int | None:
        partition = TopicPartition(topic, 0)
        found = self._admin.offsets_for_times({partition: timestamp})[partition]
        return None if found is None else found.offset

    def topics(self) -> dict[str, int]:
        found = self._admin.list_topics(internal=True)
        return without_internal({one.name: len(one.partitions) for one in found})

    def cluster(self) -> ClusterDescription:
        found = self._admin.describe_cluster()
        brokers = [(one.id, f"{one.host}:{one.port}") for one in found.brokers]
        return ClusterDescription(found.cluster_id or "", found.controller, brokers)

    def create_topic(
        self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        _do(
            self._admin.create_topic,
            topic,
            partitions=partitions,
            replication_factor=1,
            configs=configs,
        )

    def delete_topic(self, topic: str) -> None:
        _do(self._admin.delete_topics, topic)

    def create_partitions(self, topic: str, total: int) -> None:
        _do(self._admin.create_partitions, topic, total)

    def configs(self, topic: str) -> dict[str, str]:
        found = _do(self._admin.describe_topic_configs, topic)[topic]
        return {entry.name: entry.value for entry in found.values()}

    def alter_configs(self, topic: str, changes: Mapping[str, str]) -> None:
        _do(self._admin.alter_topic_configs, topic, changes)

    def delete_records(self, topic: str, offset: int) -> int:
        partition = TopicPartition(topic, 0)
        return _do(self._admin.delete_records, {partition: offset})[partition]


def _do(call: Callable[..., T], *arguments: Any, **options: Any) -> T:
    try:
        return call(*arguments, **options)
    except KafkaError as error:
        raise RequestError(error.code, error) from None
    except DeadlineError as error:
        cause = error.__cause__
        code = cause.code if isinstance(cause, KafkaError) else None
        raise RequestError(code, error) from None
