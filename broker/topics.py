"""The topics of this broker: what the catalogue says there is, and the partitions that are here.

Every change is a record in a log of its own, `__cluster_metadata`, and takes effect when the device
has that record; so it survives whatever comes after. Files come before the record when a topic is
made, and go after it when one is deleted: a start finds what a crash left half done, and finishes
it. What no record ever spoke of is not ours to delete: it is set aside, and said.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from errno import ENOENT
from uuid import UUID, uuid4

from ottla.coord.catalogue import (
    METADATA_TOPIC,
    Catalogue,
    InvalidNameError,
    KeyValue,
    Topic,
    broker_record,
    check_unlike,
    deletion_record,
    look_alike,
    producer_ids_record,
    topic_record,
)
from ottla.coord.placement import place
from ottla.protocol.batch import Record, build_batch, split_batches
from ottla.protocol.errors import ErrorCode
from ottla.storage.config import LogConfig
from ottla.storage.errors import StorageError
from ottla.storage.logdir import LogDirectory, Progress

from .config import BrokerConfig
from .errors import ApiError
from .partition import Partition

log = logging.getLogger(__name__)

#: Gives the settings that are to be, for those that there are. It may raise what is against it.
Change = Callable[[Mapping[str, str]], Mapping[str, str]]

_METADATA_LOG = f"{METADATA_TOPIC}-0"
_METADATA_CONFIG = LogConfig(
    cleanup_policy="compact",
    segment_bytes=4 * 1024 * 1024,
    max_message_bytes=4 * 1024 * 1024,
    durability="fsync",
)
_READ_BYTES = 1024 * 1024
#: Records of one batch of metadata: a batch is read whole, and should not be large.
_RECORDS_PER_BATCH = 500
#: Producer ids that one record takes out of the pool. Those not given out by a stop are lost.
_PRODUCER_IDS_PER_BLOCK = 1000


class Topics:
    """All topics, and the partitions that this broker has of them."""

    def __init__(
        self, config: BrokerConfig, logs: LogDirectory, obey: Callable[[BrokerConfig], None]
    ) -> None:
        self.catalogue = Catalogue()
        #: The settings in force: those of the start, and what was altered since.
        self.config = config
        self._start_config = config
        self._obey = obey
        self._logs = logs
        # None stands for a partition whose log could not be opened.
        self._partitions: dict[str, list[Partition | None]] = {}
        self._count = 0
        self._metadata: Partition
        self._changing = asyncio.Lock()
        self._producer_ids: Iterator[int] = iter(())

    def load(self, progress: Progress = lambda _done, _all: None) -> None:
        """Read what there is, and open it."""
        self._metadata = Partition(
            METADATA_TOPIC,
            0,
            self._logs.load_first(_METADATA_LOG, _METADATA_CONFIG),
            self._logs.flusher,
        )
        for key, value in self._records():
            self.catalogue.replay(key, value)
        altered = self.catalogue.broker_configs.get(self.config.broker_id, {})
        self._set_broker_config(self._start_config.with_settings(altered))
        known = {
            _log_name(topic.name, index): self.config_of(topic)
            for topic in self.catalogue.topics.values()
            for index in self._own(topic)
        }
        self._logs.load(known, self.config.topic_defaults, progress)
        self._deal_with_strays(known)
        missing = {
            name: config
            for name, config in known.items()
            if name not in self._logs.logs and name not in self._logs.failed
        }
        if missing:
            log.warning("%d logs are missing, and made anew, empty", len(missing))
            self._logs.create_all(missing)
        for topic in self.catalogue.topics.values():
            self._take_in(topic)

    def find(self, name: str, index: int) -> Partition:
        """Give a partition that is here. Raises ApiError."""
        partitions = self._partitions.get(name)
        if partitions is None or not 0 <= index < len(partitions):
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partition = partitions[index]
        if partition is None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "the log could not be opened")
        return partition

    def partitions_of(self, topic: Topic) -> Sequence[Partition | None]:
        """Give the partitions of a topic in order; None for one whose log could not be opened."""
        return self._partitions[topic.name]

    def all_partitions(self) -> Iterator[Partition]:
        """Give every partition that is open."""
        for partitions in list(self._partitions.values()):
            yield from (partition for partition in partitions if partition is not None)

    def config_of(self, topic: Topic) -> LogConfig:
        """Give the settings of a topic: its own, and for the rest the broker's."""
        return self.topic_config(topic.configs)

    def topic_config(self, overrides: Mapping[str, str]) -> LogConfig:
        """Give the settings of a topic that has these of its own. Raises ConfigError."""
        return self.config.topic_defaults.with_settings(overrides)

    def plan(
        self,
        name: str,
        count: int,
        configs: Mapping[str, str],
        replicas: Sequence[Sequence[int]] | None = None,
    ) -> Topic:
        """Say what a new topic would be. Raises ApiError, InvalidNameError and ConfigError."""
        self._check_new(name, count)
        if replicas is None:
            placed = place(count, [self.config.broker_id], self._count)
        else:
            placed = tuple(tuple(brokers) for brokers in replicas)
        self.topic_config(configs)
        return Topic(name, _new_id(), placed, dict(configs))

    def plan_partitions(
        self, topic: Topic, count: int, replicas: Sequence[Sequence[int]] | None = None
    ) -> Topic:
        """Say what a topic would be with `count` partitions in all. Raises ApiError."""
        more = count - len(topic.replicas)
        if more <= 0:
            raise ApiError(
                ErrorCode.INVALID_PARTITIONS,
                f"the topic has {len(topic.replicas)} partitions, which cannot become {count}",
            )
        self._check_room(more)
        if replicas is None:
            return topic.with_partitions(place(more, [self.config.broker_id], self._count))
        return topic.with_partitions(tuple(tuple(brokers) for brokers in replicas))

    async def create(self, topics: Sequence[Topic]) -> list[Exception | None]:
        """Make topics, as planned; give for each what went wrong, if anything did."""
        async with self._changing:
            errors: list[Exception | None] = []
            new: dict[str, Topic] = {}
            count = 0
            for topic in topics:
                try:
                    # Again: others may have come since it was planned, and there are these.
                    self._check_new(topic.name, count + len(topic.replicas))
                    other = new.setdefault(look_alike(topic.name), topic)
                    check_unlike(topic.name, other.name)
                except (ApiError, InvalidNameError) as error:
                    errors.append(error)
                else:
                    errors.append(None)
                    count += len(topic.replicas)
            try:
                await self._make(list(new.values()))
            except (OSError, StorageError) as failure:
                return [failure if error is None else error for error in errors]
            return errors

    async def add_partitions(self, topic: Topic) -> None:
        """Let a topic have the partitions that were planned."""
        async with self._changing:
            current = self._check_is_there(topic)
            # Settings may have changed since it was planned, and partitions may have been added.
            more = topic.replicas[len(current.replicas) :]
            await self._make([self.plan_partitions(current, len(topic.replicas), more)])

    async def delete(self, topic: Topic) -> None:
        """Delete a topic. It is gone when this returns, and its files are, or soon will be."""
        async with self._changing:
            self._check_is_there(topic)
            await self._write([deletion_record(topic.name)])
            partitions = self._partitions.pop(topic.name)
            self._count -= len(partitions)
            for partition in partitions:
                if partition is not None:
                    # From now on housekeeping leaves it alone, and a sync under way may fail: its
                    # directory is about to go, and another one of the same name may come.
                    partition.log.failure = FileNotFoundError(ENOENT, "the topic was deleted")
                    partition.wake_all()
            names = [_log_name(topic.name, index) for index in range(len(partitions))]
            await asyncio.to_thread(self._delete_logs, names)

    async def alter_configs(self, topic: Topic, change: Change) -> None:
        """Change the settings of a topic of its own; they count at once. Raises ConfigError."""
        async with self._changing:
            topic = self._check_is_there(topic)
            configs = change(topic.configs)
            config = self.topic_config(configs)
            await self._write([topic_record(topic.with_configs(configs))])
            self._apply(topic.name, config)

    async def alter_broker_configs(self, change: Change) -> None:
        """Change the altered settings of this broker; they count at once. Raises ConfigError."""
        async with self._changing:
            configs = change(self.config.altered)
            config = self._start_config.with_settings(configs)
            await self._write([broker_record(config.broker_id, configs)])
            self._set_broker_config(config)
            for topic in self.catalogue.topics.values():
                self._apply(topic.name, self.config_of(topic))

    async def new_producer_id(self) -> int:
        """Give a producer id that nobody was ever given."""
        found = next(self._producer_ids, None)
        if found is None:
            async with self._changing:
                first = self.catalogue.next_producer_id
                after = first + _PRODUCER_IDS_PER_BLOCK
                await self._write([producer_ids_record(after)])
                self._producer_ids = iter(range(first, after))
            return await self.new_producer_id()
        return found

    async def _make(self, topics: Iterable[Topic]) -> None:
        logs = {
            _log_name(topic.name, index): self.config_of(topic)
            for topic in topics
            for index in self._own(topic)
        }
        await asyncio.to_thread(self._logs.create_all, logs)
        await self._write([topic_record(topic) for topic in topics])
        for topic in topics:
            self._take_in(topic)

    def _take_in(self, topic: Topic) -> None:
        """Have a `Partition` for every log of a topic, and keep those that there are."""
        partitions = self._partitions.setdefault(topic.name, [])
        self._count += len(topic.replicas) - len(partitions)
        for index in range(len(partitions), len(topic.replicas)):
            opened = self._logs.logs.get(_log_name(topic.name, index))
            partitions.append(
                None if opened is None else Partition(topic.name, index, opened, self._logs.flusher)
            )

    def _set_broker_config(self, config: BrokerConfig) -> None:
        self.config = config
        self._obey(config)

    def _apply(self, name: str, config: LogConfig) -> None:
        for partition in self._partitions[name]:
            if partition is not None:
                partition.set_config(config)

    def _check_is_there(self, topic: Topic) -> Topic:
        """Give the topic as it is by now."""
        current = self.catalogue.topics.get(topic.name)
        if current is None or current.id != topic.id:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return current

    def _check_new(self, name: str, count: int) -> None:
        self.catalogue.check_new_name(name)
        if name in self.catalogue.topics:
            raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"the topic {name!r} exists already")
        if name == METADATA_TOPIC:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is the broker's own")
        self._check_room(count)

    def _check_room(self, count: int) -> None:
        limit = self.config.broker_max_partitions
        if count < 1:
            raise ApiError(
                ErrorCode.INVALID_PARTITIONS, f"{count} partitions: at least 1 is needed"
            )
        if self._count + count > limit:
            raise ApiError(
                ErrorCode.INVALID_PARTITIONS,
                f"{count} partitions more than the {self._count} that there are:"
                f" broker.max.partitions is {limit}",
            )

    def _own(self, topic: Topic) -> Iterator[int]:
        """Give the partitions of a topic that are to be on this broker."""
        for index, replicas in enumerate(topic.replicas):
            if self.config.broker_id in replicas:
                yield index

    async def _write(self, records: Sequence[KeyValue]) -> None:
        """Write records; when the device has them, let them take effect."""
        now_ms = int(time.time() * 1000)
        last_offset = -1
        for start in range(0, len(records), _RECORDS_PER_BATCH):
            batch = build_batch(
                [
                    Record(offset=offset, timestamp=now_ms, key=key, value=value)
                    for offset, (key, value) in enumerate(
                        records[start : start + _RECORDS_PER_BATCH]
                    )
                ]
            )
            last_offset = self._metadata.append(batch, now_ms).last_offset
        if last_offset < 0:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def flushed(error: Exception | None) -> None:
            if not done.done():
                done.set_exception(error) if error else done.set_result(None)

        self._metadata.when_flushed(last_offset, flushed)
        await done
        for key, value in records:
            self.catalogue.replay(key, value)

    def _records(self) -> Iterator[KeyValue]:
        opened = self._metadata.log
        offset = opened.start_offset
        while offset < opened.end_offset:
            for batch in split_batches(bytes(opened.read(offset, _READ_BYTES).view)):
                for record in batch.records():
                    key, value = record.key, record.value
                    assert key is not None
                    yield bytes(key), None if value is None else bytes(value)
                offset = batch.next_offset

    def _deal_with_strays(self, known: Mapping[str, LogConfig]) -> None:
        """Remove logs of topics that were deleted, and set aside those that nobody knows of."""
        for name, opened in list(self._logs.logs.items()):
            if name in known or name == _METADATA_LOG:
                continue
            topic = name.rpartition("-")[0]
            if topic in self.catalogue.deleted or opened.end_offset == 0:
                self._logs.delete(name)
            else:
                place_of_it = self._logs.set_aside(name)
                log.error("%s is of no topic that is known: it is kept in %s", name, place_of_it)

    def _delete_logs(self, names: Iterable[str]) -> None:
        for name in names:
            if name in self._logs.logs:
                try:
                    self._logs.delete(name)
                except OSError:
                    # The next start will find it, and the record that says so.
                    log.exception("%s is deleted, but its files could not be removed", name)


def _log_name(topic: str, index: int) -> str:
    return f"{topic}-{index}"


def _new_id() -> UUID:
    """Make up an id whose text, in Kafka's tools, does not look like an option: no '-' in front."""
    found = uuid4()
    return _new_id() if found.bytes[0] >> 2 == 62 else found
