"""The share partitions that this broker serves: those of partitions that it leads."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING

from ottla.coord.consumer.partitions import TopicIdPartition
from ottla.protocol.errors import ErrorCode
from ottla.storage.timestamp_search import find_timestamp

from ..coordinators.group_coordinator import share_config
from ..requests.errors import ApiError
from .led_share_partition import LedSharePartition
from .persister import SharePartitionKey
from .share_sessions import SessionKey, ShareSessions

if TYPE_CHECKING:
    from ottla.coord.config import ShareGroupConfig
    from ottla.coord.metadata_image import Topic

    from ..broker import Broker
    from ..partitions.partition import Partition

#: A share partition that nobody has fetched from for this long is closed, when others are opened.
_IDLE_SECONDS = 300.0
_EVICTION_SECONDS = 10.0
_PARTITION_BYTES = 4096
_RANGE_BYTES = 128


class ShareCounts:
    """What has happened to records, since the broker started."""

    def __init__(self) -> None:
        self.acquired = 0
        self.redelivered = 0
        #: By acknowledgement type.
        self.acknowledged: Counter[str] = Counter()
        self.expired = 0
        #: Given up at the delivery limit.
        self.archived = 0


class SharePartitions:
    """All share partitions and share sessions of a broker."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.counts = ShareCounts()
        self.sessions = ShareSessions(self.release)
        #: Held while records are looked for in many partitions: many sessions may be woken at once.
        self.large_session_lock = asyncio.Lock()
        self._led: dict[SharePartitionKey, LedSharePartition] = {}
        # Where members may have records that they have acquired, until they are released.
        self._acquired_from: dict[SessionKey, set[TopicIdPartition]] = {}
        self._size_bytes = 0
        self._next_eviction = 0.0

    def __len__(self) -> int:
        return len(self._led)

    def size_bytes(self) -> int:
        """Return the estimated memory of share partitions and sessions."""
        return self.sessions.size_bytes() + self._size_bytes

    def acquired_count(self) -> int:
        """Count the records that members have acquired. Safe to call from another thread."""
        return sum(
            led.records.acquired_count
            for led in list(self._led.values())
            if led.records is not None
        )

    def config_of(self, group_id: str) -> ShareGroupConfig:
        """Return the config of a group."""
        overrides = self.broker.topics.image.group_configs.get(group_id, {})
        return share_config(self.broker.config).with_overrides(overrides)

    # Share partitions.

    def find(self, key: SharePartitionKey) -> LedSharePartition | None:
        """Return a share partition that is being served. Raises ApiError if it cannot be here."""
        self.broker.topics.find_by_id(*key.partition)
        return self._led.get(key)

    def open(self, key: SharePartitionKey) -> LedSharePartition:
        """Return a share partition, which may have to be loaded first. Raises ApiError."""
        partition = self.broker.topics.find_by_id(*key.partition)
        led = self._led.get(key)
        if led is None:
            self._evict_idle()
            if not self.broker.memory.fits(_PARTITION_BYTES, is_member=True):
                raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            led = self._led[key] = LedSharePartition(self, key, partition)
            self.resize(led)
        led.last_used = time.monotonic()
        return led

    def forget(self, led: LedSharePartition) -> None:
        """Remove a share partition that is closed, and the sessions whose members had locks.

        A member may acquire the same records again here: what it says about them from then on must
        not be about the records as it got them before.
        """
        if self._led.get(led.key) is not led:
            return
        del self._led[led.key]
        self._size_bytes -= led.size_bytes
        if led.records is None or (led.error and led.error.code is ErrorCode.GROUP_ID_NOT_FOUND):
            return
        for member_id in led.records.holders():
            self.sessions.lose(SessionKey(led.key.group_id, member_id))

    def resize(self, led: LedSharePartition) -> None:
        """Update the memory of a share partition after its records have changed."""
        if self._led.get(led.key) is led:
            count = 0 if led.records is None else led.records.range_count
            size_bytes = _PARTITION_BYTES + _RANGE_BYTES * count
            self._size_bytes += size_bytes - led.size_bytes
            led.size_bytes = size_bytes

    def note_acquired(self, session: SessionKey, tp: TopicIdPartition) -> None:
        """Remember that a member has acquired records of a partition."""
        self._acquired_from.setdefault(session, set()).add(tp)

    def release(self, session: SessionKey) -> None:
        """Make the records available that a member has acquired."""
        for tp in self._acquired_from.pop(session, ()):
            led = self._led.get(SharePartitionKey(session.group_id, tp))
            if led is not None:
                led.release(session.member_id)

    def stop(self) -> None:
        """Close all share partitions: the broker is stopping."""
        for led in list(self._led.values()):
            led.close(ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE))

    async def offset_at(self, partition: Partition, timestamp_ms: int) -> int:
        """Return the offset of the first record of a time, or the high watermark."""
        found = await self.broker.batch_workers.look_up(find_timestamp(partition.log, timestamp_ms))
        end_offset = partition.high_watermark
        return end_offset if found is None else min(found.offset, end_offset)

    def _evict_idle(self) -> None:
        now = time.monotonic()
        if now < self._next_eviction:
            return
        self._next_eviction = now + _EVICTION_SECONDS
        for led in list(self._led.values()):
            if led.is_idle and now - led.last_used >= _IDLE_SECONDS:
                led.close(ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE))

    # Topics.

    def topic_created(self, topic: Topic) -> None:
        """Do nothing: nobody has fetched from it."""

    def partition_opened(self, topic: Topic, index: int) -> None:
        """Read states again, under the new leader epoch."""
        self.partition_closed(topic, index)

    def partition_closed(self, topic: Topic, index: int) -> None:
        """Close the share partitions of a partition that another broker leads."""
        for key, led in list(self._led.items()):
            if key.partition == TopicIdPartition(topic.id, index):
                led.close(ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    def topic_deleted(self, topic: Topic) -> None:
        """Close the share partitions of a deleted topic."""
        for key, led in list(self._led.items()):
            if key.partition.topic_id == topic.id:
                led.close(ApiError(ErrorCode.UNKNOWN_TOPIC_ID))
