"""A broker for tests: in this process, in a thread of its own, with verbs to fill it and to look.

    with RunningBroker(num_partitions=3) as broker:
        broker.produce("orders", "tea", "milk", key="ann")
        ...                                     # any program and any client: broker.bootstrap
        broker.assert_values("bills", "tea: 3", "milk: 2")

It starts in milliseconds: its data are in a folder that goes with it, it waits for no disk, and its
groups do not wait for more members, unless a setting says otherwise. As it has a thread, tests may
block, or run a loop. It can be stopped and started again, with the same address and data.

Whatever waits fails with an AssertionError that shows what is there. pytest has it as fixtures: see
`pytest_plugin`.
"""

from __future__ import annotations

import asyncio
import errno
import random
import tempfile
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
# Not from those that are given to connections: a client that looks for a broker which is stopped
# could be given its port for its own end, and be connected to itself.
_PORTS = range(20_000, 32_000)
_TRIES = 50
_QUICK = {
    "log.durability": "page-cache",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "offsets.topic.num.partitions": "1",
}
_LOOK_SECONDS = 0.01
_PATIENCE_SECONDS = 10.0
# How much is shown of what is there.
_SHOWN_RECORDS = 20
_SHOWN_CHARACTERS = 100


class RunningBroker:
    """A broker that runs, from `start` to `stop`.

    Settings are a broker's, with underscores: `RunningBroker(log_retention_ms=1000)`.
    """

    def __init__(self, **settings: Any) -> None:
        given = {name.replace("_", "."): as_text(value) for name, value in settings.items()}
        self._settings = _QUICK | given
        BrokerConfig.of(self._settings)  # what is wrong is told where it is said
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._port: int | None = None
        self._loop_thread: LoopThread | None = None
        self._broker: Broker
        self._admin: Admin
        self._producer: Producer

    def __repr__(self) -> str:
        where = "" if self._port is None else f" at {self.bootstrap}"
        return f"<RunningBroker{where}{'' if self.is_running else ', stopped'}>"

    @property
    def is_running(self) -> bool:
        """Whether it can be reached."""
        return self._loop_thread is not None

    @property
    def bootstrap(self) -> str:
        """Where it is: what clients call their bootstrap servers."""
        assert self._port is not None, "the broker has not been started"
        return f"{_HOST}:{self._port}"

    # From start to end.

    def start(self) -> Self:
        """Start, or start again after a stop."""
        assert self._loop_thread is None, "the broker runs already"
        loop_thread = LoopThread("ottla-broker")
        try:
            loop_thread.run(self._start())
        except BaseException:
            loop_thread.stop()
            raise
        self._loop_thread = loop_thread
        return self

    def stop(self) -> None:
        """Stop, as a daemon does that is told to. Data stay where they are."""
        loop_thread, self._loop_thread = self._loop_thread, None
        if loop_thread is not None:
            try:
                loop_thread.run(self._stop())
            finally:
                loop_thread.stop()

    def close(self) -> None:
        """Stop, and delete the data."""
        try:
            self.stop()
        finally:
            if self._folder is not None:
                self._folder.cleanup()
                self._folder = None

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
        self._broker = await self._listening()
        self._admin = Admin(self._broker.address)
        self._producer = Producer(self._broker.address)

    async def _listening(self) -> Broker:
        """Start a broker, on a port that nobody has if it is the first time."""
        settings = dict(self._settings)
        if "log.dir" not in settings:
            self._folder = self._folder or tempfile.TemporaryDirectory(prefix="ottla-")
            settings["log.dir"] = self._folder.name
        for _ in range(_TRIES):
            port = self._port or random.choice(_PORTS)  # noqa: S311
            settings["listeners"] = f"PLAINTEXT://{_HOST}:{port}"
            broker = Broker(BrokerConfig.of(settings))
            try:
                await broker.start()
            except OSError as error:
                if error.errno != errno.EADDRINUSE or self._port is not None:
                    raise
            else:
                self._port = port
                return broker
        raise OSError(errno.EADDRINUSE, f"no free port in {_TRIES} tries")

    async def _stop(self) -> None:
        try:
            await self._producer.close()
            await self._admin.close()
        finally:
            await self._broker.stop()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop_thread is None:
            work.close()
            raise AssertionError(f"{self!r}: start it first")
        return self._loop_thread.run(work)

    # Topics.

    def create_topic(
        self,
        name: str | None = None,
        *,
        partitions: int = 1,
        configs: Mapping[str, str] | None = None,
    ) -> str:
        """Make a topic, and give its name: one that nobody else has, if none is given."""
        name = name or f"topic-{uuid4().hex[:12]}"
        self._run(self._admin.create_topic(name, partitions=partitions, configs=configs))
        return name

    def delete_topic(self, name: str) -> None:
        """Delete a topic, with all its records."""
        self._run(self._admin.delete_topics(name))

    def topics(self) -> list[str]:
        """Give the names of all topics."""
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
        """Write records to a topic, which is made if it is not there, and say where they are.

        A value is bytes, a str, None (a tombstone), or a `ProducerRecord`.
        """
        plain = [
            one
            if isinstance(one, ProducerRecord)
            else ProducerRecord(_data(one), _data(key), headers, partition)
            for one in values
        ]
        return self._run(self._produce(topic, plain))

    async def _produce(self, topic: str, records: Iterable[ProducerRecord]) -> list[RecordMetadata]:
        futures = [
            await self._producer.enqueue(
                topic,
                _data(record.value),
                key=_data(record.key),
                headers=record.headers,
                partition=record.partition,
                timestamp=record.timestamp,
            )
            for record in records
        ]
        return [await future for future in futures]

    def records(
        self, topic: str, count: int | None = None, *, timeout: float = _PATIENCE_SECONDS
    ) -> list[ConsumerRecord]:
        """Give what is in a topic, by partition and offset.

        With a count, wait until there are so many records: whoever writes them may need a moment.
        """

        async def read() -> list[ConsumerRecord]:
            if count is None:
                return await self._read(topic)
            found, ends = await self._wait_for_end(topic, count, timeout)
            if found < count:
                there = await self._shown(topic)
                raise AssertionError(
                    f"{topic!r} has {found} records after {timeout:g} s, not {count}\n{there}"
                )
            return await self._read(topic, ends)

        return self._run(read())

    def values(
        self, topic: str, count: int | None = None, *, timeout: float = _PATIENCE_SECONDS
    ) -> list[bytes | None]:
        """Give the values of what is in a topic, as `records` does."""
        return [record.value for record in self.records(topic, count, timeout=timeout)]

    # What should be so.

    def assert_values(
        self, topic: str, *expected: str | bytes | None, timeout: float = _PATIENCE_SECONDS
    ) -> None:
        """See that a topic has these values and no others, or will have them in time.

        They are in this order if the topic has one partition, and in any order if it has several.
        It looks as soon as there are enough: what comes later is not waited for.
        """
        wanted = [_data(value) for value in expected]

        async def look() -> None:
            _, ends = await self._wait_for_end(topic, len(wanted), timeout)
            found = [record.value for record in await self._read(topic, ends)]
            is_in_order = len(ends) <= 1
            if found == wanted if is_in_order else Counter(found) == Counter(wanted):
                return
            missing, excess = Counter(wanted) - Counter(found), Counter(found) - Counter(wanted)
            lines = [f"{topic!r} has other values than expected after {timeout:g} s"]
            lines += [f"  missing: {_shown_value(value)}" for value in missing.elements()]
            lines += [f"  not expected: {_shown_value(value)}" for value in excess.elements()]
            if not missing and not excess:
                lines.append(f"  the order is another one: {', '.join(map(_shown_value, found))}")
            raise AssertionError("\n".join([*lines, await self._shown(topic)]))

        self._run(look())

    def assert_consumed(self, group: str, *topics: str, timeout: float = _PATIENCE_SECONDS) -> None:
        """See that a group has committed all that is in topics, or will have in time."""

        async def look() -> None:
            left: dict[TopicPartition, tuple[int | None, int]] = {}
            async for _ in _times(timeout):
                left = await self._uncommitted(group, topics)
                if not left:
                    return
            lines = [f"group {group!r} has not consumed everything after {timeout:g} s"]
            lines += [
                f"  {place}: {'nothing' if offset is None else offset} is committed, of {end}"
                for place, (offset, end) in left.items()
            ]
            raise AssertionError("\n".join([*lines, await self._shown_members(group)]))

        self._run(look())

    async def _uncommitted(
        self, group: str, topics: Iterable[str]
    ) -> dict[TopicPartition, tuple[int | None, int]]:
        """Give what a group has committed, and the end, where these differ."""
        ends = await self._admin.end_offsets(*topics)
        committed = await self._admin.list_group_offsets(group)
        offsets = {place: committed[place].offset if place in committed else None for place in ends}
        return {
            place: (offsets[place], end)
            for place, end in ends.items()
            if (offsets[place] or 0) < end
        }

    # How it looks.

    async def _wait_for_end(
        self, topic: str, count: int, timeout: float
    ) -> tuple[int, dict[TopicPartition, int]]:
        """Wait until there are so many records; say how many, and where they end."""
        found = 0
        ends: dict[TopicPartition, int] = {}
        async for _ in _times(timeout):
            with suppress(KafkaError):
                ends = await self._admin.end_offsets(topic)
                starts = await self._admin.beginning_offsets(topic)
                found = sum(ends.values()) - sum(starts.values())
            if found >= count:
                break
        return found, ends

    async def _read(
        self, topic: str, ends: Mapping[TopicPartition, int] | None = None
    ) -> list[ConsumerRecord]:
        ends = await self._admin.end_offsets(topic) if ends is None else ends
        found: list[ConsumerRecord] = []
        async with Consumer(self.bootstrap) as consumer:
            consumer.assign(ends)
            left = set(ends)
            while left := {place for place in left if await consumer.position(place) < ends[place]}:
                for records in (await consumer.getmany(_LOOK_SECONDS)).values():
                    found += records
        return sorted(found, key=lambda record: (record.partition, record.offset))

    async def _shown(self, topic: str) -> str:
        """Say what is in a topic, for whoever expected something else."""
        try:
            records = await self._read(topic)
        except KafkaError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            others = ", ".join(one.name for one in await self._admin.list_topics())
            return f"  there is no such topic; there is {others or 'none'}"
        lines = [
            f"  {record.topic}-{record.partition} at {record.offset}:"
            f" {'' if record.key is None else f'{_shown_value(record.key)} = '}"
            f"{_shown_value(record.value)}"
            for record in records[:_SHOWN_RECORDS]
        ]
        if len(records) > _SHOWN_RECORDS:
            lines.append(f"  … and {len(records) - _SHOWN_RECORDS} more")
        return "\n".join(lines) or "  it is empty"

    async def _shown_members(self, group: str) -> str:
        try:
            found = (await self._admin.describe_groups(group))[group]
        except KafkaError:
            names = ", ".join(one.group_id for one in await self._admin.list_groups())
            return f"  there is no such group; there is {names or 'none'}"
        members = ", ".join(
            f"{member.client_id} ({', '.join(map(str, member.assignment)) or 'nothing'})"
            for member in found.members
        )
        return f"  it is {found.state}; members: {members or 'none'}"


async def _times(timeout: float) -> AsyncIterator[None]:
    """Give a turn at once, and again and again until the time is over."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    yield
    while loop.time() < deadline:
        await asyncio.sleep(_LOOK_SECONDS)
        yield


def _data(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def _shown_value(value: bytes | None) -> str:
    text = "no value" if value is None else repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
