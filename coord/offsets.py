"""The committed offsets of the groups of one shard."""

from __future__ import annotations

from collections.abc import Collection, Mapping
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


def _is_deleted(image: MetadataImage, name: str, topic_id: UUID) -> bool:
    topic = image.topics.get(name)
    if topic_id == NIL_UUID:
        return topic is None
    return topic_id in image.deleted_topics or (topic is not None and topic.id != topic_id)


def tombstones(group_id: str, topic_partitions: Collection[TopicPartition]) -> list[OffsetRecord]:
    """Return the records that remove committed offsets."""
    return [OffsetRecord(group_id, tp, None) for tp in topic_partitions]
