"""aiokafka, in an event loop of its own: the stories are told by those who do not know of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError

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

T = TypeVar("T")


class Aiokafka(Client):
    name = "aiokafka"
    alters_configs_as_a_whole = True

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
            async with asyncio.timeout(PATIENCE_SECONDS):
                return await work

        try:
            return asyncio.run_coroutine_threadsafe(in_time(), self._loop).result()
        except KafkaError as problem:
            raise RefusedError(getattr(problem, "errno", None), repr(problem)) from None

    def _write(self, topic: str, records: Records, wishes: Wishes) -> Sequence[int | None]:
        async def work() -> list[int | None]:
            async with AIOKafkaProducer(
                **self._base,
                compression_type=None if wishes.codec == "none" else wishes.codec,
                acks=wishes.acks if wishes.acks == "all" else int(wishes.acks),
                enable_idempotence=wishes.idempotent,
                linger_ms=20,
                max_request_size=10_000_000,
                max_batch_size=65_536,
                request_timeout_ms=int(self.topic_seconds * 1000),
            ) as producer:
                sent = [
                    await producer.send(
                        topic,
                        record.value,
                        record.key,
                        partition=wishes.partition,
                        timestamp_ms=record.timestamp,
                        headers=list(record.headers),
                    )
                    for record in records
                ]
                told = [await future for future in sent]
            return [None if one is None else one.offset for one in told]

        return self._run(work())

    def read(self, starts: Starts, count: int, *, max_wait_ms: int = 100) -> dict[Place, list[Row]]:
        async def work() -> dict[Place, list[Row]]:
            found: dict[Place, list[Row]] = {place: [] for place in starts}
            async with AIOKafkaConsumer(
                **self._base, fetch_max_wait_ms=max_wait_ms, auto_offset_reset="none"
            ) as consumer:
                consumer.assign([TopicPartition(*place) for place in starts])
                for place, start in starts.items():
                    if start is None:
                        await consumer.seek_to_beginning(TopicPartition(*place))
                    else:
                        consumer.seek(TopicPartition(*place), start)
                while sum(map(len, found.values())) < count:
                    m = await consumer.getone()
                    row = Row(m.offset, m.timestamp, m.key, m.value, tuple(m.headers))
                    found[m.topic, m.partition].append(row)
                    self.has_read.set()
            return found

        return self._run(work())

    def ends(self, topic: str) -> tuple[int, int]:
        place = TopicPartition(topic, 0)

        async def work() -> tuple[int, int]:
            async with AIOKafkaConsumer(**self._base) as consumer:
                start = await consumer.beginning_offsets([place])
                end = await consumer.end_offsets([place])
            return start[place], end[place]

        return self._run(work())

    def offset_at(self, topic: str, timestamp: int) -> int | None:
        place = TopicPartition(topic, 0)

        async def work() -> int | None:
            async with AIOKafkaConsumer(**self._base) as consumer:
                found = (await consumer.offsets_for_times({place: timestamp}))[place]
            return None if found is None else found.offset

        return self._run(work())

    def topics(self) -> dict[str, int]:
        found = self._run(self._admin.describe_topics())
        return without_internal({topic["topic"]: len(topic["partitions"]) for topic in found})

    def cluster(self) -> Cluster:
        found = self._run(self._admin.describe_cluster())
        brokers = [(node["node_id"], f"{node['host']}:{node['port']}") for node in found["brokers"]]
        return Cluster(found["cluster_id"], found["controller_id"], brokers)

    # Answers are given as they are, with the codes that are in them.

    def create_topic(
        self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        new = NewTopic(topic, partitions, 1, topic_configs=dict(configs or {}))
        ((_name, code, message),) = self._run(self._admin.create_topics([new])).topic_errors
        _check(code, message)

    def delete_topic(self, topic: str) -> None:
        ((_name, code),) = self._run(self._admin.delete_topics([topic])).topic_error_codes
        _check(code, topic)

    def add_partitions(self, topic: str, total: int) -> None:
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
        place = TopicPartition(topic, 0)
        return self._run(self._admin.delete_records({place: RecordsToDelete(offset)}))[place]

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
        raise RefusedError(code, message)
