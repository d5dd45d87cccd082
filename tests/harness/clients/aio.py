"""aiokafka, on an event loop in a thread, so that tests need not be coroutines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.errors import KafkaError

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

T = TypeVar("T")


class Aiokafka(Client):
    name = "aiokafka"
    replaces_all_configs = True

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._base = {"bootstrap_servers": address}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="aiokafka")
        self._thread.start()
        try:
            self._admin: AIOKafkaAdminClient = self._run(self._start_admin())
        except BaseException:
            self._end_loop()
            raise

    async def _start_admin(self) -> AIOKafkaAdminClient:
        admin = AIOKafkaAdminClient(**self._base)
        await admin.start()
        return admin

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        async def in_time() -> T:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                return await work

        try:
            return asyncio.run_coroutine_threadsafe(in_time(), self._loop).result()
        except KafkaError as error:
            raise RequestError(getattr(error, "errno", None), repr(error)) from None

    def _produce(
        self, topic: str, records: Records, options: ProduceOptions
    ) -> Sequence[int | None]:
        async def work() -> list[int | None]:
            async with AIOKafkaProducer(
                **self._base,
                compression_type=None if options.codec == "none" else options.codec,
                acks=options.acks if options.acks == "all" else int(options.acks),
                enable_idempotence=options.idempotent,
                linger_ms=20,
                max_request_size=10_000_000,
                max_batch_size=65_536,
                request_timeout_ms=int(self.topic_timeout_seconds * 1000),
            ) as producer:
                sent = [
                    await producer.send(
                        topic,
                        record.value,
                        record.key,
                        partition=options.partition,
                        timestamp_ms=record.timestamp,
                        headers=list(record.headers),
                    )
                    for record in records
                ]
                results = [await future for future in sent]
            return [None if metadata is None else metadata.offset for metadata in results]

        return self._run(work())

    def consume(
        self, starts: StartOffsets, count: int, *, max_wait_ms: int = 100
    ) -> dict[Partition, list[ConsumedRecord]]:
        async def work() -> dict[Partition, list[ConsumedRecord]]:
            found: dict[Partition, list[ConsumedRecord]] = {partition: [] for partition in starts}
            async with AIOKafkaConsumer(
                **self._base, fetch_max_wait_ms=max_wait_ms, auto_offset_reset="none"
            ) as consumer:
                consumer.assign([TopicPartition(*partition) for partition in starts])
                for partition, start in starts.items():
                    if start is None:
                        await consumer.seek_to_beginning(TopicPartition(*partition))
                    else:
                        consumer.seek(TopicPartition(*partition), start)
                while sum(map(len, found.values())) < count:
                    m = await consumer.getone()
                    row = ConsumedRecord(m.offset, m.timestamp, m.key, m.value, tuple(m.headers))
                    found[m.topic, m.partition].append(row)
                    self.has_consumed.set()
            return found

        return self._run(work())

    def watermarks(self, topic: str) -> tuple[int, int]:
        partition = TopicPartition(topic, 0)

        async def work() -> tuple[int, int]:
            async with AIOKafkaConsumer(**self._base) as consumer:
                start = await consumer.beginning_offsets([partition])
                end = await consumer.end_offsets([partition])
            return start[partition], end[partition]

        return self._run(work())

    def offset_for_time(self, topic: str, timestamp: int) -> int | None:
        partition = TopicPartition(topic, 0)

        async def work() -> int | None:
            async with AIOKafkaConsumer(**self._base) as consumer:
                found = (await consumer.offsets_for_times({partition: timestamp}))[partition]
            return None if found is None else found.offset

        return self._run(work())

    def topics(self) -> dict[str, int]:
        found = self._run(self._admin.describe_topics())
        return without_internal({topic["topic"]: len(topic["partitions"]) for topic in found})

    def cluster(self) -> ClusterDescription:
        found = self._run(self._admin.describe_cluster())
        brokers = [(node["node_id"], f"{node['host']}:{node['port']}") for node in found["brokers"]]
        return ClusterDescription(found["cluster_id"], found["controller_id"], brokers)

    # Most admin methods return the response as it is, error codes included.

    def create_topic(
        self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        new = NewTopic(topic, partitions, 1, topic_configs=dict(configs or {}))
        ((_name, code, message),) = self._run(self._admin.create_topics([new])).topic_errors
        _check(code, message)

    def delete_topic(self, topic: str) -> None:
        ((_name, code),) = self._run(self._admin.delete_topics([topic])).topic_error_codes
        _check(code, topic)

    def create_partitions(self, topic: str, total: int) -> None:
        self._run(self._admin.create_partitions({topic: NewPartitions(total)}))

    def configs(self, topic: str) -> dict[str, str]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        (response,) = self._run(self._admin.describe_configs([resource]))
        ((code, message, _kind, _name, entries),) = response.resources
        _check(code, message)
        return {name: value for name, value, *_ in entries}

    def alter_configs(self, topic: str, changes: Mapping[str, str]) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, dict(changes))
        (response,) = self._run(self._admin.alter_configs([resource]))
        ((code, message, _kind, _name),) = response.resources
        _check(code, message)

    def delete_records(self, topic: str, offset: int) -> int:
        partition = TopicPartition(topic, 0)
        return self._run(self._admin.delete_records({partition: RecordsToDelete(offset)}))[
            partition
        ]

    # It has no methods that change groups.

    def list_groups(self) -> set[str]:
        return {name for name, *_ in self._run(self._admin.list_consumer_groups())}

    def describe_group(self, group: str) -> GroupDescription:
        (response,) = self._run(self._admin.describe_consumer_groups([group]))
        (description,) = response.groups
        _error, _group, state, _kind, assignor, members = description[:6]
        assignments = {}
        for _id, client_id, _host, _metadata, data in (member[-5:] for member in members):
            assigned = ConsumerProtocolMemberAssignment.decode(data).assignment
            assignments[client_id] = {topic: list(indexes) for topic, indexes in assigned}
        return GroupDescription(state, assignor, assignments)

    def group_offsets(self, group: str, _topic: str) -> dict[int, int]:
        committed = self._run(self._admin.list_consumer_group_offsets(group))
        return {partition.partition: offset.offset for partition, offset in committed.items()}

    def close(self) -> None:
        self._run(_wait(self._admin.close()))
        self._end_loop()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _wait(work: Awaitable[T]) -> T:
    return await work


def _check(code: int, message: str | None) -> None:
    if code:
        raise RequestError(code, message)
