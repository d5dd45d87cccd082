"""Consumer groups: runs what the coordinator wants done, on the logs of `__consumer_offsets`.

The coordinator decides, and this does: requests are answered, records are appended, and one timer
is set to the next deadline of all groups. Which group is kept in which partition follows from its
id. A partition is read before its groups are served; until then they get
COORDINATOR_LOAD_IN_PROGRESS.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from ottla.coord.effects import Append, Effect, Reply
from ottla.coord.group import ClassicGroupConfig, GroupError, Now, refused_join
from ottla.coord.group_shard import GroupCoordinatorConfig, GroupShard
from ottla.coord.metadata_image import OFFSETS_TOPIC, Topic
from ottla.coord.placement import partition_of_group
from ottla.protocol.api.sync_group import SyncGroupResponse
from ottla.protocol.compression import Compression
from ottla.protocol.errors import BatchError, DecodeError, ErrorCode
from ottla.protocol.schema import Message
from ottla.storage.errors import BatchTooLargeError

from ..cluster.metadata_log import build_key_value_batch, read_key_values
from ..requests.errors import EXPECTED_ERRORS, ApiError

if TYPE_CHECKING:
    from ..broker import Broker
    from ..config.broker_config import BrokerConfig
    from ..partitions.partition import Partition

logger = logging.getLogger(__name__)

_RECORDS_BETWEEN_BREATHS = 1000

R = TypeVar("R", bound=Message)


class GroupCoordinator:
    """All groups of this broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.coordinator = GroupShard(_config_of(broker.config))
        #: Whether there may be groups that are not known yet.
        self.is_loading = True
        self._loaded: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._is_stopping = False

    def apply_config(self, config: BrokerConfig) -> None:
        """Take over settings that were altered."""
        self.coordinator.config = _config_of(config)

    async def load(self) -> None:
        """Read all that was stored, one partition after the other."""
        topic = self._topic
        own = {} if topic is None else self._broker.topics.led_partitions(topic)
        for partition in list(own.values()):
            if partition is not None:
                try:
                    await self._load(partition)
                except EXPECTED_ERRORS:
                    # Its groups are not served; all others are.
                    logger.exception("%r cannot be read", partition)
        if self._is_stopping:
            return
        self.is_loading = False
        self._forget_missing_topics()

    async def ensure_topic(self) -> None:
        """Make `__consumer_offsets`, if it is not there. Raises what making a topic does."""
        controller, config = self._broker.controller, self._broker.config
        if self.has_topic:
            return
        settings = {
            "cleanup.policy": "compact",
            "segment.bytes": str(config.offsets_topic_segment_bytes),
            # A commit that a power cut takes back is a record that is seen twice. Whoever minds
            # that more than the time of a sync alters this.
            "durability": "page-cache",
        }
        topic = controller.plan_internal_topic(
            OFFSETS_TOPIC, config.offsets_topic_num_partitions, settings
        )
        (error,) = await controller.create_topics([topic])
        if error is not None and not self.has_topic:
            raise error

    @property
    def has_topic(self) -> bool:
        """Whether there is a place for what groups commit."""
        return self._topic is not None

    def coordinator_of(self, group_id: str) -> int:
        """Give the broker that looks after a group: who owns its partition; -1 if there is none."""
        topic = self._topic
        if topic is None:
            return -1
        return topic.replicas[partition_of_group(group_id, len(topic.replicas))][0]

    def check(self, group_id: str) -> ErrorCode:
        """Say whether requests for a group can be dealt with here and now."""
        topic = self._topic
        if topic is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        index = partition_of_group(group_id, len(topic.replicas))
        if index in self._loaded:
            return ErrorCode.NONE
        if not self._broker.topics.leads(topic, index):
            return ErrorCode.NOT_COORDINATOR
        if self.is_loading:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return ErrorCode.COORDINATOR_NOT_AVAILABLE  # its log could not be opened, or read

    def check_existence(self, group_id: str) -> ErrorCode:
        """Say whether it is known here and now if there is such a group.

        Where there has never been any group, this one is not there either.
        """
        return self.check(group_id) if self.has_topic else ErrorCode.NONE

    def ask(
        self,
        group_id: str,
        event: Callable[[asyncio.Future[R], Now], list[Effect]],
        refuse: Callable[[ErrorCode], R],
    ) -> R | asyncio.Future[R]:
        """Have the coordinator deal with a request; `refuse` makes the answer if it cannot be."""
        code = self.check(group_id)
        if code is not ErrorCode.NONE:
            return refuse(code)
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self.run(event(future, now()))
        return future.result() if future.done() else future

    def run(self, effects: Iterable[Effect]) -> None:
        """Do what the coordinator wants done."""
        todo = deque(effects)
        while todo:
            effect = todo.popleft()
            if isinstance(effect, Reply):
                if not effect.token.done():
                    effect.token.set_result(effect.response)
            else:
                todo.extend(self._store(effect))
        self._set_timer()

    def let_go(self) -> None:
        """Answer all who wait for their group to gather: the broker is stopping."""
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        effects: list[Effect] = []
        for group in self.coordinator.groups.values():
            for member in group.members.values():
                if member.join is not None:
                    effects.append(Reply(member.join, refused_join(code, member.id)))
                if member.sync is not None:
                    effects.append(Reply(member.sync, SyncGroupResponse(error_code=code)))
        self.run(effects)

    def stop(self) -> None:
        """End: no deadline matters any more, nor what has not been read yet."""
        self._is_stopping = True
        if self._timer is not None:
            self._timer.cancel()

    def topic_created(self, topic: Topic) -> None:
        """Take note of a new topic: if it is that of offsets, there is nothing to read in it."""
        if topic.name == OFFSETS_TOPIC:
            own = self._broker.topics.led_partitions(topic)
            self._loaded.update(index for index, one in own.items() if one is not None)

    def topic_deleted(self, topic: Topic) -> None:
        """Drop the offsets of a topic that is gone."""
        self.run(self.coordinator.forget_topic(topic.name))

    def clean_up(self) -> None:
        """Drop what has expired."""
        if not self.is_loading:
            self.run(self.coordinator.clean_up(now()))

    @property
    def _topic(self) -> Topic | None:
        return self._broker.topics.image.topics.get(OFFSETS_TOPIC)

    def _forget_missing_topics(self) -> None:
        """Drop the offsets of topics that went just before the broker did."""
        offsets = self.coordinator.offsets.values()
        names = {name for committed in offsets for name, _index in committed}
        for name in names - self._broker.topics.image.topics.keys():
            self.run(self.coordinator.forget_topic(name))

    def _store(self, store: Append) -> list[Effect]:
        """Write records, and give what follows; later, if it is to be on the device first."""
        try:
            partition = self._partition_of(store.group_id)
            time_ms = self._broker.now_ms()
            try:
                appended = partition.append(build_key_value_batch(store.records, time_ms), time_ms)
            except BatchTooLargeError:
                # The members of a large group say much, and all of them the same.
                packed = build_key_value_batch(store.records, time_ms, Compression.ZSTD)
                appended = partition.append(packed, time_ms)
        except BatchTooLargeError as error:
            logger.warning("group %s: nothing was stored: %s", store.group_id, error)
            return store.stored(GroupError(ErrorCode.INVALID_COMMIT_OFFSET_SIZE))
        except EXPECTED_ERRORS as error:
            logger.warning("group %s: nothing was stored: %s", store.group_id, error)
            return store.stored(error)
        if not partition.acks_all_means_fsync:
            return store.stored(None)
        partition.when_flushed(appended.last_offset, lambda error: self.run(store.stored(error)))
        return []

    def _partition_of(self, group_id: str) -> Partition:
        topic = self._topic
        if topic is None:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        index = partition_of_group(group_id, len(topic.replicas))
        return self._broker.topics.find(OFFSETS_TOPIC, index)

    async def _load(self, partition: Partition) -> None:
        started = time.perf_counter()
        count = 0
        # Of what is not compacted yet most is outdated: only the last record of a key is looked at.
        latest: dict[bytes, bytes | None] = {}
        async for batch in partition.batches():
            if self._is_stopping:
                return
            try:
                records = read_key_values(batch)
            except BatchError as error:
                logger.error("%r: %r is not understood: %s", partition, batch, error)
                continue
            count += len(records)
            latest.update(records)
        for number, (key, value) in enumerate(latest.items(), start=1):
            try:
                self.coordinator.replay(key, value)
            except DecodeError as error:
                logger.error("%r: the record of %r is not understood: %s", partition, key, error)
            if number % _RECORDS_BETWEEN_BREATHS == 0:
                await asyncio.sleep(0)
        topic = self._broker.topics.image.topics[OFFSETS_TOPIC]
        groups = {*self.coordinator.groups, *self.coordinator.offsets}
        size = len(topic.replicas)
        own = [name for name in groups if partition_of_group(name, size) == partition.index]
        self.coordinator.loaded(own, now())
        self._loaded.add(partition.index)
        self._set_timer()
        if count:
            logger.info(
                "groups loaded",
                extra={
                    "partition": partition.index,
                    "groups": len(own),
                    "records": count,
                    "milliseconds": round((time.perf_counter() - started) * 1000),
                },
            )

    def _set_timer(self) -> None:
        due_ms = self.coordinator.timers.next()
        if due_ms is None or (self._timer is not None and self._timer_ms <= due_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = due_ms
        seconds = max(due_ms - now().tick_ms, 0) / 1000
        self._timer = asyncio.get_running_loop().call_later(seconds, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self.run(self.coordinator.expire(now()))


def now() -> Now:
    """Give the time."""
    return Now(int(time.monotonic() * 1000), int(time.time() * 1000))


def _config_of(config: BrokerConfig) -> GroupCoordinatorConfig:
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
