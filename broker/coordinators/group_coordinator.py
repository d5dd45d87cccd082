"""The group coordinator: the shards of `__consumer_offsets` that this broker leads."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ottla.coord.config import (
    ClassicGroupConfig,
    ConsumerGroupConfig,
    GroupCoordinatorConfig,
    MigrationPolicy,
    ShareGroupConfig,
)
from ottla.coord.group_shard import AnyGroup, GroupShard
from ottla.coord.metadata_image import OFFSETS_TOPIC, Topic, TopicPartition
from ottla.coord.records import CommittedOffset
from ottla.protocol.errors import ErrorCode

from ..observability.logging import log_limited
from .coordinator import Coordinator
from .shard_runtime import ShardRuntime, current_time

if TYPE_CHECKING:
    from ..broker import Broker
    from ..config.broker_config import BrokerConfig
    from ..partitions.partition import Partition

logger = logging.getLogger(__name__)

#: How often empty groups and expired offsets are removed early, while memory is exhausted. It looks
#: at all groups.
_EVICTION_SECONDS = 60.0


class GroupCoordinator(Coordinator[GroupShard]):
    """The groups that this broker coordinates."""

    topic_name = OFFSETS_TOPIC

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self._config = _coordinator_config(broker.config)
        self._next_eviction = 0.0
        # One for the assignors and expressions of all groups: the more threads compute, the longer
        # the event loop waits for its turn.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="assignor")

    def close(self) -> None:
        """End the thread, when the coordinator has stopped."""
        self._thread.shutdown(cancel_futures=True)

    def apply_config(self, config: BrokerConfig) -> None:
        """Apply the broker's dynamic configs."""
        self._config = _coordinator_config(config)
        for runtime in self._runtimes():
            runtime.shard.config = self._config

    # Shards.

    def clean_up(self) -> None:
        """Remove expired offsets and empty groups."""
        for runtime in self.shards.values():
            runtime.run(runtime.shard.clean_up(current_time()))

    def _new_runtime(self, partition: Partition) -> ShardRuntime[GroupShard]:
        shard = GroupShard(
            self._config, self._count_groups, self._has_memory, lambda: self._broker.topics.image
        )
        return ShardRuntime(shard, partition, thread=self._thread)

    def _shard_loaded(self, runtime: ShardRuntime[GroupShard]) -> None:
        # Topics that were deleted while no coordinator was there to remove their offsets.
        image = self._broker.topics.image
        runtime.run(runtime.shard.delete_outdated(image))
        runtime.run(
            runtime.shard.delete_share_states(lambda topic_id: topic_id not in image.topics_by_id)
        )

    def _planned_topic(self) -> tuple[int, Mapping[str, str]]:
        config = self._broker.config
        return config.offsets_topic_num_partitions, {
            "cleanup.policy": "compact",
            "segment.bytes": str(config.offsets_topic_segment_bytes),
            # A commit that is lost in a power cut makes consumers read records twice. Who minds
            # that more than an fsync per commit alters this config.
            "durability": "page-cache",
        }

    def _count_groups(self) -> int:
        count = sum(len(runtime.shard.with_members) for runtime in self.shards.values())
        if count >= self._config.max_groups:
            log_limited(
                logger, "JoinGroup refused: broker.max.groups have members", extra={"groups": count}
            )
        return count

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

    def check_existence(self, group_id: str) -> ErrorCode:
        """Return NONE if it is known here whether a group exists, else the error.

        Without an offsets topic no group exists.
        """
        return self.check(group_id) if self.has_topic else ErrorCode.NONE

    # Queries.

    def group(self, group_id: str) -> AnyGroup | None:
        """Return a group that is served here."""
        runtime = self.shard_of(group_id)
        return None if runtime is None else runtime.shard.groups.get(group_id)

    def groups(self) -> list[AnyGroup]:
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

    def pending_partitions(self, group_id: str) -> Collection[TopicPartition]:
        """Return the partitions for which open transactions commit offsets of a group."""
        runtime = self.shard_of(group_id)
        return () if runtime is None else runtime.shard.pending_offsets.of_group(group_id)

    # Topics.

    def topic_deleted(self, topic: Topic) -> None:
        """Remove the committed offsets of a topic."""
        super().topic_deleted(topic)
        for runtime in self.shards.values():
            runtime.run(runtime.shard.delete_topics({topic.name}))
            runtime.run(runtime.shard.delete_share_states(topic.id.__eq__))


def share_config(config: BrokerConfig) -> ShareGroupConfig:
    """Return the config of share groups that have none of their own."""
    return ShareGroupConfig(
        session_timeout_ms=config.group_share_session_timeout_ms,
        heartbeat_interval_ms=config.group_share_heartbeat_interval_ms,
        lock_duration_ms=config.group_share_record_lock_duration_ms,
        delivery_count_limit=config.group_share_delivery_count_limit,
        max_record_locks=config.group_share_partition_max_record_locks,
        max_size=config.group_share_max_size,
    )


def _coordinator_config(config: BrokerConfig) -> GroupCoordinatorConfig:
    return GroupCoordinatorConfig(
        group=ClassicGroupConfig(
            min_session_timeout_ms=config.group_min_session_timeout_ms,
            max_session_timeout_ms=config.group_max_session_timeout_ms,
            initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            max_size=config.group_max_size,
        ),
        consumer=ConsumerGroupConfig(
            session_timeout_ms=config.group_consumer_session_timeout_ms,
            heartbeat_interval_ms=config.group_consumer_heartbeat_interval_ms,
            assignment_interval_ms=config.group_consumer_assignment_interval_ms,
            regex_refresh_interval_ms=config.group_consumer_regex_refresh_interval_ms,
            max_size=config.group_consumer_max_size,
            assignors=config.consumer_assignors,
            migration_policy=MigrationPolicy(config.group_consumer_migration_policy),
        ),
        share=share_config(config),
        max_groups=config.broker_max_groups,
        offset_metadata_max_bytes=config.offset_metadata_max_bytes,
        offsets_retention_ms=config.offsets_retention_minutes * 60_000,
    )
