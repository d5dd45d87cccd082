"""The committed offsets of the groups of one shard, and those of open transactions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple
from uuid import UUID

from ottla.protocol.primitives import NIL_UUID

from .metadata_image import MetadataImage, TopicPartition
from .records import CommittedOffset, OffsetRecord


class CommittedOffsets:
    """Committed offsets by group and partition. Only `replay` changes them."""

    def __init__(self) -> None:
        self._by_group: dict[str, dict[TopicPartition, CommittedOffset]] = {}

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._by_group

    def of_group(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """Return the offsets that a group committed."""
        return self._by_group.get(group_id, {})

    def all(self) -> list[tuple[str, Mapping[TopicPartition, CommittedOffset]]]:
        """Return the offsets of all groups. Safe to call from another thread."""
        return list(self._by_group.items())

    def replay(self, record: OffsetRecord) -> None:
        """Apply a record."""
        group_id, topic_partition, committed = record
        if committed is not None:
            self._by_group.setdefault(group_id, {})[topic_partition] = committed
            return
        offsets = self._by_group.get(group_id, {})
        offsets.pop(topic_partition, None)
        if not offsets:
            self._by_group.pop(group_id, None)

    def of_topics(self, group_id: str, topics: Collection[str]) -> list[TopicPartition]:
        """Return the partitions of `topics` that a group has committed offsets for."""
        return [tp for tp in self.of_group(group_id) if tp.topic in topics]

    def older_than(self, group_id: str, time_ms: int) -> list[TopicPartition]:
        """Return the partitions whose offsets a group committed at `time_ms` or before."""
        return [tp for tp, c in self.of_group(group_id).items() if c.timestamp_ms <= time_ms]

    def of_other_topics(self, group_id: str, image: MetadataImage) -> list[TopicPartition]:
        """Return the partitions whose offsets a group committed for topics that were deleted.

        A topic of the same name may exist again. Offsets without a topic id, which earlier releases
        wrote, count for the topic that has their name.
        """
        return [
            tp
            for tp, committed in self.of_group(group_id).items()
            if _is_deleted(image, tp.topic, committed.topic_id)
        ]


class PendingOffset(NamedTuple):
    """An offset that a transaction commits once it is committed itself."""

    record: OffsetRecord
    #: Where the record is in the log: of two commits the later one wins.
    log_offset: int
    #: Whether a later record of the log has replaced it, so that it must not come back.
    is_superseded: bool = False


class PendingOffsets:
    """The offsets of open transactions by producer id. Only replays change them."""

    def __init__(self) -> None:
        self._by_producer: dict[int, dict[tuple[str, TopicPartition], PendingOffset]] = {}
        self._producers: dict[str, dict[TopicPartition, set[int]]] = {}

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._producers

    def of_group(self, group_id: str) -> Collection[TopicPartition]:
        """Return the partitions for which a group has pending offsets."""
        return self._producers.get(group_id, {}).keys()

    def groups(self) -> list[str]:
        """Return the groups with pending offsets."""
        return list(self._producers)

    def get(
        self, producer_id: int, group_id: str, topic_partition: TopicPartition
    ) -> PendingOffset | None:
        """Return a pending offset of a producer's transaction."""
        return self._by_producer.get(producer_id, {}).get((group_id, topic_partition))

    def add(self, producer_id: int, record: OffsetRecord, log_offset: int) -> None:
        """Add an offset to the transaction of a producer."""
        group_id, topic_partition, _committed = record
        pending = self._by_producer.setdefault(producer_id, {})
        pending[group_id, topic_partition] = PendingOffset(record, log_offset)
        producers = self._producers.setdefault(group_id, {})
        producers.setdefault(topic_partition, set()).add(producer_id)

    def supersede(
        self, group_id: str, topic_partition: TopicPartition, log_offset: int | None = None
    ) -> None:
        """Mark the pending offsets of a partition that a record at `log_offset` replaces.

        None: all of them.
        """
        for producer_id in self._producers.get(group_id, {}).get(topic_partition, ()):
            pending = self._by_producer[producer_id]
            offset = pending[group_id, topic_partition]
            if log_offset is None or offset.log_offset < log_offset:
                pending[group_id, topic_partition] = offset._replace(is_superseded=True)

    def end(self, producer_id: int) -> list[PendingOffset]:
        """End the transaction of a producer, and return its offsets."""
        ended = self._by_producer.pop(producer_id, {})
        for group_id, topic_partition in ended:
            self._remove_producer(group_id, topic_partition, producer_id)
        return list(ended.values())

    def remove_group(self, group_id: str) -> list[OffsetRecord]:
        """Remove the pending offsets of a group, and return them."""
        removed = []
        for topic_partition, producers in self._producers.pop(group_id, {}).items():
            for producer_id in producers:
                pending = self._by_producer[producer_id]
                offset = pending.pop((group_id, topic_partition))
                removed.append(offset.record)
                if not pending:
                    del self._by_producer[producer_id]
        return removed

    def remove_deleted(
        self, group_id: str, committed: Collection[TopicPartition]
    ) -> list[OffsetRecord]:
        """Remove the pending offsets that tombstones replaced, and return them.

        `committed` are the partitions with committed offsets: what replaced theirs was a commit.
        """
        removed = []
        for topic_partition, producers in list(self._producers.get(group_id, {}).items()):
            if topic_partition in committed:
                continue
            for producer_id in list(producers):
                pending = self._by_producer[producer_id]
                if pending[group_id, topic_partition].is_superseded:
                    removed.append(pending.pop((group_id, topic_partition)).record)
                    self._remove_producer(group_id, topic_partition, producer_id)
                    if not pending:
                        del self._by_producer[producer_id]
        return removed

    def _remove_producer(
        self, group_id: str, topic_partition: TopicPartition, producer_id: int
    ) -> None:
        partitions = self._producers[group_id]
        partitions[topic_partition].discard(producer_id)
        if not partitions[topic_partition]:
            del partitions[topic_partition]
            if not partitions:
                del self._producers[group_id]


def _is_deleted(image: MetadataImage, name: str, topic_id: UUID) -> bool:
    topic = image.topics.get(name)
    if topic_id == NIL_UUID:
        return topic is None
    return topic_id in image.deleted_topics or (topic is not None and topic.id != topic_id)


def tombstones(group_id: str, topic_partitions: Collection[TopicPartition]) -> list[OffsetRecord]:
    """Return the records that remove committed offsets."""
    return [OffsetRecord(group_id, tp, None) for tp in topic_partitions]
