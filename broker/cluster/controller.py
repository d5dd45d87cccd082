"""The controller: decides what changes, writes it down, and sees that all brokers hear of it.

One broker of a cluster is the controller, the one with the lowest id; others send it what clients
ask them to change. A change is done when it is on the device and in force here. Its answer waits,
for a while, until the brokers that are up have it too: so a client that makes a topic finds it
wherever it asks next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from uuid import UUID, uuid4

from ottla.coord.metadata_image import (
    METADATA_TOPIC,
    InvalidTopicError,
    Topic,
    broker_record,
    check_topic_collision,
    collision_key,
    producer_ids_record,
    topic_record,
    topic_tombstone,
)
from ottla.coord.placement import assign_replicas
from ottla.protocol.errors import ErrorCode
from ottla.storage.errors import StorageError

from ..config.broker_config import BrokerConfig
from ..partitions.topics import Topics
from ..requests.errors import EXPECTED_ERRORS, ApiError
from .membership import ClusterMembership

#: Gives the settings that are to be, for those that there are. It may raise what is against it.
ConfigChange = Callable[[Mapping[str, str]], Mapping[str, str]]

#: Producer ids that one record takes out of the pool. Those not given out by a stop are lost.
PRODUCER_IDS_PER_BLOCK = 1000
_TOPICS_BETWEEN_BREATHS = 100


class Controller:
    """Changes topics, settings and producer ids, one change after the other."""

    def __init__(self, topics: Topics, cluster: ClusterMembership) -> None:
        self._topics = topics
        self._catalogue = topics.image
        self._cluster = cluster
        self._changing = asyncio.Lock()

    def plan_topic(
        self,
        name: str,
        count: int,
        configs: Mapping[str, str],
        replicas: Sequence[Sequence[int]] | None = None,
    ) -> Topic:
        """Say what a new topic would be. Raises ApiError, InvalidTopicError and ConfigError."""
        self._check_new(name, count)
        self._topics.topic_config(configs)
        placed = self._place(count, replicas)
        return Topic(name, _new_id(), placed, dict(configs))

    def plan_internal_topic(self, name: str, count: int, configs: Mapping[str, str]) -> Topic:
        """Say what a topic of the brokers' own would be: spread over all, up or down."""
        brokers = self._cluster.broker_ids
        return self.plan_topic(name, count, configs, assign_replicas(count, brokers, 0))

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
        return topic.with_partitions(self._place(more, replicas))

    async def plan_and_create_topics(
        self, names: Iterable[str], plan: Callable[[str], Topic], *, validate_only: bool = False
    ) -> dict[str, Topic | Exception]:
        """Make topics as they are planned; give each of them, or what went wrong with it."""
        outcomes: dict[str, Topic | Exception] = {}
        for number, name in enumerate(names, start=1):
            try:
                outcomes[name] = plan(name)
            except EXPECTED_ERRORS as error:
                outcomes[name] = error
            if number % _TOPICS_BETWEEN_BREATHS == 0:
                await asyncio.sleep(0)
        if not validate_only:
            planned = [outcome for outcome in outcomes.values() if isinstance(outcome, Topic)]
            for topic, failure in zip(planned, await self.create_topics(planned), strict=True):
                if failure is not None:
                    outcomes[topic.name] = failure
        return outcomes

    async def create_topics(self, topics: Sequence[Topic]) -> list[Exception | None]:
        """Make topics, as planned; give for each what went wrong, if anything did."""
        async with self._changing:
            errors: list[Exception | None] = []
            new: dict[str, Topic] = {}
            count = 0
            for topic in topics:
                try:
                    # Again: others may have come since it was planned, and there are these.
                    self._check_new(topic.name, count + len(topic.replicas))
                    other = new.setdefault(collision_key(topic.name), topic)
                    check_topic_collision(topic.name, other.name)
                except (ApiError, InvalidTopicError) as error:
                    errors.append(error)
                else:
                    errors.append(None)
                    count += len(topic.replicas)
            if not new:
                return errors
            try:
                end = await self._make(list(new.values()))
            except (OSError, StorageError) as failure:
                return [failure if error is None else error for error in errors]
        await self._cluster.wait_for_metadata(end)
        return errors

    async def add_partitions(self, topic: Topic) -> None:
        """Let a topic have the partitions that were planned."""
        async with self._changing:
            current = self._check_is_there(topic)
            # Settings may have changed since it was planned, and partitions may have been added.
            more = topic.replicas[len(current.replicas) :]
            end = await self._make([self.plan_partitions(current, len(topic.replicas), more)])
        await self._cluster.wait_for_metadata(end)

    async def delete_topic(self, topic: Topic) -> None:
        """Delete a topic. It is gone when this returns, and its files are, or soon will be."""
        async with self._changing:
            self._check_is_there(topic)
            end = await self._topics.commit([topic_tombstone(topic.name)])
        await self._cluster.wait_for_metadata(end)

    async def alter_topic_configs(self, topic: Topic, change: ConfigChange) -> None:
        """Change the settings of a topic of its own; they count at once. Raises ConfigError."""
        async with self._changing:
            topic = self._check_is_there(topic)
            configs = change(topic.configs)
            self._topics.topic_config(configs)
            end = await self._topics.commit([topic_record(topic.with_configs(configs))])
        await self._cluster.wait_for_metadata(end)

    async def alter_broker_configs(self, broker_id: int, change: ConfigChange) -> None:
        """Change the altered settings of a broker; they count at once. Raises ConfigError."""
        async with self._changing:
            configs = self.validate_broker_configs(broker_id, change)
            end = await self._topics.commit([broker_record(broker_id, configs)])
        await self._cluster.wait_for_metadata(end)

    def validate_broker_configs(self, broker_id: int, change: ConfigChange) -> Mapping[str, str]:
        """Give the altered settings that a broker would have. Raises ConfigError."""
        configs = change(self._catalogue.broker_configs.get(broker_id, {}))
        is_own = broker_id == self._topics.config.broker_id
        # With what another one was started is not known here.
        (self._topics.static_config if is_own else BrokerConfig()).with_overrides(configs)
        return configs

    async def allocate_producer_ids(self) -> range:
        """Give producer ids that nobody was ever given."""
        async with self._changing:
            first = self._catalogue.next_producer_id
            after = first + PRODUCER_IDS_PER_BLOCK
            await self._topics.commit([producer_ids_record(after)])
        return range(first, after)

    async def _make(self, topics: Sequence[Topic]) -> int:
        # Files come before the record: a disk that is full is to be an error, not a topic.
        await self._topics.create_logs(topics)
        return await self._topics.commit([topic_record(topic) for topic in topics])

    def _place(
        self, count: int, replicas: Sequence[Sequence[int]] | None
    ) -> tuple[tuple[int, ...], ...]:
        if replicas is not None:
            return tuple(tuple(brokers) for brokers in replicas)
        # In turns over those that are up, going on where the last topic ended.
        return assign_replicas(count, sorted(self._cluster.alive), self._catalogue.partition_count)

    def _check_is_there(self, topic: Topic) -> Topic:
        """Give the topic as it is by now."""
        current = self._catalogue.topics.get(topic.name)
        if current is None or current.id != topic.id:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return current

    def _check_new(self, name: str, count: int) -> None:
        self._catalogue.check_new_name(name)
        if name in self._catalogue.topics:
            raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"the topic {name!r} exists already")
        if name == METADATA_TOPIC:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is an internal topic")
        self._check_room(count)

    def _check_room(self, count: int) -> None:
        limit = self._topics.config.broker_max_partitions
        brokers = len(self._cluster.broker_ids)
        there_are = self._catalogue.partition_count
        if count < 1:
            raise ApiError(
                ErrorCode.INVALID_PARTITIONS, f"{count} partitions: at least 1 is needed"
            )
        if there_are + count > limit * brokers:
            raise ApiError(
                ErrorCode.INVALID_PARTITIONS,
                f"{count} partitions more than the {there_are} that there are:"
                f" broker.max.partitions is {limit}"
                + (f", and there are {brokers} brokers" if brokers > 1 else ""),
            )


def _new_id() -> UUID:
    """Make up an id whose text, in Kafka's tools, does not look like an option: no '-' in front."""
    found = uuid4()
    return _new_id() if found.bytes[0] >> 2 == 62 else found
