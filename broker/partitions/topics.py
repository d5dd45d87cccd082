"""The topics of the cluster, and the partitions that this broker leads or follows.

The metadata image holds the topics. It changes only by records of the metadata log, which are
flushed before they are applied. The controller decides on the records (`commit`); the other brokers
replay the controller's (`commit_from_controller`). Applying records has four steps: create the logs
of new partitions, replay the records into the image, open and close partitions accordingly and
notify the listeners, delete the logs of deleted topics.

Logs are created before the record of their topic is appended, so that a log that is missing at a
start was lost. It is created empty, and marked: producers and consumers that knew the old one get
errors. A start deletes the logs of deleted topics, if a crash left them.

A log is deleted only if the image has the deletion of its topic's id, or a state of its partition
without this broker: the replica was moved. If its topic is merely missing from the image, it is set
aside, with an error in the broker's log.

All partitions without a state that a broker leads have the same leader epoch, which rises with
each start. With a state (see `coord/partition_state.py`), a broker leads or follows as the state
says, and only after the controller has unfenced its registration: a broker that has just started
does not know whether a state that names it as the leader is its own.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol
from uuid import UUID

from ottla.coord.metadata_image import (
    INTERNAL_TOPICS,
    KeyValue,
    MetadataImage,
    MetadataPosition,
    StorePosition,
    Topic,
    parse_partition_key,
    parse_topic_record,
    position_record,
    registration_record,
    store_position_record,
    topic_tombstone,
)
from ottla.coord.partition_state import PartitionState
from ottla.protocol.configdef import ConfigError
from ottla.protocol.errors import ErrorCode
from ottla.storage.config import LogConfig
from ottla.storage.errors import DataDirectoryError, StorageError
from ottla.storage.log import Log
from ottla.storage.logdir import UNREADABLE_LOG_ERRORS, LoadProgress, LogDirectory
from ottla.storage.partition_metadata import PartitionMetadata

from ..cluster.metadata_log import LOG_NAME, MetadataLog
from ..config.broker_config import BrokerConfig
from ..observability.metrics import TopicTraffic
from ..requests.errors import ApiError, NotLeaderError
from .partition import Partition, Role

logger = logging.getLogger(__name__)

#: Smaller values would refuse the records of large groups, or make a segment of a few records.
_INTERNAL_TOPIC_MINIMUMS = {
    "max.message.bytes": LogConfig().max_message_bytes,
    "segment.bytes": 64 * 1024,
    # Each commit would start a segment.
    "segment.ms": 60_000,
    "segment.index.bytes": 64 * 1024,
}


class TopicListener(Protocol):
    """Notified of created and deleted topics."""

    def topic_created(self, topic: Topic) -> None:
        """Handle a new topic, whose partitions are open."""

    def partition_opened(self, topic: Topic, index: int) -> None:
        """Handle a partition that this broker leads from now on."""

    def partition_closed(self, topic: Topic, index: int) -> None:
        """Handle a partition that this broker no longer leads."""

    def topic_deleted(self, topic: Topic) -> None:
        """Handle the deletion of a topic, whose partitions are closed."""


class ReplicaListener(Protocol):
    """Notified of the roles of replicated partitions."""

    def role_changed(self, partition: Partition) -> None:
        """Handle a partition whose role, leader or state has changed."""

    def replica_closed(self, partition: Partition) -> None:
        """Handle a partition of which this broker has no replica any more."""


class Topics:
    """All topics, and the partitions of them that this broker leads or follows."""

    def __init__(
        self,
        config: BrokerConfig,
        logs: LogDirectory,
        on_config_change: Callable[[BrokerConfig], None],
        *listeners: TopicListener,
    ) -> None:
        self.image = MetadataImage()
        #: The effective config: the static configs and the dynamic ones of the image.
        self.config = config
        self.static_config = config
        #: Whether a topic had `compression.type` since the start: Produce need not look before.
        self.may_recompress = False
        self.metadata_log: MetadataLog
        #: The leader epoch of the partitions that this broker leads.
        self.leader_epoch = 0
        # The oldest one that clients may have received from other brokers.
        self._accepted_epoch = 0
        #: The leader epoch of each broker, sorted by broker id.
        self.leader_epochs: tuple[tuple[int, int], ...] = ()
        self._on_config_change = on_config_change
        #: Notified in this order.
        self.listeners = list(listeners)
        self._logs = logs
        # Led partitions by topic and index. None: its log could not be opened.
        self._partitions: dict[str, dict[int, Partition | None]] = {}
        # The same, by topic id.
        self._partitions_by_id: dict[UUID, dict[int, Partition | None]] = {}
        # Replicated partitions that this broker does not lead.
        self._followed: dict[tuple[str, int], Partition] = {}
        #: By topic: what is written to and read from its partitions here.
        self.traffic: dict[str, TopicTraffic] = {}
        #: The id of this process, with which it registers.
        self.incarnation: UUID | None = None
        #: Returns the epoch of the registration that this process has made; -1 if it has none.
        self.registered_epoch: Callable[[], int] = lambda: -1
        # What the roles were last updated for.
        self._activity = (False, False)
        self.replica_listener: ReplicaListener | None = None
        #: Whether logs of replicated partitions were missing at the start.
        self.has_lost_replicas = False
        # As of the start.
        self._high_watermarks: Mapping[str, int] = {}
        # States that are about to be committed: their logs are created first.
        self._incoming: Mapping[tuple[UUID, int], PartitionState] = {}

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
        replaced = self._remove_stray_logs()
        missing = [
            name
            for name in log_configs
            if name not in self._logs.logs and name not in self._logs.failed
        ]
        self._create_logs(topics, lost=frozenset(missing) - replaced)
        self._high_watermarks = self._logs.read_high_watermarks()
        for topic in topics:
            self._open_partitions(topic)
        self.leader_epoch = self._accepted_epoch = self.next_leader_epoch()
        self._update_leader_epochs()

    # Lookup.

    def find(self, name: str, index: int) -> Partition:
        """Return a partition that this broker leads. Raises ApiError."""
        try:
            partition = self._partitions[name][index]
        except KeyError:
            raise self._not_found(name, index) from None
        if partition is None:
            raise _offline_error()
        return partition

    def find_by_id(self, topic_id: UUID, index: int) -> Partition:
        """Return a partition that this broker leads, by topic id. Raises ApiError."""
        try:
            partition = self._partitions_by_id[topic_id][index]
        except KeyError:
            topic = self.image.topics_by_id.get(topic_id)
            if topic is None:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID) from None
            raise self._not_found(topic.name, index) from None
        if partition is None:
            raise _offline_error()
        return partition

    def leads(self, topic: Topic, index: int) -> bool:
        """Whether this broker leads a partition."""
        state = self.image.partition_state(topic, index)
        if state is None:
            return self.config.broker_id in topic.replicas[index]
        return state.leader == self.config.broker_id and self._may_act(state)

    def has_replica(self, topic: Topic, index: int) -> bool:
        """Whether this broker has a replica of a partition."""
        return self.config.broker_id in self.image.replicas_of(topic, index)

    @property
    def is_active(self) -> bool:
        """Whether this broker may lead and follow replicated partitions.

        The controller has unfenced the registration that this very process has made. A broker that
        started while the store is down has none: others may lead by now.
        """
        registration = self.image.registrations.get(self.config.broker_id)
        return (
            registration is not None
            and registration.broker_epoch == self.registered_epoch()
            and self._is_own_registration
        )

    @property
    def _is_own_registration(self) -> bool:
        """Whether the registration is that of this process, which it may only have taken over."""
        registration = self.image.registrations.get(self.config.broker_id)
        return (
            registration is not None
            and registration.incarnation == self.incarnation
            and registration.state in ("up", "leaving")
        )

    def _may_act(self, state: PartitionState) -> bool:
        """Whether this broker may do what a state says. The only replica cannot be replaced."""
        return self.is_active if len(state.replicas) > 1 else self._is_own_registration

    def followed(self, name: str, index: int) -> Partition | None:
        """Return a replicated partition that this broker does not lead; None if there is none."""
        return self._followed.get((name, index))

    def find_followed(self, topic: str | UUID, index: int) -> Partition | None:
        """Return a partition that this broker follows, for consumers; None if it does not."""
        found = self.image.topics_by_id.get(topic) if isinstance(topic, UUID) else None
        partition = self._followed.get((found.name if found else str(topic), index))
        if (
            partition is None
            or partition.role is not Role.FOLLOWER
            or partition.log.is_truncating  # In a thread.
        ):
            return None
        return partition

    @property
    def followed_count(self) -> int:
        """The number of replicated partitions that this broker does not lead."""
        return len(self._followed)

    def replicated_partitions(self) -> list[Partition]:
        """Return every open partition that has a state."""
        return [
            partition
            for partition in (*self.online_partitions(), *self._followed.values())
            if partition.state is not None
        ]

    def led_partitions(self, topic: Topic) -> Mapping[int, Partition | None]:
        """Return the partitions of a topic that this broker leads; None for an offline one."""
        return self._partitions[topic.name]

    def online_partitions(self) -> Iterator[Partition]:
        """Yield every open partition."""
        for partitions in list(self._partitions.values()):
            yield from (partition for partition in list(partitions.values()) if partition)

    def config_of(self, topic: Topic) -> LogConfig:
        """Return the effective config of a topic."""
        config = self.topic_config(topic.configs)
        self.may_recompress = self.may_recompress or config.compression_type != "producer"
        if topic.is_internal:
            # The defaults of the broker are for the topics of clients.
            too_small = {
                name: str(minimum)
                for name, minimum in _INTERNAL_TOPIC_MINIMUMS.items()
                if name not in topic.configs and int(config.text_of(name)) < minimum
            }
            config = config.with_overrides(too_small) if too_small else config
        return config

    def validate_configs(self, topic: Topic, overrides: Mapping[str, str]) -> None:
        """Raise ConfigError if a topic cannot have these overrides.

        The log of an internal topic is the broker's state: no config may delete its records, or
        refuse new ones.
        """
        config = self.topic_config(overrides)
        if not topic.is_internal:
            return
        if config.cleanup_policy != "compact":
            raise ConfigError(f"{topic.name} is an internal topic: cleanup.policy must be compact")
        for name, minimum in _INTERNAL_TOPIC_MINIMUMS.items():
            if name in overrides and int(overrides[name]) < minimum:
                raise ConfigError(
                    f"{topic.name} is an internal topic: the minimum of {name} is {minimum}"
                )
        for name in overrides:
            if name.startswith("message.timestamp."):
                raise ConfigError(f"{topic.name} is an internal topic: {name} cannot be set")

    def topic_config(self, overrides: Mapping[str, str]) -> LogConfig:
        """Return the effective config of a topic with these overrides. Raises ConfigError."""
        return self.config.topic_defaults.with_overrides(overrides)

    def _not_found(self, name: str, index: int) -> ApiError:
        topic = self.image.topics.get(name)
        if topic is None or not 0 <= index < len(topic.replicas):
            return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        state = self.image.partition_state(topic, index)
        if state is not None:
            return NotLeaderError(state.leader, state.leader_epoch)
        leader_id = topic.replicas[index][0]
        return NotLeaderError(leader_id, dict(self.leader_epochs).get(leader_id, 0))

    # Leader epochs.

    def next_leader_epoch(self) -> int:
        """Return a leader epoch above all that this broker ever used, as far as it knows."""
        registration = self.image.registrations.get(self.config.broker_id)
        epochs = [
            partition.log.leader_epochs.current
            for partition in self.online_partitions()
            if partition.state is None
        ]
        return max([-1 if registration is None else registration.leader_epoch, *epochs]) + 1

    def start_leader_epoch(self, epoch: int, accepted_epoch: int | None = None) -> None:
        """Lead in this epoch from now on; clients may know one from `accepted_epoch` on."""
        self.leader_epoch = epoch
        self._accepted_epoch = epoch if accepted_epoch is None else accepted_epoch
        for partition in self.online_partitions():
            if partition.state is None:
                partition.set_leader_epoch(epoch, self._accepted_epoch)
        self._update_leader_epochs()

    async def start_unregistered_leader_epoch(self, incarnation: UUID) -> None:
        """Start the next leader epoch while the controller is down.

        The other brokers do not know it, and refer clients here with the last one they know. Raises
        OSError or StorageError if it could not be stored; it is started nevertheless, and the next
        start finds it in the logs that were appended to.
        """
        registration = self.image.registrations.get(self.config.broker_id)
        accepted = 0 if registration is None else registration.leader_epoch
        epoch = self.next_leader_epoch()
        self.start_leader_epoch(epoch, min(accepted, epoch))
        if registration is not None:
            registration = registration._replace(incarnation=incarnation, leader_epoch=epoch)
            await self.commit([registration_record(self.config.broker_id, registration)])

    def _update_leader_epochs(self) -> None:
        epochs = {
            broker_id: registration.leader_epoch
            for broker_id, registration in self.image.registrations.items()
        }
        epochs[self.config.broker_id] = self.leader_epoch
        self.leader_epochs = tuple(sorted(epochs.items()))

    # Changes.

    async def commit(self, records: Sequence[KeyValue]) -> int:
        """Append records to the metadata log, flush it, apply them; return the end offset."""
        end_offset = await self.metadata_log.append(records)
        await self._apply(records)
        return end_offset

    async def commit_from_controller(
        self,
        records: Sequence[KeyValue],
        position: MetadataPosition,
        directory: UUID,
        *,
        is_directory_lost: bool = False,
    ) -> None:
        """Commit records of the controller's metadata log, which end at `position`.

        With `is_directory_lost`, new topics are those of an earlier data directory of this broker.
        """
        await self._prepare_copied(records, is_directory_lost)
        self.metadata_log.start_epoch(position.epoch)
        await self.commit([*records, position_record(position, directory)])

    async def commit_from_store(
        self,
        records: Sequence[KeyValue],
        position: StorePosition,
        directory: UUID,
        *,
        is_directory_lost: bool = False,
    ) -> None:
        """Commit entries of the metadata store, up to `position`."""
        await self._prepare_copied(records, is_directory_lost)
        await self.commit([*records, store_position_record(position, directory)])

    async def _prepare_copied(self, records: Sequence[KeyValue], is_directory_lost: bool) -> None:
        """Remove and create logs as the topics in records that were committed elsewhere require."""
        latest = dict(filter(None, map(parse_topic_record, records)))
        # A topic that was deleted and created again has the same log names: remove the old logs
        # first.
        recreated = [
            topic_tombstone(name)
            for name, topic in latest.items()
            if topic is not None
            and name in self.image.topics
            and self.image.topics[name].id != topic.id
        ]
        if recreated:
            deletions = [record for record in records if record[0].startswith(b"deleted-topic/")]
            await self.commit([*recreated, *deletions])
        topics = {topic.id: topic for topic in latest.values() if topic is not None}
        self._incoming = dict(_partition_states(records))
        for (topic_id, index), state in self._incoming.items():
            topic = self.image.topics_by_id.get(topic_id)
            if topic is not None and self._lacks_log(topic, index, state):
                topics.setdefault(topic_id, topic)
        try:
            await self._create_logs_of_each(list(topics.values()), is_lost=is_directory_lost)
        finally:
            self._incoming = {}

    def _lacks_log(self, topic: Topic, index: int, state: PartitionState) -> bool:
        """Whether a state makes this broker a replica, and it has no log yet."""
        name = _log_name(topic.name, index)
        return (
            self.config.broker_id in state.replicas
            and name not in self._logs.failed
            and not self._has_log(name, topic.id)
        )

    async def create_logs(self, topics: Sequence[Topic], *, is_lost: bool = False) -> None:
        """Create the logs that topics need on this broker: all or none. Raises OSError."""
        metadata = self._partition_metadata(topics)
        if any(not self._has_log(name, topic) for name, topic in metadata.items()):
            lost = frozenset(metadata) - self._logs.logs.keys() if is_lost else frozenset()
            await asyncio.to_thread(self._create_logs, topics, lost)

    async def open_logs_without_space(self) -> None:
        """Try again to open the logs that could not be opened because the disk was full."""
        for name in self._logs.without_space:
            topic_name, _, index = name.rpartition("-")
            topic = self.image.topics.get(topic_name)
            if topic is None:
                continue
            try:
                log, report = await asyncio.to_thread(
                    self._logs.open_again, name, self.config_of(topic)
                )
            except (OSError, *UNREADABLE_LOG_ERRORS) as error:
                self._logs.failed[name] = error
                continue
            if self.image.topics.get(topic_name) is not topic or not self._has_id(log, topic.id):
                log.segments.close()  # The topic was deleted or changed: the next start decides.
                continue
            self._logs.add_opened(name, log, report)
            state = self.image.partition_state(topic, int(index))
            if state is not None:
                self._update_role(topic, int(index), state)
            else:
                partition = self._new_partition(topic, int(index), log)
                read_only = self._partitions[topic_name].get(int(index))
                self._partitions[topic_name][int(index)] = partition
                if read_only is not None:
                    read_only.wake_all()
                for listener in self.listeners:
                    listener.partition_opened(topic, int(index))
            logger.info("partition is online: its log could be opened", extra={"log": name})

    async def _apply(self, records: Sequence[KeyValue]) -> None:
        """Make the image, partitions, logs and configs follow records of the metadata log."""
        # The last record of a topic counts.
        latest = dict(filter(None, map(parse_topic_record, records)))
        changed = [topic for topic in latest.values() if topic is not None]
        before = {name: self.image.topics[name] for name in latest if name in self.image.topics}
        removed = [topic for name, topic in before.items() if latest[name] is None]
        # No await until partitions, configs and listeners agree with the image.
        for record in records:
            self.image.replay(*record)
        self._update_leader_epochs()
        for topic in removed:
            self._close_partitions(topic)
            for listener in self.listeners:
                listener.topic_deleted(topic)
        for topic in changed:
            is_new = topic.name not in before
            self._open_partitions(topic, notifies=not is_new)
            if is_new:
                for listener in self.listeners:
                    listener.topic_created(topic)
            elif before[topic.name].configs != topic.configs:
                self._configure_partitions(topic)
        self.update_roles(records)
        if self.image.dynamic_configs(self.config.broker_id) != self.config.dynamic_configs:
            self._apply_dynamic_configs()
            for topic in self.image.topics.values():
                self._configure_partitions(topic)
        if removed:
            await asyncio.to_thread(self._remove_logs, removed)
        # Several states of a partition may be among the records.
        moved = {
            name: partition[0]
            for partition in (parse_partition_key(key) for key, _value in records)
            if partition is not None
            for name in self._moved_log(*partition)
        }
        for name in moved:
            # Here, and not in the thread that deletes the log.
            self._logs.logs[name].producer_states.count_in(None)
        if moved:
            await asyncio.to_thread(self._remove_moved_logs, moved)

    async def _create_logs_of_each(self, topics: Sequence[Topic], *, is_lost: bool) -> None:
        """Create the logs of topics; those that fail leave their partitions offline.

        The controller fails the request instead.
        """
        try:
            await self.create_logs(topics, is_lost=is_lost)
        except (OSError, StorageError):
            for topic in topics:
                try:
                    await self.create_logs([topic], is_lost=is_lost)
                except (OSError, StorageError) as error:
                    logger.error(
                        "partitions are offline until a restart: their logs could not be created",
                        extra={"topic": topic.name, "reason": str(error)},
                    )

    def _open_partitions(self, topic: Topic, *, notifies: bool = False) -> None:
        """Open the partitions of a topic that are not open."""
        partitions = self._partitions.setdefault(topic.name, {})
        self._partitions_by_id[topic.id] = partitions
        for index in range(len(topic.replicas)):
            state = self.image.partition_state(topic, index)
            if state is not None:
                self._update_role(topic, index, state, notifies=notifies)
            elif index not in partitions and self.leads(topic, index):
                log = self._readable_log(topic, index)
                partitions[index] = None if log is None else self._new_partition(topic, index, log)

    def _readable_log(self, topic: Topic, index: int) -> Log | None:
        """Return the log of a partition; one that only serves reads is for consumers."""
        name = _log_name(topic.name, index)
        log = self._logs.logs.get(name)
        if log is None and topic.name not in INTERNAL_TOPICS:
            log = self._logs.read_only.get(name)
        return log

    # Roles.

    def update_roles(self, records: Iterable[KeyValue] = ()) -> None:
        """Make partitions lead and follow as their states say.

        Those that are among `records`, and all if this broker may act now, or no longer.
        """
        activity = (self.is_active, self._is_own_registration)
        keys: Iterable[tuple[UUID, int]]
        if activity != self._activity:
            self._activity = activity
            states = self.image.partition_states.items()
            keys = [(topic_id, index) for topic_id, of_topic in states for index in of_topic]
        else:
            keys = filter(None, (parse_partition_key(key) for key, _value in records))
        for topic_id, index in keys:
            topic = self.image.topics_by_id.get(topic_id)
            if topic is not None and index < len(topic.replicas):
                state = self.image.partition_state(topic, index)
                if state is not None:
                    self._update_role(topic, index, state)

    def apply_state(self, topic: Topic, index: int, state: PartitionState) -> None:
        """Apply a state that this broker has just stored, before its record arrives."""
        if self.image.topics_by_id.get(topic.id) is not None:
            self._update_role(topic, index, state)

    def _update_role(
        self, topic: Topic, index: int, state: PartitionState, *, notifies: bool = True
    ) -> None:
        led = self._partitions[topic.name]
        key = (topic.name, index)
        broker_id = self.config.broker_id
        partition = led.get(index) or self._followed.get(key)
        if broker_id not in state.replicas:
            if partition is not None:
                self._close_replica(topic, index, partition, state)
            return
        if partition is None:
            partition = self._open_replica(topic, index)
            if partition is None:
                return
        if partition.state is not None and (
            partition.state.partition_epoch > state.partition_epoch
        ):
            state = partition.state
        was_led = index in led
        may_act = self._may_act(state)
        is_led = state.leader == broker_id and may_act and not partition.log.is_truncating
        if is_led:
            self._followed.pop(key, None)
            led[index] = partition
            partition.lead(state, broker_id, int(time.monotonic() * 1000))
        else:
            led.pop(index, None)
            self._followed[key] = partition
            partition.follow(state, is_active=may_act)
        if self.replica_listener is not None:
            self.replica_listener.role_changed(partition)
        if notifies and is_led is not was_led:
            for listener in self.listeners:
                if is_led:
                    listener.partition_opened(topic, index)
                else:
                    listener.partition_closed(topic, index)

    def _open_replica(self, topic: Topic, index: int) -> Partition | None:
        name = _log_name(topic.name, index)
        log = self._logs.logs.get(name)
        if log is None:
            return None
        partition = self._partition(topic, index, log)
        partition.role = Role.OFFLINE
        partition.restore_high_watermark(self._high_watermarks.get(name, 0))
        return partition

    def _close_replica(
        self, topic: Topic, index: int, partition: Partition, state: PartitionState
    ) -> None:
        """Close the partition of a replica that was moved to other brokers."""
        was_led = self._partitions[topic.name].pop(index, None) is not None
        self._followed.pop((topic.name, index), None)
        partition.follow(state, is_active=False)
        partition.log.high_watermark = None
        if self.replica_listener is not None:
            self.replica_listener.replica_closed(partition)
        if was_led:
            for listener in self.listeners:
                listener.partition_closed(topic, index)

    def _new_partition(self, topic: Topic, index: int, log: Log) -> Partition:
        partition = self._partition(topic, index, log)
        partition.set_leader_epoch(self.leader_epoch, self._accepted_epoch)
        return partition

    def _partition(self, topic: Topic, index: int, log: Log) -> Partition:
        traffic = self.traffic.setdefault(topic.name, TopicTraffic())
        return Partition(topic.name, index, log, self._logs.flusher, traffic)

    def _close_partitions(self, topic: Topic) -> None:
        """Close the partitions of a deleted topic, and wake the requests that wait for them."""
        self.traffic.pop(topic.name, None)
        del self._partitions_by_id[topic.id]
        followed = [key for key in self._followed if key[0] == topic.name]
        for partition in (
            *self._partitions.pop(topic.name).values(),
            *map(self._followed.pop, followed),
        ):
            if partition is not None:
                if self.replica_listener is not None:
                    self.replica_listener.replica_closed(partition)
                # Housekeeping skips it from now on, and a flush under way may fail: the directory
                # is about to be deleted, and a new one of the same name may follow.
                partition.log.take_offline("the topic was deleted")
                # Here, and not in the thread that deletes the log.
                partition.log.producer_states.count_in(None)
                partition.wake_all()

    def _configure_partitions(self, topic: Topic) -> None:
        config = self.config_of(topic)
        followed = [partition for key, partition in self._followed.items() if key[0] == topic.name]
        for partition in (*self._partitions[topic.name].values(), *followed):
            if partition is not None:
                partition.set_config(config)

    def _apply_dynamic_configs(self) -> None:
        dynamic_configs = self.image.dynamic_configs(self.config.broker_id)
        try:
            static = self.static_config
            self.config = static.with_overrides(dynamic_configs) if dynamic_configs else static
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
            incoming = self._incoming.get((topic.id, index))
            if (
                self.has_replica(topic, index)
                if incoming is None
                else self.config.broker_id in incoming.replicas
            ):
                yield _log_name(topic.name, index)

    def _partition_metadata(self, topics: Iterable[Topic]) -> dict[str, UUID]:
        """Return the topic ids of the logs that topics need on this broker, by log name."""
        return {name: topic.id for topic in topics for name in self._log_names(topic)}

    def _has_log(self, name: str, topic_id: UUID) -> bool:
        log = self._logs.logs.get(name)
        return log is not None and self._has_id(log, topic_id)

    @staticmethod
    def _has_id(log: Log, topic_id: UUID) -> bool:
        return log.topic_id in (topic_id, None)

    def _create_logs(self, topics: Iterable[Topic], lost: Collection[str]) -> None:
        """Create the logs that topics need on this broker; those in `lost` existed before."""
        topics = list(topics)
        lost = self._without_replicated(topics, lost)
        metadata = {
            name: PartitionMetadata(topic_id, name in lost)
            for name, topic_id in self._partition_metadata(topics).items()
            if name not in self._logs.failed and not self._has_log(name, topic_id)
        }
        configs = self._log_configs(topics)
        self._logs.create_all({name: configs[name] for name in metadata}, metadata)
        if lost:
            logger.error(
                "partition log missing (data loss): created empty logs; consumers get"
                " OFFSET_OUT_OF_RANGE, and idempotent producers OUT_OF_ORDER_SEQUENCE_NUMBER",
                extra={
                    "partitions": len(lost),
                    "topics": len({name.rpartition("-")[0] for name in lost}),
                    "first": min(lost),
                },
            )

    def _without_replicated(self, topics: Iterable[Topic], lost: Collection[str]) -> set[str]:
        """Return the lost logs that have no other replica; log how many have one.

        Those are copied from their leaders, with the states of producers.
        """
        replicated = {
            _log_name(topic.name, index)
            for topic in topics
            for index in range(len(topic.replicas))
            if len(self.image.replicas_of(topic, index)) > 1
        }.intersection(lost)
        if replicated:
            self.has_lost_replicas = True
            logger.warning(
                "replicas are missing: copying them from their leaders",
                extra={"partitions": len(replicated), "first": min(replicated)},
            )
        return set(lost) - replicated

    def _remove_stray_logs(self) -> set[str]:
        """Remove the logs that belong to no topic of the image; return their names."""
        topic_ids = self._partition_metadata(self.image.topics.values())
        strays = {
            name
            for name in self._logs.logs
            if name != LOG_NAME and not (name in topic_ids and self._has_log(name, topic_ids[name]))
        }
        for name in strays:
            self._remove_log(name)
        return strays

    def _remove_logs(self, topics: Iterable[Topic]) -> None:
        for topic in topics:
            for name in self._log_names(topic):
                if name in self._logs.logs:
                    try:
                        self._remove_log(name, topic.id)
                    except OSError:
                        # The next start does it.
                        logger.exception("a log could not be removed", extra={"log": name})

    def _moved_log(self, topic_id: UUID | None, index: int) -> list[str]:
        """Return the name of a log whose replica was moved to other brokers, if there is one."""
        topic = None if topic_id is None else self.image.topics_by_id.get(topic_id)
        if topic is None:
            return []
        state = self.image.partition_state(topic, index)
        name = _log_name(topic.name, index)
        if state is None or self.config.broker_id in state.replicas:
            return []
        return [name] if self._has_log(name, topic.id) else []

    def _remove_moved_logs(self, logs: Mapping[str, UUID]) -> None:
        for name, topic_id in logs.items():
            try:
                self._remove_log(name, topic_id)
            except OSError:
                # The next start does it.
                logger.exception("a log could not be removed", extra={"log": name})
            else:
                logger.info("removed a replica that was moved to other brokers: %s", name)

    def _remove_log(self, name: str, topic_id: UUID | None = None) -> None:
        """Delete a log if its topic was deleted, it was moved, or it is empty; or set it aside."""
        log = self._logs.logs[name]
        topic_id = log.topic_id or topic_id
        if (
            topic_id in self.image.deleted_topics
            or log.end_offset == 0
            or name in self._moved_log(topic_id, int(name.rpartition("-")[2]))
        ):
            self._logs.delete(name)
            return
        path = self._logs.set_aside(name)
        logger.error(
            "set aside the log of an unknown topic: the metadata has neither the topic nor its"
            " deletion",
            extra={"log": name, "topic_id": str(topic_id or ""), "path": str(path)},
        )


def _offline_error() -> ApiError:
    return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "The log could not be opened")


def _partition_states(
    records: Iterable[KeyValue],
) -> Iterator[tuple[tuple[UUID, int], PartitionState]]:
    """Yield the keys and the states of the partition records among `records`."""
    for key, value in records:
        partition = parse_partition_key(key)
        if partition is not None and value is not None:
            yield partition, PartitionState.from_json(value)


def _log_name(topic: str, index: int) -> str:
    return f"{topic}-{index}"
