"""The controller: the one broker that changes the cluster's metadata.

It is the broker with the lowest id; the others forward their clients' changes to it. A change is
committed when its records are fsynced in the controller's metadata log and applied there. The
response waits, for at most a broker session, until all live brokers have replayed it: a client that
creates a topic then finds it on every broker.

Each start begins a controller epoch (see `coord/metadata_image.py`). A broker that has metadata of
an epoch that this controller does not have is not registered: one of the two has another log.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID, uuid4

from ottla.coord.metadata_image import (
    METADATA_TOPIC,
    BrokerRegistration,
    InvalidTopicError,
    KeyValue,
    MetadataPosition,
    Topic,
    broker_record,
    check_topic_collision,
    collision_key,
    group_record,
    producer_ids_record,
    registration_record,
    topic_record,
)
from ottla.coord.placement import assign_replicas
from ottla.protocol.errors import ErrorCode
from ottla.storage.errors import StorageError

from ..config.broker_config import BrokerConfig
from ..observability.logging import log_limited
from ..partitions.topics import Topics
from ..requests.errors import EXPECTED_ERRORS, ApiError
from .membership import ClusterMembership

if TYPE_CHECKING:
    from ..net.connection import Connection

logger = logging.getLogger(__name__)

#: Returns the new overrides for the current ones. May raise ConfigError or ApiError.
ConfigChange = Callable[[Mapping[str, str]], Mapping[str, str]]

#: Size of the blocks in which producer ids are allocated. The unused rest of a block is lost when
#: a broker stops.
PRODUCER_IDS_PER_BLOCK = 1000
_TOPICS_PER_YIELD = 100
# A controller that was restored from a copy does not know the ids that it allocated since. In a
# cluster, each start skips a random number of ids, far more than are ever allocated between two.
_MAX_SKIPPED_PRODUCER_IDS = 2**32


class RegistrationRequest(NamedTuple):
    """What a broker reports when it registers."""

    broker_id: int
    incarnation: UUID
    position: MetadataPosition | None
    #: The lowest leader epoch that it can use.
    leader_epoch: int
    next_producer_id: int
    directory: UUID | None


class Registered(NamedTuple):
    """A registration, and the controller epoch it was made in."""

    registration: BrokerRegistration
    epoch: int
    epoch_id: UUID
    is_directory_lost: bool


class Controller:
    """Changes topics, configs and producer ids, one change at a time."""

    def __init__(self, topics: Topics, cluster: ClusterMembership) -> None:
        self._topics = topics
        self._image = topics.image
        self._cluster = cluster
        self._change_lock = asyncio.Lock()
        # None: the start of the epoch is not in the log yet.
        self._epoch: int | None = None
        self._refused: set[int] = set()

    async def start(self) -> None:
        """Begin a controller epoch, and a leader epoch of the partitions led here.

        If that cannot be written, because the disk is full, the next change tries it again.
        """
        self._topics.start_leader_epoch(self._topics.next_leader_epoch())
        async with self._change_lock:
            try:
                await self._start_epoch()
            except (OSError, StorageError) as error:
                logger.error(
                    "the controller epoch could not be written: metadata cannot be changed",
                    extra={"reason": str(error)},
                )

    async def _start_epoch(self) -> None:
        if self._epoch is not None:
            return
        cluster, metadata_log = self._cluster, self._topics.metadata_log
        end_offset = metadata_log.end_offset
        number, records = self._image.new_epoch_records(cluster.incarnation, end_offset)
        registration = BrokerRegistration(
            cluster.incarnation, end_offset, self._topics.leader_epoch
        )
        records.append(registration_record(cluster.broker_id, registration))
        if len(cluster.broker_ids) > 1:
            skipped = secrets.randbelow(_MAX_SKIPPED_PRODUCER_IDS)
            records.append(producer_ids_record(self._image.next_producer_id + skipped))
        metadata_log.start_epoch(number)
        await self._topics.commit(records)
        self._epoch = number

    async def _commit(self, records: Sequence[KeyValue]) -> int:
        """Commit a change, in the epoch of this controller; return the end offset."""
        await self._start_epoch()
        return await self._topics.commit(records)

    async def register_broker(
        self, request: RegistrationRequest, connection: Connection
    ) -> Registered:
        """Register another broker, on one of its connections. Raises ApiError."""
        async with self._change_lock:
            await self._start_epoch()
            assert self._epoch is not None
            broker_id = request.broker_id
            rival = self._cluster.sessions.rival_of(broker_id, request.incarnation)
            if rival is not None:
                raise ApiError(
                    ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                    f"Broker id {broker_id} is in use by another process, at {rival}",
                )
            self._check_position(request)
            current = self._image.registrations.get(broker_id)
            registration = self._next_registration(current, request)
            records = []
            if registration != current:
                records.append(registration_record(broker_id, registration))
            if request.next_producer_id > self._image.next_producer_id:
                records.append(producer_ids_record(request.next_producer_id))
            if records:
                await self._commit(records)
            self._cluster.sessions.register(broker_id, request.incarnation, connection)
        is_directory_lost = (
            current is not None
            and current.directory is not None
            and current.directory != request.directory
        )
        epoch_id = self._image.epochs[self._epoch].id
        return Registered(registration, self._epoch, epoch_id, is_directory_lost)

    def _check_position(self, request: RegistrationRequest) -> None:
        """Raise ApiError if a broker has metadata that this controller does not have."""
        position, end_offset = request.position, self._topics.metadata_log.end_offset
        if position is None or self._image.contains(position, end_offset):
            self._refused.discard(request.broker_id)
            return
        if request.broker_id not in self._refused:
            self._refused.add(request.broker_id)
            logger.error(
                "a broker has another metadata log, and does not follow this controller",
                extra={"broker": request.broker_id, "epoch": self._epoch, "offset": end_offset},
            )
        raise ApiError(
            ErrorCode.UNKNOWN_LEADER_EPOCH,
            f"the controller's metadata log, in epoch {self._epoch} and up to offset {end_offset},"
            f" does not contain epoch {position.epoch} ({position.epoch_id}) up to offset"
            f" {position.offset}, which broker {request.broker_id} has",
        )

    def _next_registration(
        self, current: BrokerRegistration | None, request: RegistrationRequest
    ) -> BrokerRegistration:
        leader_epoch = request.leader_epoch
        if current is None or current.incarnation != request.incarnation:
            if current is not None:
                leader_epoch = max(leader_epoch, current.leader_epoch + 1)
            broker_epoch = self._topics.metadata_log.end_offset
            return BrokerRegistration(
                request.incarnation, broker_epoch, leader_epoch, request.directory
            )
        leader_epoch = max(leader_epoch, current.leader_epoch)
        return current._replace(leader_epoch=leader_epoch, directory=request.directory)

    def plan_topic(
        self,
        name: str,
        partition_count: int,
        configs: Mapping[str, str],
        replicas: Sequence[Sequence[int]] | None = None,
        replication_factor: int | None = None,
    ) -> Topic:
        """Return a new topic to create. Raises ApiError, InvalidTopicError or ConfigError."""
        self._check_new_topic(name, partition_count)
        self._topics.topic_config(configs)
        assigned = self._assign_replicas(partition_count, replicas, replication_factor)
        return Topic(name, _random_topic_id(), assigned, dict(configs))

    def plan_internal_topic(
        self, name: str, partition_count: int, configs: Mapping[str, str]
    ) -> Topic:
        """Return an internal topic to create, spread over all brokers, alive or not."""
        replicas = assign_replicas(partition_count, self._cluster.broker_ids, 0)
        return self.plan_topic(name, partition_count, configs, replicas)

    def plan_partitions(
        self, topic: Topic, partition_count: int, replicas: Sequence[Sequence[int]] | None = None
    ) -> Topic:
        """Return the topic with `partition_count` partitions in total. Raises ApiError."""
        current_count = len(topic.replicas)
        if partition_count <= current_count:
            raise ApiError(
                ErrorCode.INVALID_PARTITIONS,
                f"Topic {topic.name!r} has {current_count} partitions; cannot change to"
                f" {partition_count}: the number can only grow",
            )
        new_count = partition_count - current_count
        self._check_partition_limit(new_count)
        factor = self._factor_of(topic)
        return topic.with_partitions(self._assign_replicas(new_count, replicas, factor))

    async def plan_and_create_topics(
        self, names: Iterable[str], plan: Callable[[str], Topic], *, validate_only: bool = False
    ) -> dict[str, Topic | Exception]:
        """Plan topics and create them; return the topic or the error of each."""
        outcomes: dict[str, Topic | Exception] = {}
        for number, name in enumerate(names, start=1):
            try:
                outcomes[name] = plan(name)
            except EXPECTED_ERRORS as error:
                outcomes[name] = error
            if number % _TOPICS_PER_YIELD == 0:
                await asyncio.sleep(0)
        if not validate_only:
            planned = [outcome for outcome in outcomes.values() if isinstance(outcome, Topic)]
            errors = await self.create_topics(planned)
            for topic, topic_error in zip(planned, errors, strict=True):
                if topic_error is not None:
                    outcomes[topic.name] = topic_error
        return outcomes

    async def create_topics(self, topics: Sequence[Topic]) -> list[Exception | None]:
        """Create planned topics; return the error of each, or None."""
        async with self._change_lock:
            errors: list[Exception | None] = []
            accepted: dict[str, Topic] = {}
            partition_count = 0
            for topic in topics:
                try:
                    # Check again: topics may have been created since the plan, and these count too.
                    self._check_new_topic(topic.name, partition_count + len(topic.replicas))
                    other = accepted.setdefault(collision_key(topic.name), topic)
                    check_topic_collision(topic.name, other.name)
                except (ApiError, InvalidTopicError) as error:
                    errors.append(error)
                else:
                    errors.append(None)
                    partition_count += len(topic.replicas)
            if not accepted:
                return errors
            try:
                end_offset = await self._commit_topics(list(accepted.values()))
            except (OSError, StorageError, ApiError) as failure:
                # Several transactions of a store: some may have succeeded.
                return [
                    failure if error is None and topic.id not in self._image.topics_by_id else error
                    for topic, error in zip(topics, errors, strict=True)
                ]
        for topic in accepted.values():
            _log_topic(
                "Topic created",
                topic,
                partitions=len(topic.replicas),
                replication_factor=self._factor_of(topic),
                configs=_shown(topic.configs),
            )
        await self._cluster.wait_for_metadata(end_offset)
        return errors

    async def add_partitions(self, topic: Topic) -> None:
        """Add the partitions that were planned."""
        async with self._change_lock:
            current = self._current(topic)
            # Configs may have been altered and partitions added since the plan.
            replicas = topic.replicas[len(current.replicas) :]
            extended = self.plan_partitions(current, len(topic.replicas), replicas)
            end_offset = await self._commit_topics([extended])
        _log_topic("Partitions added", topic, partitions=len(extended.replicas))
        await self._cluster.wait_for_metadata(end_offset)

    async def delete_topic(self, topic: Topic) -> None:
        """Delete a topic. Its log files may be removed later."""
        async with self._change_lock:
            self._current(topic)
            end_offset = await self._commit(self._image.deletion_records(topic))
        _log_topic("Topic deleted", topic)
        await self._cluster.wait_for_metadata(end_offset)

    async def alter_topic_configs(self, topic: Topic, change: ConfigChange) -> None:
        """Change the overrides of a topic, effective at once. Raises ConfigError."""
        async with self._change_lock:
            topic = self._current(topic)
            configs = change(topic.configs)
            self._topics.validate_configs(topic, configs)
            end_offset = await self._commit([topic_record(topic.with_configs(configs))])
        _log_topic("Topic configs altered", topic, configs=_shown(configs))
        await self._cluster.wait_for_metadata(end_offset)

    async def alter_broker_configs(self, broker_id: int, change: ConfigChange) -> None:
        """Change the dynamic configs of a broker, effective at once. Raises ConfigError."""
        async with self._change_lock:
            configs = self.validate_broker_configs(broker_id, change)
            end_offset = await self._commit([broker_record(broker_id, configs)])
        await self._cluster.wait_for_metadata(end_offset)

    async def change(self, plan: Callable[[], Sequence[KeyValue]]) -> None:
        """Commit the records that `plan` returns when no other change is under way."""
        end_offset = await self.commit(plan)
        if end_offset is not None:
            await self._cluster.wait_for_metadata(end_offset)

    async def commit(self, plan: Callable[[], Sequence[KeyValue]]) -> int | None:
        """Do the same without waiting for other brokers; return the offset to wait for, if any."""
        async with self._change_lock:
            records = plan()
            return await self._commit(records) if records else None

    def validate_broker_configs(self, broker_id: int, change: ConfigChange) -> Mapping[str, str]:
        """Return the dynamic configs of a broker after a change. Raises ConfigError."""
        configs = change(self._image.broker_configs.get(broker_id, {}))
        is_this_broker = broker_id == self._topics.config.broker_id
        # The static configs of other brokers are not known here.
        (self._topics.static_config if is_this_broker else BrokerConfig()).with_overrides(configs)
        return configs

    async def alter_group_configs(
        self,
        group_id: str,
        change: ConfigChange,
        check: Callable[[Mapping[str, str]], None],
    ) -> None:
        """Change the configs of a group, effective at once. Raises what `check` does."""
        async with self._change_lock:
            configs = change(self._image.group_configs.get(group_id, {}))
            check(configs)
            end_offset = await self._commit([group_record(group_id, configs)])
        await self._cluster.wait_for_metadata(end_offset)

    async def allocate_producer_ids(self) -> range:
        """Allocate a block of producer ids."""
        async with self._change_lock:
            await self._start_epoch()
            first = self._image.next_producer_id
            end = first + PRODUCER_IDS_PER_BLOCK
            await self._commit([producer_ids_record(end)])
        return range(first, end)

    async def _commit_topics(self, topics: Sequence[Topic]) -> int:
        # Create the logs before the record: a full disk fails the request and leaves no topic.
        await self._topics.create_logs(topics)
        return await self._commit([topic_record(topic) for topic in topics])

    def _assign_replicas(
        self,
        partition_count: int,
        replicas: Sequence[Sequence[int]] | None,
        _replication_factor: int | None = None,
    ) -> tuple[tuple[int, ...], ...]:
        if replicas is not None:
            return tuple(tuple(broker_ids) for broker_ids in replicas)
        # Round-robin over the live brokers, continuing after the last topic.
        return assign_replicas(
            partition_count, sorted(self._cluster.alive), self._image.partition_count
        )

    def _factor_of(self, topic: Topic) -> int:
        return len(topic.replicas[0])

    def _current(self, topic: Topic) -> Topic:
        """Return the topic as it is now. Raises ApiError if it was deleted."""
        current = self._image.topics.get(topic.name)
        if current is None or current.id != topic.id:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return current

    def _check_new_topic(self, name: str, partition_count: int) -> None:
        self._image.check_new_topic_name(name)
        if name in self._image.topics:
            raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic {name!r} already exists")
        if name == METADATA_TOPIC:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is an internal topic")
        self._check_partition_limit(partition_count)

    def _check_partition_limit(self, new_count: int) -> None:
        if new_count < 1:
            raise ApiError(
                ErrorCode.INVALID_PARTITIONS,
                f"Invalid number of partitions {new_count}: the minimum is 1",
            )
        limit = self._topics.config.broker_max_partitions
        broker_count = len(self._cluster.broker_ids)
        current_count = self._image.partition_count
        if current_count + new_count > limit * broker_count:
            raise ApiError(
                ErrorCode.INVALID_PARTITIONS,
                f"Too many partitions: {current_count} exist and {new_count} were requested;"
                f" broker.max.partitions is {limit}, for each of {broker_count} brokers",
            )


def _random_topic_id() -> UUID:
    """Return an id whose base64 form, in Kafka's tools, does not start with '-' like an option."""
    topic_id = uuid4()
    return _random_topic_id() if topic_id.bytes[0] >> 2 == 62 else topic_id


def _log_topic(event: str, topic: Topic, **fields: object) -> None:
    log_limited(logger, event, level=logging.INFO, extra={"topic": topic.name, **fields})


def _shown(configs: Mapping[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in configs.items())
