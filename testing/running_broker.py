"""A broker for tests, in this process, with methods to produce, read and assert.

    with RunningBroker(num_partitions=3) as broker:
        broker.produce("orders", "tea", "milk", key="ann")
        ...                                     # any program and any client: broker.bootstrap
        broker.assert_values("bills", "tea: 3", "milk: 2")

It starts in milliseconds: its data is in a temporary directory, it does not fsync, and groups have
no initial rebalance delay, unless configs say otherwise. It runs in a thread of its own, so tests
may block or run an event loop. It can be stopped and started again, with the same address and data.

Methods that time out raise an AssertionError that shows the actual records or offsets.
`pytest_plugin` has fixtures for it.
"""

from __future__ import annotations

import asyncio
import errno
import random
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import uuid4

from ottla.broker.broker import Broker
from ottla.broker.config.broker_config import BrokerConfig
from ottla.client.admin import Admin
from ottla.client.blocking.loop_thread import LoopThread
from ottla.client.consumer.consumer import Consumer
from ottla.client.errors import ErrorCode, KafkaError
from ottla.client.producer.producer import Producer, ProducerRecord
from ottla.client.types import ConsumerRecord, Headers, RecordMetadata, TopicPartition
from ottla.protocol.configdef import as_text

T = TypeVar("T")

_HOST = "127.0.0.1"
# Not from the ephemeral range: a client that connects to a stopped broker could get the broker's
# port as its own, and connect to itself.
_PORTS = range(20_000, 32_000)
_MAX_BIND_ATTEMPTS = 50
_FAST_CONFIGS = {
    "log.durability": "page-cache",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "100",
    "group.consumer.assignment.interval.ms": "0",
    "offsets.topic.num.partitions": "1",
    "replication.factor.policy": "clamp",
}
_POLL_SECONDS = 0.01
_TIMEOUT_SECONDS = 10.0
# Limits of what error messages show.
_MAX_SHOWN_RECORDS = 20
_MAX_SHOWN_CHARACTERS = 100


