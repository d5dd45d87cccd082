"""The topics of the cluster, and the partitions of them that this broker owns.

The image says what there is. It changes by records, which are in the journal before they take
effect, whoever made them up: the controller, which may be this broker, decides what they say, and
the others take them over (`adopt`). A start finds what a crash left half done, and finishes it:
logs that are missing are made, those of topics that were deleted are removed. What no record ever
spoke of is not ours to delete: it is set aside, and said.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from ottla.coord.metadata_image import (
    KeyValue,
    MetadataImage,
    Topic,
    controller_offset_record,
    parse_topic_record,
    topic_tombstone,
)
from ottla.protocol.configdef import ConfigError
from ottla.protocol.errors import ErrorCode
from ottla.storage.config import LogConfig
from ottla.storage.errors import DataDirectoryError, StorageError
from ottla.storage.logdir import UNREADABLE_LOG_ERRORS, LoadProgress, LogDirectory

from ..cluster.metadata_log import LOG_NAME, MetadataLog
from ..config.broker_config import BrokerConfig
from ..requests.errors import ApiError, NotLeaderError
from .partition import Partition

logger = logging.getLogger(__name__)


class TopicListener(Protocol):
    """Somebody who is told what became of topics."""

    def topic_created(self, topic: Topic) -> None:
        """Take note that a topic is there that was not."""

    def topic_deleted(self, topic: Topic) -> None:
        """Take note that a topic is gone."""


class Topics:
    """All topics, and the partitions that this broker has of them."""

    def __init__(
        self,
        config: BrokerConfig,
        logs: LogDirectory,
        obey: Callable[[BrokerConfig], None],
        watcher: TopicListener,
    ) -> None:
        self.image = MetadataImage()
        #: The settings in force: those of the start, and what was altered since.
        self.config = config
        self.static_config = config
        self.metadata_log: MetadataLog
        self._obey = obey
        self._watcher = watcher
        self._logs = logs
        # By topic, and by number. None stands for a partition whose log could not be opened.
        self._partitions: dict[str, dict[int, Partition | None]] = {}

    async def load(self, progress: LoadProgress = lambda _done, _all: None) -> None:
        """Read what there is, and open it. Raises DataDirectoryError."""
        self.metadata_log = MetadataLog(self._logs)
        try:
            async for key, value in self.metadata_log.records():
                self.image.replay(key, value)
        except UNREADABLE_LOG_ERRORS as error:
            place = self.metadata_log.partition.log.directory
            raise DataDirectoryError(f"{place} cannot be read: {error}") from error
        self._obey_altered()
        topics = self.image.topics.values()
        known = self._logs_of(topics)
        self._logs.load(known, self.config.topic_defaults, progress)
        self._deal_with_strays(known)
        missing = {
            name: config
            for name, config in known.items()
            if name not in self._logs.logs and name not in self._logs.failed
        }
        if missing:
            logger.warning("%d logs are missing, and made anew, empty", len(missing))
            self._logs.create_all(missing)
        for topic in topics:
            self._take_in(topic)

    def find(self, name: str, index: int) -> Partition:
        """Give a partition that is here. Raises ApiError."""
        try:
            partition = self._partitions[name][index]
        except KeyError:
            raise self._why_not(name, index) from None
        if partition is None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "the log could not be opened")
        return partition

    def led_partitions(self, topic: Topic) -> Mapping[int, Partition | None]:
        """Give the partitions of a topic that are here; None for a log that could not be opened."""
        return self._partitions[topic.name]

    def online_partitions(self) -> Iterator[Partition]:
        """Give every partition that is open."""
        for partitions in list(self._partitions.values()):
            yield from (one for one in list(partitions.values()) if one is not None)

    def config_of(self, topic: Topic) -> LogConfig:
        """Give the settings of a topic: its own, and for the rest the broker's."""
        return self.topic_config(topic.configs)

    def topic_config(self, overrides: Mapping[str, str]) -> LogConfig:
        """Give the settings of a topic that has these of its own. Raises ConfigError."""
        return self.config.topic_defaults.with_overrides(overrides)

    async def create_logs(self, topics: Iterable[Topic]) -> None:
        """Make the logs that topics need here: all of them, or none. Raises OSError."""
        wanted = self._logs_of(topics)
        if not wanted.keys() <= self._logs.logs.keys():
            await asyncio.to_thread(self._logs.create_all, wanted)

    async def commit(self, records: Sequence[KeyValue]) -> int:
        """Write records; when the device has them, let them take effect. Gives where they end."""
        end = await self.metadata_log.append(records)
        new: list[tuple[KeyValue, Topic]] = []
        for record in records:
            name, topic = parse_topic_record(record) or (None, None)
            if topic is not None:
                new.append((record, topic))
                continue
            await self._take_over(new)
            new = []
            gone = None if name is None else self.image.topics.get(name)
            self.image.replay(*record)
            if gone is not None:
                await self._drop(gone)
        await self._take_over(new)
        if self.image.broker_configs.get(self.config.broker_id, {}) != self.config.dynamic_configs:
            self._obey_altered()
            for topic in self.image.topics.values():
                self._apply(topic.name, self.config_of(topic))
        return end

    async def adopt(self, records: Sequence[KeyValue], followed: int) -> None:
        """Take over what the controller has written, up to this offset of its log."""
        # A topic that was deleted and made again: the old one goes first, with its files.
        replaced = []
        for name, topic in filter(None, map(parse_topic_record, records)):
            current = self.image.topics.get(name)
            if topic is not None and current is not None and topic.id != current.id:
                replaced.append(topic_tombstone(name))
        if replaced:
            await self.commit(replaced)
        await self.commit([*records, controller_offset_record(followed)])

    def leads(self, topic: Topic, index: int) -> bool:
        """Whether a partition is to be on this broker."""
        return self.config.broker_id in topic.replicas[index]

    async def _take_over(self, new: Sequence[tuple[KeyValue, Topic]]) -> None:
        """Let topics be there, or be other than they were, with logs for what is here of them."""
        try:
            await self.create_logs(topic for _record, topic in new)
        except (OSError, StorageError) as error:
            if len(new) > 1:
                for one in new:  # what is wrong with one of them is not to harm the others
                    await self._take_over([one])
                return
            # The controller makes sure of its own logs before; for others it cannot.
            logger.error(
                "%s: %s: its partitions are offline until a restart", new[0][1].name, error
            )
        for record, topic in new:
            before = self.image.topics.get(topic.name)
            self.image.replay(*record)
            self._take_in(topic)
            if before is None:
                self._watcher.topic_created(topic)
            elif before.configs != topic.configs:
                self._apply(topic.name, self.config_of(topic))

    def _take_in(self, topic: Topic) -> None:
        """Have a `Partition` for every log of a topic, and keep those that there are."""
        partitions = self._partitions.setdefault(topic.name, {})
        for index in range(len(topic.replicas)):
            if index not in partitions and self.leads(topic, index):
                opened = self._logs.logs.get(_log_name(topic.name, index))
                partitions[index] = (
                    None
                    if opened is None
                    else Partition(topic.name, index, opened, self._logs.flusher)
                )

    async def _drop(self, topic: Topic) -> None:
        """Delete what is here of a topic that is gone."""
        partitions = self._partitions.pop(topic.name)
        for partition in partitions.values():
            if partition is not None:
                # From now on housekeeping leaves it alone, and a sync under way may fail: its
                # directory is about to go, and another one of the same name may come.
                partition.log.take_offline("the topic was deleted")
                partition.wake_all()
        self._watcher.topic_deleted(topic)
        names = [_log_name(topic.name, index) for index in partitions]
        await asyncio.to_thread(self._delete_logs, names)
        self.image.deleted.discard(topic.name)

    def _obey_altered(self) -> None:
        altered = self.image.broker_configs.get(self.config.broker_id, {})
        try:
            self.config = self.static_config.with_overrides(altered)
        except ConfigError as error:
            logger.error("altered settings do not go with those of the start: %s", error)
            return
        self._obey(self.config)

    def _apply(self, name: str, config: LogConfig) -> None:
        for partition in self._partitions[name].values():
            if partition is not None:
                partition.set_config(config)

    def _why_not(self, name: str, index: int) -> ApiError:
        topic = self.image.topics.get(name)
        if topic is None or not 0 <= index < len(topic.replicas):
            return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return NotLeaderError(topic.replicas[index][0])

    def _logs_of(self, topics: Iterable[Topic]) -> dict[str, LogConfig]:
        """Name the logs that this broker has to have, with their settings."""
        return {
            _log_name(topic.name, index): config
            for topic in topics
            for config in [self.config_of(topic)]
            for index in range(len(topic.replicas))
            if self.leads(topic, index)
        }

    def _deal_with_strays(self, known: Mapping[str, LogConfig]) -> None:
        """Remove logs of topics that were deleted, and set aside those that nobody knows of."""
        for name, opened in list(self._logs.logs.items()):
            if name in known or name == LOG_NAME:
                continue
            topic = name.rpartition("-")[0]
            if topic in self.image.deleted or opened.end_offset == 0:
                self._logs.delete(name)
            else:
                place_of_it = self._logs.set_aside(name)
                logger.error("%s is of no topic that is known: it is kept in %s", name, place_of_it)

    def _delete_logs(self, names: Iterable[str]) -> None:
        for name in names:
            if name in self._logs.logs:
                try:
                    self._logs.delete(name)
                except OSError:
                    # The next start will find it, and the record that says so.
                    logger.exception("%s is deleted, but its files could not be removed", name)


def _log_name(topic: str, index: int) -> str:
    return f"{topic}-{index}"
