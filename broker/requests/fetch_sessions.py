"""Incremental fetch sessions (KIP-227): requests and responses carry only what changed.

A session is the list of partitions that a consumer fetches, kept by the broker. Requests of the
session change the list, and responses include only partitions with new data. A session has an id,
and each of its requests carries the next epoch; a client that is out of step gets an error and
starts over with a full request. A request may also do without a session, or ask for one and be
declined.

Sessions of Fetch versions with topic names and of those with topic ids do not mix: a session stays
with what it was opened with.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING
from uuid import UUID

from ottla.protocol.api.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)

if TYPE_CHECKING:
    from ottla.protocol.api.fetch import ReplicaState

#: Session epochs with a special meaning: open a new session, and close or do without one.
OPEN = 0
CLOSE = -1

#: A topic as the client names it: by name, or by id from Fetch version 13 on.
TopicKey = str | UUID
PartitionKey = tuple[TopicKey, int]


class FetchSession:
    """The partitions that a consumer fetches, in the order in which they are read."""

    def __init__(self, session_id: int, now: float, *, uses_topic_ids: bool = False) -> None:
        self.id = session_id
        self.uses_topic_ids = uses_topic_ids
        self.epoch = 1
        self.last_used = now
        self._partitions: dict[PartitionKey, FetchPartition] = {}
        # High watermark and log start offset, as last sent to the client.
        self._sent: dict[PartitionKey, tuple[int, int]] = {}
        # The partitions by topic id that were found at least once.
        self._found: set[PartitionKey] = set()

    def __len__(self) -> int:
        return len(self._partitions)

    def to_read(self) -> Iterable[tuple[TopicKey, FetchPartition]]:
        """Return the partitions to read, with their topics."""
        return ((topic, fetched) for (topic, _index), fetched in self._partitions.items())

    def count_to_read(self) -> int:
        """Return how many partitions are to be read."""
        return len(self._partitions)

    def is_of(self, follower: ReplicaState | None) -> bool:
        """Whether a request of a consumer, or of this follower, may use the session."""
        return follower is None

    def close(self) -> None:
        """Release what the session has beside itself."""

    def update(self, request: FetchRequest) -> None:
        """Add, change and forget partitions as a request says.

        The first request of a session lists its partitions, and has nothing to forget.
        """
        for topic in request.topics:
            name = self._key_of(topic)
            for partition in topic.partitions:
                kept = _without_tags(partition) if partition.unknown_tagged_fields else partition
                self._put((name, partition.partition), kept)
        for forgotten in request.forgotten_topics_data if request.session_epoch != OPEN else ():
            name = self._key_of(forgotten)
            self._forget([(name, index) for index in forgotten.partitions])

    def _put(self, key: PartitionKey, fetched: FetchPartition) -> None:
        self._partitions[key] = fetched

    def _forget(self, keys: Iterable[PartitionKey]) -> None:
        for key in keys:
            self._partitions.pop(key, None)
            self._sent.pop(key, None)
            self._found.discard(key)

    def has_found(self, topic: TopicKey, index: int) -> bool:
        """Whether a response of the session had the partition of a topic id without an error."""
        return (topic, index) in self._found

    def has_news(self, topic: TopicKey, data: PartitionData) -> bool:
        """Whether a partition belongs in an incremental response."""
        return (
            bool(data.records or data.error_code)
            or data.diverging_epoch.epoch >= 0
            or data.preferred_read_replica >= 0
            or self._sent.get((topic, data.partition_index))
            != (data.high_watermark, data.log_start_offset)
        )

    def update_sent(self, topic: TopicKey, data: PartitionData) -> bool:
        """Whether a partition belongs in an incremental response; if so, record it as sent."""
        if not self.has_news(topic, data):
            return False
        key = (topic, data.partition_index)
        self._sent[key] = (data.high_watermark, data.log_start_offset)
        if self.uses_topic_ids and not data.error_code:
            self._found.add(key)
        return True

    def move_to_end(self, keys: Iterable[PartitionKey]) -> None:
        """Read these partitions last next time, so that they do not starve the others."""
        for key in keys:
            partition = self._partitions.pop(key, None)
            if partition is not None:
                self._partitions[key] = partition

    def _key_of(self, topic: FetchTopic | ForgottenTopic) -> TopicKey:
        return topic.topic_id if self.uses_topic_ids else topic.topic


def _without_tags(partition: FetchPartition) -> FetchPartition:
    """Return a copy without unknown tagged fields, which a client could make arbitrarily large."""
    return FetchPartition(
        **{name: getattr(partition, name) for name in FetchPartition.fields},
    )