class RunningBroker:
    """A broker in a thread.

    Broker configs are keyword arguments, with underscores: `RunningBroker(log_retention_ms=1000)`.
    """

    def __init__(self, **configs: Any) -> None:
        self._configs = _FAST_CONFIGS | {
            name.replace("_", "."): as_text(value) for name, value in configs.items()
        }
        BrokerConfig.of(self._configs)  # Raise ConfigError here, not in `start`.
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._port: int | None = None
        self._loop_thread: LoopThread | None = None
        self._broker: Broker
        self._admin: Admin
        self._producer: Producer

    def __repr__(self) -> str:
        address = "" if self._port is None else f" at {self.bootstrap}"
        return f"<RunningBroker{address}{'' if self.is_running else ', stopped'}>"

    @property
    def is_running(self) -> bool:
        """Whether it is started and not stopped."""
        return self._loop_thread is not None

    @property
    def bootstrap(self) -> str:
        """The bootstrap servers for clients, as host:port."""
        assert self._port is not None, "the broker has not been started"
        return f"{_HOST}:{self._port}"

    # Lifecycle.

    def start(self) -> Self:
        """Start, or start again after `stop`."""
        assert self._loop_thread is None, "the broker is already running"
        loop_thread = LoopThread("ottla-broker")
        try:
            loop_thread.run(self._start())
        except BaseException:
            loop_thread.stop()
            raise
        self._loop_thread = loop_thread
        return self

    def stop(self) -> None:
        """Stop cleanly, and keep the data."""
        loop_thread, self._loop_thread = self._loop_thread, None
        if loop_thread is not None:
            try:
                loop_thread.run(self._stop())
            finally:
                loop_thread.stop()

    def close(self) -> None:
        """Stop, and delete the temporary directory."""
        try:
            self.stop()
        finally:
            if self._directory is not None:
                self._directory.cleanup()
                self._directory = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def _start(self) -> None:
        self._broker = await self._start_broker()
        self._admin = Admin(self._broker.address)
        self._producer = Producer(self._broker.address)

    async def _start_broker(self) -> Broker:
        """Start a broker, on a random free port the first time."""
        configs = dict(self._configs)
        if "log.dir" not in configs:
            self._directory = self._directory or tempfile.TemporaryDirectory(prefix="ottla-")
            configs["log.dir"] = self._directory.name
        for _ in range(_MAX_BIND_ATTEMPTS):
            port = self._port or random.choice(_PORTS)  # noqa: S311
            configs["listeners"] = f"PLAINTEXT://{_HOST}:{port}"
            broker = Broker(BrokerConfig.of(configs))
            try:
                await broker.start()
            except OSError as error:
                if error.errno != errno.EADDRINUSE or self._port is not None:
                    raise
            else:
                self._port = port
                return broker
        raise OSError(errno.EADDRINUSE, f"no free port in {_MAX_BIND_ATTEMPTS} attempts")

    async def _stop(self) -> None:
        try:
            await self._producer.close()
            await self._admin.close()
        finally:
            await self._broker.stop()

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._loop_thread is None:
            coroutine.close()
            raise AssertionError(f"{self!r} is not running: call start() first")
        return self._loop_thread.run(coroutine)

    # Topics.

    def create_topic(
        self,
        name: str | None = None,
        *,
        partitions: int = 1,
        configs: Mapping[str, str] | None = None,
    ) -> str:
        """Create a topic and return its name; without a name, a unique one."""
        name = name or f"topic-{uuid4().hex[:12]}"
        self._run(self._admin.create_topic(name, partitions=partitions, configs=configs))
        return name

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        self._run(self._admin.delete_topics(name))

    def topics(self) -> list[str]:
        """Return the names of all topics."""
        return [topic.name for topic in self._run(self._admin.list_topics())]

    # Records.

    def produce(
        self,
        topic: str,
        *values: Any,
        key: str | bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
    ) -> list[RecordMetadata]:
        """Produce records and return their metadata; the topic is created if necessary.

        A value is bytes, a str, None (a tombstone), or a `ProducerRecord`.
        """
        records = [
            value
            if isinstance(value, ProducerRecord)
            else ProducerRecord(_to_bytes(value), _to_bytes(key), headers, partition)
            for value in values
        ]
        return self._run(self._produce(topic, records))

    async def _produce(self, topic: str, records: Iterable[ProducerRecord]) -> list[RecordMetadata]:
        futures = [
            await self._producer.enqueue(
                topic,
                _to_bytes(record.value),
                key=_to_bytes(record.key),
                headers=record.headers,
                partition=record.partition,
                timestamp=record.timestamp,
            )
            for record in records
        ]
        return [await future for future in futures]

    def records(
        self, topic: str, count: int | None = None, *, timeout: float = _TIMEOUT_SECONDS
    ) -> list[ConsumerRecord]:
        """Return all records of a topic, ordered by partition and offset.

        With a count, wait until the topic has at least that many records.
        """

        async def read() -> list[ConsumerRecord]:
            if count is None:
                return await self._read(topic)
            actual_count, end_offsets = await self._wait_for_records(topic, count, timeout)
            if actual_count < count:
                raise AssertionError(
                    f"{topic!r} has {actual_count} records after {timeout:g} s, expected {count}\n"
                    + await self._show_records(topic)
                )
            return await self._read(topic, end_offsets)

        return self._run(read())

    def values(
        self, topic: str, count: int | None = None, *, timeout: float = _TIMEOUT_SECONDS
    ) -> list[bytes | None]:
        """Return the values of all records of a topic; see `records`."""
        return [record.value for record in self.records(topic, count, timeout=timeout)]

    # Assertions.

    def assert_values(
        self, topic: str, *expected: str | bytes | None, timeout: float = _TIMEOUT_SECONDS
    ) -> None:
        """Wait until a topic has as many records as expected, and compare their values.

        The order counts if the topic has one partition. Records that are produced later are not
        waited for.
        """
        expected_values = [_to_bytes(value) for value in expected]

        started = time.monotonic()

        async def check() -> None:
            _, end_offsets = await self._wait_for_records(topic, len(expected_values), timeout)
            values = [record.value for record in await self._read(topic, end_offsets)]
            is_ordered = len(end_offsets) <= 1
            missing = Counter(expected_values) - Counter(values)
            unexpected = Counter(values) - Counter(expected_values)
            if values == expected_values or not (is_ordered or missing or unexpected):
                return
            seconds = time.monotonic() - started
            lines = [f"{topic!r} does not have the expected values after {seconds:.1f} s"]
            lines += [f"  missing: {_show(value)}" for value in missing.elements()]
            lines += [f"  unexpected: {_show(value)}" for value in unexpected.elements()]
            if not missing and not unexpected:
                lines.append(f"  different order: {', '.join(map(_show, values))}")
            raise AssertionError("\n".join([*lines, await self._show_records(topic)]))

        self._run(check())

    def assert_consumed(self, group: str, *topics: str, timeout: float = _TIMEOUT_SECONDS) -> None:
        """Wait until a group has committed the end offsets of all partitions of topics."""

        async def check() -> None:
            lagging: dict[TopicPartition, tuple[int | None, int]] = {}
            async for _ in _poll(timeout):
                lagging = await self._lagging_partitions(group, topics)
                if not lagging:
                    return
            lines = [f"group {group!r} has not consumed everything after {timeout:g} s"]
            lines += [
                f"  {tp}: committed {'nothing' if committed is None else committed}, end {end}"
                for tp, (committed, end) in lagging.items()
            ]
            raise AssertionError("\n".join([*lines, await self._show_members(group)]))

        self._run(check())

    async def _lagging_partitions(
        self, group: str, topics: Iterable[str]
    ) -> dict[TopicPartition, tuple[int | None, int]]:
        """Return the committed offset and the end offset of partitions with a lag."""
        end_offsets = await self._admin.end_offsets(*topics)
        committed = {
            tp: offset.offset
            for tp, offset in (await self._admin.list_group_offsets(group)).items()
        }
        return {
            tp: (committed.get(tp), end)
            for tp, end in end_offsets.items()
            if committed.get(tp, 0) < end
        }

    async def _wait_for_records(
        self, topic: str, count: int, timeout: float
    ) -> tuple[int, dict[TopicPartition, int]]:
        """Wait until a topic has `count` records; return the number and the end offsets."""
        actual_count = 0
        end_offsets: dict[TopicPartition, int] = {}
        async for _ in _poll(timeout):
            with suppress(KafkaError):
                end_offsets = await self._admin.end_offsets(topic)
                start_offsets = await self._admin.beginning_offsets(topic)
                actual_count = sum(end_offsets.values()) - sum(start_offsets.values())
            if actual_count >= count:
                break
        return actual_count, end_offsets

    async def _read(
        self, topic: str, end_offsets: Mapping[TopicPartition, int] | None = None
    ) -> list[ConsumerRecord]:
        if end_offsets is None:
            end_offsets = await self._admin.end_offsets(topic)
        records: list[ConsumerRecord] = []
        async with Consumer(self.bootstrap) as consumer:
            consumer.assign(end_offsets)
            unread = set(end_offsets)
            while unread := {tp for tp in unread if await consumer.position(tp) < end_offsets[tp]}:
                for fetched in (await consumer.getmany(_POLL_SECONDS)).values():
                    records += fetched
        return sorted(records, key=lambda record: (record.partition, record.offset))

    # Error messages.

    async def _show_records(self, topic: str) -> str:
        try:
            records = await self._read(topic)
        except KafkaError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            names = ", ".join(description.name for description in await self._admin.list_topics())
            return f"  unknown topic; existing topics: {names or 'none'}"
        lines = [
            f"  {record.topic}-{record.partition} at {record.offset}:"
            f" {'' if record.key is None else f'{_show(record.key)} = '}"
            f"{_show(record.value)}"
            for record in records[:_MAX_SHOWN_RECORDS]
        ]
        if len(records) > _MAX_SHOWN_RECORDS:
            lines.append(f"  … and {len(records) - _MAX_SHOWN_RECORDS} more")
        return "\n".join(lines) or "  the topic is empty"

    async def _show_members(self, group: str) -> str:
        try:
            description = (await self._admin.describe_groups(group))[group]
        except KafkaError:
            ids = ", ".join(listing.group_id for listing in await self._admin.list_groups())
            return f"  unknown group; existing groups: {ids or 'none'}"
        members = ", ".join(
            f"{member.client_id} ({', '.join(map(str, member.assignment)) or 'no partitions'})"
            for member in description.members
        )
        return f"  state: {description.state}; members: {members or 'none'}"


async def _poll(timeout: float) -> AsyncIterator[None]:
    """Yield at once, and every few milliseconds until the timeout."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    yield
    while loop.time() < deadline:
        await asyncio.sleep(_POLL_SECONDS)
        yield


def _to_bytes(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def _show(value: bytes | None) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else f"{text[:_MAX_SHOWN_CHARACTERS]}…"
