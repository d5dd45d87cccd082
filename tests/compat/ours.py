"""The SDK of this repository, behind the same verbs: what is told of others is told of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

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


class Ours(Client):
    name = "ottla"

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._admin = Admin(address)

    def close(self) -> None:
        self._admin.close()

    def _write(self, topic: str, records: Records, wishes: Wishes) -> Sequence[int | None]:
        producer = Producer(
            self.address,
            compression=wishes.codec,
            acks=wishes.acks if wishes.acks == "all" else int(wishes.acks),
            idempotent=wishes.idempotent,
            client=ClientConfig(timeouts=TimeoutConfig(operation=self.topic_seconds)),
        )
        with producer:
            sent = [
                _do(
                    producer.enqueue,
                    topic,
                    record.value,
                    key=record.key,
                    headers=record.headers,
                    partition=wishes.partition,
                    timestamp=record.timestamp,
                )
                for record in records
            ]
            return [_do(one.result, PATIENCE_SECONDS).offset for one in sent]

    def read(self, starts: Starts, count: int, *, max_wait_ms: int = 100) -> dict[Place, list[Row]]:
        found: dict[Place, list[Row]] = {place: [] for place in starts}
        fetch = FetchConfig(max_wait=max_wait_ms / 1000)
        with Consumer(self.address, auto_offset_reset="none", fetch=fetch) as consumer:
            places = {TopicPartition(*place): start for place, start in starts.items()}
            consumer.assign(places)
            for place, start in places.items():
                if start is None:
                    consumer.seek_to_beginning(place)
                else:
                    consumer.seek(place, start)
            while sum(map(len, found.values())) < count:
                records = _do(consumer.getmany, PATIENCE_SECONDS)
                if not records:
                    break
                for place, some in records.items():
                    found[tuple(place)] += [
                        Row(one.offset, one.timestamp, one.key, one.value, tuple(one.headers))
                        for one in some
                    ]
                self.has_read.set()
        return found

    def ends(self, topic: str) -> tuple[int, int]:
        place = TopicPartition(topic, 0)
        starts = self._admin.beginning_offsets(place)
        return starts[place], self._admin.end_offsets(place)[place]

    def offset_at(self, topic: str, timestamp: int) -> int | None:
        place = TopicPartition(topic, 0)
        found = self._admin.offsets_for_times({place: timestamp})[place]
        return None if found is None else found.offset

    def topics(self) -> dict[str, int]:
        found = self._admin.list_topics(internal=True)
        return without_internal({one.name: len(one.partitions) for one in found})

    def cluster(self) -> Cluster:
        found = self._admin.describe_cluster()
        brokers = [(one.id, f"{one.host}:{one.port}") for one in found.brokers]
        return Cluster(found.cluster_id or "", found.controller, brokers)

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

    def add_partitions(self, topic: str, total: int) -> None:
        _do(self._admin.create_partitions, topic, total)

    def configs(self, topic: str) -> dict[str, str]:
        found = _do(self._admin.describe_topic_configs, topic)[topic]
        return {entry.name: entry.value for entry in found.values()}

    def alter_configs(self, topic: str, changes: Mapping[str, str]) -> None:
        _do(self._admin.alter_topic_configs, topic, changes)

    def delete_records(self, topic: str, offset: int) -> int:
        place = TopicPartition(topic, 0)
        return _do(self._admin.delete_records, {place: offset})[place]


def _do(call: Callable[..., T], *arguments: Any, **options: Any) -> T:
    try:
        return call(*arguments, **options)
    except KafkaError as error:
        raise RefusedError(error.code, error) from None
    except DeadlineError as error:
        cause = error.__cause__
        code = cause.code if isinstance(cause, KafkaError) else None
        raise RefusedError(code, error) from None
