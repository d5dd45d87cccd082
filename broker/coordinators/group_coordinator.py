"""The group coordinator: the shards that this broker leads, by partition of `__consumer_offsets`.

The partition of a group follows from its id, and the partition's leader is the group's coordinator.
A shard is loaded from its partition's log before its groups are served; until then they get
COORDINATOR_LOAD_IN_PROGRESS. Each shard is loaded and unloaded by itself.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from ottla.coord.config import ClassicGroupConfig, GroupCoordinatorConfig
from ottla.coord.group import Group
from ottla.coord.group_shard import GroupShard
from ottla.coord.metadata_image import OFFSETS_TOPIC, Topic, TopicPartition
from ottla.coord.placement import partition_of_group
from ottla.coord.records import CommittedOffset
from ottla.protocol.errors import ErrorCode

from ..observability.logging import log_limited
from ..requests.errors import EXPECTED_ERRORS
from .shard_runtime import Event, ShardRuntime, current_time

if TYPE_CHECKING:
    from ..broker import Broker
    from ..config.broker_config import BrokerConfig
    from ..partitions.partition import Partition

logger = logging.getLogger(__name__)

#: How often empty groups and expired offsets are removed early, while memory is exhausted. It looks
#: at all groups.
_EVICTION_SECONDS = 60.0

R = TypeVar("R")


class GroupCoordinator:
    """The groups that this broker coordinates."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._config = _coordinator_config(broker.config)
        #: The shards that serve requests, by partition.
        self.shards: dict[int, ShardRuntime] = {}
        self._loading: dict[int, ShardRuntime] = {}
        # Whether `load` has not completed yet.
        self._is_starting = True
        self._is_stopped = False
        self._next_eviction = 0.0

    def apply_config(self, config: BrokerConfig) -> None:
        """Apply the broker's dynamic configs."""
        self._config = _coordinator_config(config)
        for runtime in (*self.shards.values(), *self._loading.values()):
            runtime.shard.config = self._config

    # Shards.

    @property
    def is_loading(self) -> bool:
        """Whether there may be groups that are not loaded yet."""
        return self._is_starting or bool(self._loading)

    async def load(self) -> None:
        """Load all shards that this broker leads, one after another."""
        for index in list(self._led_partitions()):
            if self._is_stopped:
                return
            await self.load_shard(index)
        self._is_starting = self._is_stopped

    async def load_shard(self, index: int) -> None:
        """Load the shard of a partition, unless it is loaded.

        If the log cannot be read, the groups of this shard get COORDINATOR_NOT_AVAILABLE.
        """
        partition = self._led_partitions().get(index)
        if partition is None or index in self.shards or index in self._loading:
            return
        runtime = self._loading[index] = self._new_runtime(partition)
        try:
            await runtime.load()
        except EXPECTED_ERRORS:
            logger.exception("%r cannot be read: its groups are not available", partition)
            return
        finally:
            if self._loading.get(index) is runtime:
                del self._loading[index]
        if runtime.is_closed:
            return
        self.shards[index] = runtime
        # Topics that were deleted while no coordinator was there to remove their offsets.
        runtime.run(runtime.shard.delete_outdated(self._broker.topics.image))

    def unload_shard(self, index: int) -> None:
        """Unload the shard of a partition. Waiting members get NOT_COORDINATOR."""
        for runtimes in (self.shards, self._loading):
            runtime = runtimes.pop(index, None)
            if runtime is not None:
                runtime.unload()

    def refuse_waiting(self) -> None:
        """Answer all waiting members with COORDINATOR_NOT_AVAILABLE: the broker is stopping."""
        for runtime in self.shards.values():
            runtime.run(runtime.shard.refuse_waiting(ErrorCode.COORDINATOR_NOT_AVAILABLE))

    def stop(self) -> None:
        """Stop loading, and stop all timers."""
        self._is_stopped = True
        for runtime in (*self.shards.values(), *self._loading.values()):
            runtime.close()

    def clean_up(self) -> None:
        """Remove expired offsets and empty groups."""
        for runtime in self.shards.values():
            runtime.run(runtime.shard.clean_up(current_time()))

    def _new_runtime(self, partition: Partition) -> ShardRuntime:
        shard = GroupShard(self._config, self._count_groups, self._has_memory)
        return ShardRuntime(shard, partition)

    def _count_groups(self) -> int:
        return sum(len(runtime.shard.with_members) for runtime in self.shards.values())

    def size_bytes(self) -> int:
        """Return the estimated memory of groups and committed offsets."""
        return sum(
            runtime.shard.size_bytes for runtime in (*self.shards.values(), *self._loading.values())
        )

    def _has_memory(self, size_bytes: int, is_member: bool) -> bool:
        fits = self._broker.memory.fits(size_bytes, is_member=is_member)
        if not fits and time.monotonic() >= self._next_eviction:
            # Not in the middle of an event of a shard. It makes room for the client's next attempt.
            self._next_eviction = time.monotonic() + _EVICTION_SECONDS
            asyncio.get_running_loop().call_soon(self.clean_up)
            log_limited(
                logger,
                "Request refused: broker.memory.max.bytes is exhausted",
                extra={"groups_bytes": self.size_bytes()},
            )
        return fits

    # Routing.

    def coordinator_of(self, group_id: str) -> int:
        """Return the broker that coordinates a group; -1 while there is no offsets topic."""
        topic = self._topic
        if topic is None:
            return -1
        return topic.replicas[partition_of_group(group_id, len(topic.replicas))][0]

    def shard_of(self, group_id: str) -> ShardRuntime | None:
        """Return the shard that serves a group, if it is here and loaded."""
        topic = self._topic
        if topic is None:
            return None
        return self.shards.get(partition_of_group(group_id, len(topic.replicas)))

    def check(self, group_id: str) -> ErrorCode:
        """Return NONE if a group is served here, else the error for its requests."""
        topic = self._topic
        if topic is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        index = partition_of_group(group_id, len(topic.replicas))
        if index in self.shards:
            return ErrorCode.NONE
        if not self._broker.topics.leads(topic, index):
            return ErrorCode.NOT_COORDINATOR
        if self._is_starting or index in self._loading:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return ErrorCode.COORDINATOR_NOT_AVAILABLE  # Its log could not be opened or read.

    def check_existence(self, group_id: str) -> ErrorCode:
        """Return NONE if it is known here whether a group exists, else the error.

        Without an offsets topic no group exists.
        """
        return self.check(group_id) if self.has_topic else ErrorCode.NONE

    def submit(
        self, group_id: str, event: Event[R], error_response: Callable[[ErrorCode], R]
    ) -> R | asyncio.Future[R]:
        """Handle a request in the shard of its group; return its response, or a future of it."""
        code = self.check(group_id)
        if code is not ErrorCode.NONE:
            return error_response(code)
        runtime = self.shard_of(group_id)
        assert runtime is not None
        return runtime.submit(event)

    # Queries.

    def group(self, group_id: str) -> Group | None:
        """Return a group that is served here."""
        runtime = self.shard_of(group_id)
        return None if runtime is None else runtime.shard.groups.get(group_id)

    def groups(self) -> list[Group]:
        """Return all groups that are served here. Safe to call from another thread."""
        return [
            group
            for runtime in list(self.shards.values())
            for group in list(runtime.shard.groups.values())
        ]

    def committed(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """Return the committed offsets of a group."""
        runtime = self.shard_of(group_id)
        return {} if runtime is None else runtime.shard.offsets.of_group(group_id)

    def all_committed(self) -> list[tuple[str, Mapping[TopicPartition, CommittedOffset]]]:
        """Return the committed offsets of all groups. Safe to call from another thread."""
        return [
            offsets
            for runtime in list(self.shards.values())
            for offsets in runtime.shard.offsets.all()
        ]

    # Topics.

    @property
    def has_topic(self) -> bool:
        """Whether the offsets topic exists."""
        return self._topic is not None

    @property
    def _topic(self) -> Topic | None:
        return self._broker.topics.image.topics.get(OFFSETS_TOPIC)

    def _led_partitions(self) -> Mapping[int, Partition | None]:
        topic = self._topic
        return {} if topic is None else self._broker.topics.led_partitions(topic)

    async def ensure_topic(self) -> None:
        """Create `__consumer_offsets` if it does not exist. Raises what creating a topic raises."""
        controller, config = self._broker.controller, self._broker.config
        if self.has_topic:
            return
        configs = {
            "cleanup.policy": "compact",
            "segment.bytes": str(config.offsets_topic_segment_bytes),
            # A commit that is lost in a power cut makes consumers read records twice. Who minds
            # that more than an fsync per commit alters this config.
            "durability": "page-cache",
        }
        topic = controller.plan_internal_topic(
            OFFSETS_TOPIC, config.offsets_topic_num_partitions, configs
        )
        (error,) = await controller.create_topics([topic])
        if error is not None and not self.has_topic:
            raise error

    def topic_created(self, topic: Topic) -> None:
        """Serve the shards of a new offsets topic: there is nothing to load."""
        if topic.name == OFFSETS_TOPIC:
            for index, partition in self._led_partitions().items():
                if partition is not None:
                    self.shards[index] = self._new_runtime(partition)
                    self.shards[index].activate()

    def topic_deleted(self, topic: Topic) -> None:
        """Remove the committed offsets of a topic."""
        if topic.name == OFFSETS_TOPIC:
            for index in list(self.shards):
                self.unload_shard(index)
        for runtime in self.shards.values():
            runtime.run(runtime.shard.delete_topics({topic.name}))


def _coordinator_config(config: BrokerConfig) -> GroupCoordinatorConfig:
    return GroupCoordinatorConfig(
        group=ClassicGroupConfig(
            min_session_timeout_ms=config.group_min_session_timeout_ms,
            max_session_timeout_ms=config.group_max_session_timeout_ms,
            initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            max_size=config.group_max_size,
        ),
        max_groups=config.broker_max_groups,
        offset_metadata_max_bytes=config.offset_metadata_max_bytes,
        offsets_retention_ms=config.offsets_retention_minutes * 60_000,
    )
