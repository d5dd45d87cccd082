"""The topics of the cluster, and the partitions that this broker leads.

The metadata image holds the topics. It changes only by records of the metadata log, which are
flushed before they are applied. The controller decides on the records (`commit`); the other brokers
replay the controller's (`commit_from_controller`). Applying records has four steps: create the logs
of new partitions, replay the records into the image, open and close partitions accordingly and
notify the listener, delete the logs of deleted topics.

A start completes what a crash interrupted: it creates missing logs and deletes those of deleted
topics. A log that no record ever mentioned is not deleted: it is set aside, with an error in the
broker's log.
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
    """Notified of created and deleted topics."""

    def topic_created(self, topic: Topic) -> None:
        """Handle a new topic, whose partitions are open."""

    def topic_deleted(self, topic: Topic) -> None:
        """Handle the deletion of a topic, whose partitions are closed."""


class Topics:
    """All topics, and the partitions of them that this broker leads."""

    def __init__(
        self,
        config: BrokerConfig,
        logs: LogDirectory,
        on_config_change: Callable[[BrokerConfig], None],
        listener: TopicListener,
    ) -> None:
        self.image = MetadataImage()
        #: The effective config: the static configs and the dynamic ones of the image.
        self.config = config
        self.static_config = config
        self.metadata_log: MetadataLog
        self._on_config_change = on_config_change
        self._listener = listener
        self._logs = logs
        # By topic and index. None: the partition is offline, its log could not be opened.
        self._partitions: dict[str, dict[int, Partition | None]] = {}

    async def load(self, progress: LoadProgress = lambda _done, _all: None) -> None:
        """Replay the metadata log and open all logs. Raises DataDirectoryError."""
        self.metadata_log = MetadataLog(self._logs)
        try:
            async for key, value in self.metadata_log.records():
                self.image.replay(key, value)
        except UNREADABLE_LOG_ERRORS as error:
            directory = self.metadata_log.partition.log.directory
            raise DataDirectoryError(f"{directory} cannot be read: {error}") from error
        self._apply_dynamic_configs()
        topics = self.image.topics.values()
        log_configs = self._log_configs(topics)
        self._logs.load(log_configs, self.config.topic_defaults, progress)
        self._remove_stray_logs(log_configs)
        missing = {
            name: config
            for name, config in log_configs.items()
            if name not in self._logs.logs and name not in self._logs.failed
        }
        if missing:
            logger.warning(
                "partition logs are missing (possible data loss); created empty logs",
                extra={"count": len(missing)},
            )
            self._logs.create_all(missing)
        for topic in topics:
            self._open_partitions(topic)

    # Lookup.

    def find(self, name: str, index: int) -> Partition:
        """Return a partition that this broker leads. Raises ApiError."""
        try:
            partition = self._partitions[name][index]
        except KeyError:
            raise self._not_found(name, index) from None
        if partition is None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "The log could not be opened")
        return partition

    def leads(self, topic: Topic, index: int) -> bool:
        """Whether this broker leads a partition."""
        return self.config.broker_id in topic.replicas[index]

    def led_partitions(self, topic: Topic) -> Mapping[int, Partition | None]:
        """Return the partitions of a topic that this broker leads; None for an offline one."""
        return self._partitions[topic.name]

    def online_partitions(self) -> Iterator[Partition]:
        """Yield every open partition."""
        for partitions in list(self._partitions.values()):
            yield from (partition for partition in list(partitions.values()) if partition)

    def config_of(self, topic: Topic) -> LogConfig:
        """Return the effective config of a topic."""
        return self.topic_config(topic.configs)

    def topic_config(self, overrides: Mapping[str, str]) -> LogConfig:
        """Return the effective config of a topic with these overrides. Raises ConfigError."""
        return self.config.topic_defaults.with_overrides(overrides)

    def _not_found(self, name: str, index: int) -> ApiError:
        topic = self.image.topics.get(name)
        if topic is None or not 0 <= index < len(topic.replicas):
            return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return NotLeaderError(topic.replicas[index][0])

    # Changes.

    async def commit(self, records: Sequence[KeyValue]) -> int:
        """Append records to the metadata log, flush it, apply them; return the end offset."""
        end_offset = await self.metadata_log.append(records)
        await self._apply(records)
        return end_offset

    async def commit_from_controller(
        self, records: Sequence[KeyValue], controller_offset: int
    ) -> None:
        """Commit records of the controller's metadata log, which end at `controller_offset`."""
        # A topic that was deleted and created again has the same log names. Delete the old topic
        # with its logs first: after a crash they would be taken for those of the new one.
        recreated = []
        for name, topic in filter(None, map(parse_topic_record, records)):
            current = self.image.topics.get(name)
            if topic is not None and current is not None and topic.id != current.id:
                recreated.append(topic_tombstone(name))
        if recreated:
            await self.commit(recreated)
        await self.commit([*records, controller_offset_record(controller_offset)])

    async def create_logs(self, topics: Iterable[Topic]) -> None:
        """Create the logs that topics need on this broker: all or none. Raises OSError."""
        log_configs = self._log_configs(topics)
        if not log_configs.keys() <= self._logs.logs.keys():
            await asyncio.to_thread(self._logs.create_all, log_configs)

    async def _apply(self, records: Sequence[KeyValue]) -> None:
        """Make the image, partitions, logs and configs follow records of the metadata log."""
        # The last record of a topic counts.
        latest = dict(filter(None, map(parse_topic_record, records)))
        changed = [topic for topic in latest.values() if topic is not None]
        before = {name: self.image.topics[name] for name in latest if name in self.image.topics}
        deleted = [topic for name, topic in before.items() if latest[name] is None]
        await self._create_logs_of_each(changed)
        # No await until partitions, configs and listener agree with the image.
        for record in records:
            self.image.replay(*record)
        for topic in deleted:
            self._close_partitions(topic)
            self._listener.topic_deleted(topic)
        for topic in changed:
            self._open_partitions(topic)
            if topic.name not in before:
                self._listener.topic_created(topic)
            elif before[topic.name].configs != topic.configs:
                self._configure_partitions(topic)
        if self.image.broker_configs.get(self.config.broker_id, {}) != self.config.dynamic_configs:
            self._apply_dynamic_configs()
            for topic in self.image.topics.values():
                self._configure_partitions(topic)
        if deleted:
            names = [name for topic in deleted for name in self._log_names(topic)]
            await asyncio.to_thread(self._delete_logs, names)
            self.image.deleted.difference_update(topic.name for topic in deleted)

    async def _create_logs_of_each(self, topics: Sequence[Topic]) -> None:
        """Create the logs of topics; those that fail leave their partitions offline.

        The controller creates its own logs before it commits, and fails the request instead.
        """
        try:
            await self.create_logs(topics)
        except (OSError, StorageError):
            for topic in topics:
                try:
                    await self.create_logs([topic])
                except (OSError, StorageError) as error:
                    logger.error(
                        "partitions are offline until a restart: their logs could not be created",
                        extra={"topic": topic.name, "reason": str(error)},
                    )

    def _open_partitions(self, topic: Topic) -> None:
        """Open the led partitions of a topic that are not open."""
        partitions = self._partitions.setdefault(topic.name, {})
        for index in range(len(topic.replicas)):
            if index not in partitions and self.leads(topic, index):
                log = self._logs.logs.get(_log_name(topic.name, index))
                partitions[index] = (
                    None if log is None else Partition(topic.name, index, log, self._logs.flusher)
                )

    def _close_partitions(self, topic: Topic) -> None:
        """Close the partitions of a deleted topic, and wake the requests that wait for them."""
        for partition in self._partitions.pop(topic.name).values():
            if partition is not None:
                # Housekeeping skips it from now on, and a flush under way may fail: the directory
                # is about to be deleted, and a new one of the same name may follow.
                partition.log.take_offline("the topic was deleted")
                partition.wake_all()

    def _configure_partitions(self, topic: Topic) -> None:
        config = self.config_of(topic)
        for partition in self._partitions[topic.name].values():
            if partition is not None:
                partition.set_config(config)

    def _apply_dynamic_configs(self) -> None:
        dynamic_configs = self.image.broker_configs.get(self.config.broker_id, {})
        try:
            self.config = self.static_config.with_overrides(dynamic_configs)
        except ConfigError as error:
            logger.error(
                "dynamic configs are ignored: they contradict the static configs",
                extra={"reason": str(error)},
            )
            return
        self._on_config_change(self.config)

    # Logs.

    def _log_configs(self, topics: Iterable[Topic]) -> dict[str, LogConfig]:
        """Return the configs of the logs that topics need on this broker, by log name."""
        return {
            name: config
            for topic in topics
            for config in [self.config_of(topic)]
            for name in self._log_names(topic)
        }

    def _log_names(self, topic: Topic) -> Iterator[str]:
        for index in range(len(topic.replicas)):
            if self.leads(topic, index):
                yield _log_name(topic.name, index)

    def _remove_stray_logs(self, known: Mapping[str, LogConfig]) -> None:
        """Delete the logs of deleted topics and empty ones; set aside those of unknown topics."""
        for name, log in list(self._logs.logs.items()):
            if name in known or name == LOG_NAME:
                continue
            topic_name = name.rpartition("-")[0]
            if topic_name in self.image.deleted or log.end_offset == 0:
                self._logs.delete(name)
            else:
                path = self._logs.set_aside(name)
                logger.error(
                    "set aside the log of an unknown topic", extra={"log": name, "path": str(path)}
                )

    def _delete_logs(self, names: Iterable[str]) -> None:
        for name in names:
            if name in self._logs.logs:
                try:
                    self._logs.delete(name)
                except OSError:
                    # The next start finds the tombstone and deletes them.
                    logger.exception(
                        "the files of a deleted log could not be removed", extra={"log": name}
                    )


def _log_name(topic: str, index: int) -> str:
    return f"{topic}-{index}"
