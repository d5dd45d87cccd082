"""The fetch session of a follower: only partitions that may have something to say are read.

A follower fetches all partitions that it follows, in one session, and few of them change between
two of its fetches. So partitions tell the session about appends, a new high watermark and a new
state; the session has a list of those, and of the partitions that a request named. A fetch reads
that list alone: its cost grows with what changed, not with the size of the session.

A partition leaves the list when the follower is in sync, has all records, and was sent its high
watermark and log start offset. From then on, the fetches of the session count for it as fetches
(`SessionFetches`), until it changes again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.coord.follower_progress import SessionFetches

from .fetch_sessions import FetchSession, PartitionKey, TopicKey

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ottla.protocol.api.fetch import FetchPartition, PartitionData, ReplicaState

    from ..partitions.partition import Partition
    from .waiters import WaiterRegistry


class FollowerSession(FetchSession):
    """The partitions that a follower fetches, and which of them have changed."""

    def __init__(
        self, session_id: int, now: float, replica: ReplicaState, *, serves_consumers: bool = False
    ) -> None:
        super().__init__(session_id, now, uses_topic_ids=True)
        # Whether consumers wait for the follower to learn of high watermarks.
        self._serves_consumers = serves_consumers
        self.broker_id = replica.replica_id
        self.broker_epoch = replica.replica_epoch
        #: The delayed fetch of the session, if there is one.
        self.waiters: WaiterRegistry = {}
        # In the order in which they are read.
        self._changed: dict[PartitionKey, None] = {}
        self._followed: dict[PartitionKey, Partition] = {}
        self._fetches = SessionFetches()

    def is_of(self, follower: ReplicaState | None) -> bool:
        """Whether a request comes from this follower, in the same registration."""
        return follower is not None and (follower.replica_id, follower.replica_epoch) == (
            self.broker_id,
            self.broker_epoch,
        )

    def begin_fetch(self, now_ms: int) -> None:
        """Record a fetch, whose request has updated the session."""
        self._fetches.record(now_ms)

    def to_read(self) -> list[tuple[TopicKey, FetchPartition]]:
        """Return the partitions that have changed."""
        partitions = self._partitions
        return [(key[0], partitions[key]) for key in self._changed]

    def count_to_read(self) -> int:
        """Return how many partitions have changed."""
        return len(self._changed)

    def was_read(self, topic: TopicKey, fetched: FetchPartition, partition: Partition) -> None:
        """Expect nothing more of a partition until it changes, if that is so.

        It was read without an error.
        """
        key = topic, fetched.partition
        if self._partitions.get(key) is not fetched:
            return  # Another request of the session has changed or forgotten it.
        previous = self._followed.get(key)
        if previous is not partition:
            if previous is not None:
                previous.follower_sessions.pop(self, None)
            self._followed[key] = partition
            partition.follower_sessions[self] = key
        self._begin_idleness(key)

    def update_sent(self, topic: TopicKey, data: PartitionData) -> bool:
        """Whether a partition belongs in an incremental response; if so, record it as sent."""
        is_sent = super().update_sent(topic, data)
        if is_sent and not data.error_code and data.diverging_epoch.epoch < 0:
            self._begin_idleness((topic, data.partition_index))
        return is_sent

    def has_changed(self, key: PartitionKey) -> None:
        """Read a partition with the next fetch."""
        if key not in self._changed:
            self._changed[key] = None
            self._end_idleness(key)

    def appended(self, key: PartitionKey, size_bytes: int) -> None:
        """Read a partition, and wake the delayed fetch when it has enough."""
        self.has_changed(key)
        for waiter in self.waiters:
            waiter.appended(size_bytes)

    def must_answer(self, data: Iterable[tuple[TopicKey, PartitionData]]) -> bool:
        """Whether to answer a fetch at once, although there are no records for it."""
        return self._serves_consumers and any(self.has_news(*entry) for entry in data)

    def committed(self, key: PartitionKey) -> None:
        """Tell the follower a new high watermark, at once if consumers read from it."""
        self.has_changed(key)
        if self._serves_consumers:
            self.wake_all()

    def wake(self, key: PartitionKey) -> None:
        """Answer the delayed fetch: it cannot get here what it waits for."""
        self.has_changed(key)
        self.wake_all()

    def wake_all(self) -> None:
        """Answer the delayed fetch."""
        for waiter in self.waiters:
            waiter.wake()

    def all_have_changed(self) -> None:
        """Read all partitions with the next fetch."""
        for key in self._partitions:
            self.has_changed(key)

    def close(self) -> None:
        """Let the partitions forget the session."""
        self._forget(list(self._partitions))

    def move_to_end(self, keys: Iterable[PartitionKey]) -> None:
        """Read these partitions last next time, so that they do not starve the others."""
        for key in keys:
            if key in self._changed:
                del self._changed[key]
                self._changed[key] = None

    def _put(self, key: PartitionKey, fetched: FetchPartition) -> None:
        super()._put(key, fetched)
        self.has_changed(key)

    def _forget(self, keys: Iterable[PartitionKey]) -> None:
        for key in keys:
            self._end_idleness(key)
            self._changed.pop(key, None)
            partition = self._followed.pop(key, None)
            if partition is not None:
                partition.follower_sessions.pop(self, None)
        super()._forget(keys)

    def _begin_idleness(self, key: PartitionKey) -> None:
        """Read a partition no longer, if nothing is to be said about it now."""
        partition, fetched = self._followed.get(key), self._partitions.get(key)
        if partition is None or fetched is None or key not in self._changed:
            return
        progress, state, log = partition.progress, partition.state, partition.log
        if progress is None or state is None or self.broker_id not in state.isr:
            return
        fetch = progress.fetches.get(self.broker_id)
        if (
            fetch is not None
            and fetch.broker_epoch == self.broker_epoch
            and fetch.end_offset == fetched.fetch_offset == log.end_offset
            and self._sent.get(key) == (partition.high_watermark, log.start_offset)
        ):
            del self._changed[key]
            progress.begin_session(self.broker_id, self._fetches)

    def _end_idleness(self, key: PartitionKey) -> None:
        partition = self._followed.get(key)
        if partition is not None and partition.progress is not None:
            partition.progress.end_session(self.broker_id)
