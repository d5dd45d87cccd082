"""The partition queues of a topic, and the choice of the next one for records without a key."""

from __future__ import annotations

import asyncio
from operator import index
from typing import Literal

from ..cluster import Cluster, TopicInfo
from ..errors import ErrorCode, KafkaError
from .batch import Batch, BatchState
from .partition_queue import PartitionQueue
from .partitioner import STICKY, Partitioner, next_in_turn, next_sticky, partition_of_key
from .sender import Sender


class TopicQueues:
    """The partition queues of a topic. The topic has to be in the metadata."""

    def __init__(
        self,
        topic: str,
        cluster: Cluster,
        sender: Sender,
        partitioner: Literal["sticky", "round-robin"] | Partitioner,
    ) -> None:
        self.topic = topic
        self.loop = asyncio.get_running_loop()
        self._cluster = cluster
        self._sender = sender
        self._batch_bytes = sender.config.batch_bytes
        self._partitioner = partitioner if callable(partitioner) else None
        self._is_sticky = partitioner == STICKY
        self._info: TopicInfo | None = None
        self._partition_count = 0
        self._available: list[int] = []
        self._queues: list[PartitionQueue] = []
        self._follow_metadata()
        # Where the last record without a key went.
        self._current = self._queues[self._available[-1]]

    @property
    def partition_count(self) -> int:
        """The number of partitions."""
        self._follow_metadata()
        return self._partition_count

    def partition_of(self, key: bytes | None, value: bytes | None) -> int | None:
        """Return the partition of a record; None if `batch_for` chooses when it is appended."""
        if self._partitioner is None and key is None:
            return None
        self._follow_metadata()
        count = self._partition_count
        if self._partitioner is None:
            assert key is not None
            return partition_of_key(key, count)
        partition = index(self._partitioner(self.topic, key, value, count))
        if not 0 <= partition < count:
            raise ValueError(
                f"The partitioner returned {partition} for topic {self.topic!r}, which has"
                f" {count} partitions"
            )
        return partition

    def has_partition(self, partition: int) -> bool:
        """Whether a partition exists, according to the metadata."""
        self._follow_metadata()
        return 0 <= partition < self._partition_count

    async def find_partition(self, partition: int) -> None:
        """Look for a partition that may be new. Raises KafkaError if it does not exist."""
        if partition >= self._partition_count:
            await self._cluster.refresh([self.topic])
        if not self.has_partition(partition):
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"{self.topic}-{partition}: the topic has {self._partition_count} partitions",
            )

    def batch_for(self, partition: int | None, size: int) -> Batch:
        """Return the batch for a record of some size, in any partition if that is None."""
        limit = self._batch_bytes - size
        if partition is not None:
            queue = self._queues[partition]
        else:
            queue = self._current
            batch = queue.open
            if batch is not None and batch.size <= limit and self._is_sticky and not queue.failures:
                return batch
            self._follow_metadata()
            queue = self._current = self._next_after(queue)
        batch = queue.open
        if batch is None or batch.size > limit:
            return self._sender.open_batch(queue)
        return batch

    def batch_with_room(self, size: int) -> Batch | None:
        """Return the batch that sticky records go to, if it has room for `size` bytes."""
        queue = self._current
        batch = queue.open
        if batch is None or batch.size + size > self._batch_bytes or queue.failures:
            return None
        return batch

    def closed_batch(self, partition: int | None) -> Batch:
        """Open a batch that no record will be added to, in any partition if that is None."""
        self._follow_metadata()
        if partition is None:
            self._current = self._next_after(self._current)
        queue = self._current if partition is None else self._queues[partition]
        batch = self._sender.open_batch(queue)
        queue.open = None
        if batch.state is BatchState.LINGERING:
            batch.move_to(BatchState.READY)
        self._sender.schedule(queue)
        return batch

    def _next_after(self, queue: PartitionQueue) -> PartitionQueue:
        """Choose the next queue for records without a key, preferring those that make progress."""
        choose = next_sticky if self._is_sticky else next_in_turn
        chosen = self._queues[choose(queue.partition, self._available)]
        if _is_stuck(chosen):
            free = [number for number in self._available if not _is_stuck(self._queues[number])]
            if free:
                chosen = self._queues[choose(queue.partition, free)]
        return chosen

    def _follow_metadata(self) -> None:
        info = self._cluster.metadata.topics.get(self.topic)
        # A topic that was deleted may be created again: keep what is known until then.
        if info is self._info or info is None or info.error or not info.partitions:
            return
        self._info = info
        count = self._partition_count = len(info.partitions)
        self._queues = self._sender.queues_of(self.topic, count)
        # Records of a partition without a leader would wait.
        led = [number for number, partition in enumerate(info.partitions) if partition.leader >= 0]
        self._available = led or list(range(count))


def _is_stuck(queue: PartitionQueue) -> bool:
    """Whether a queue has failed and still has batches. An empty one is worth another attempt."""
    return bool(queue.failures and (queue.waiting or queue.in_flight or queue.failed))
