"""What clients were told, and what must hold because of it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

TopicPartition = tuple[str, int]


class Violation(AssertionError):  # noqa: N818
    """The cluster broke a promise."""


class History:
    """Everything that clients saw. Each method raises Violation if it contradicts the past."""

    def __init__(self) -> None:
        #: Acknowledged topics by name, except those whose deletion was requested.
        self.topics: dict[str, UUID] = {}
        self.deletion_requested: set[str] = set()
        self._producer_ids: dict[int, int] = {}
        self._leaders: dict[tuple[int, int], UUID] = {}
        self._owners: dict[tuple[str, int, TopicPartition], str] = {}
        self.committed: dict[tuple[str, TopicPartition], int] = {}
        self.requested: dict[tuple[str, TopicPartition], int] = {}
        self.commit_count = 0
        #: Groups whose coordinator has lost its disk: nothing is promised about them.
        self.lost_groups: set[str] = set()
        self._kept: dict[int, dict[str, UUID]] = {}

    def assigned_producer_id(self, producer_id: int, broker_id: int) -> None:
        """A producer got an id: no other may have it."""
        other = self._producer_ids.get(producer_id)
        if other is not None:
            raise Violation(f"producer id {producer_id} was assigned by {other} and {broker_id}")
        self._producer_ids[producer_id] = broker_id

    def leads(self, broker_id: int, leader_epoch: int, incarnation: UUID) -> None:
        """A process serves as leader: no other process may, of the same broker and epoch."""
        other = self._leaders.setdefault((broker_id, leader_epoch), incarnation)
        if other != incarnation:
            raise Violation(f"two processes of broker {broker_id} lead in epoch {leader_epoch}")

    def assigned(
        self, group: str, generation: int, member: str, partitions: list[TopicPartition]
    ) -> None:
        """A member got its assignment: nobody else of this generation may own the partitions."""
        for tp in partitions:
            owner = self._owners.setdefault((group, generation, tp), member)
            if owner != member and group not in self.lost_groups:
                raise Violation(
                    f"{tp} of {group}, generation {generation}: owned by {owner} and {member}"
                )

    def commit_requested(self, group: str, tp: TopicPartition, offset: int) -> None:
        key = (group, tp)
        self.requested[key] = max(offset, self.requested.get(key, -1))

    def commit_acked(self, group: str, tp: TopicPartition, offset: int) -> None:
        """A commit succeeded: from now on the offset is this one or a later one."""
        self.commit_count += 1
        self.committed[group, tp] = max(offset, self.committed.get((group, tp), -1))

    def fetched_offset(self, group: str, tp: TopicPartition, offset: int, at_least: int) -> None:
        """A member read a committed offset; `at_least` was acknowledged before it asked."""
        at_most = self.requested.get((group, tp), -1)
        if not at_least <= offset <= at_most and group not in self.lost_groups:
            raise Violation(f"{group} has committed {offset} for {tp}, not {at_least} to {at_most}")

    def check_disks(self, disks: dict[Any, Any]) -> None:
        """No data may be deleted, except that of topics whose deletion was requested."""
        for name, disk in disks.items():
            for log_name, log in disk.deleted_names:
                topic = log_name.rpartition("-")[0]
                if log.end_offset and topic not in self.deletion_requested:
                    raise Violation(f"{name} deleted {log_name}, which nobody asked for")

    def check_topics(self, broker_id: int, image: Any) -> None:
        """All acknowledged topics must be in the image of a broker."""
        for name, topic_id in self.topics.items():
            topic = image.topics.get(name)
            if topic is None or topic.id != topic_id:
                raise Violation(f"broker {broker_id} has lost topic {name}")

    def controller_lost(self, broker_id: int, image: Any) -> None:
        """The controller has lost metadata: what this follower has by now, it must keep."""
        self._kept[broker_id] = {name: topic.id for name, topic in image.topics.items()}

    def check_kept(self, broker_id: int, image: Any) -> None:
        """A follower still has the topics that it had when the controller lost them."""
        for name, topic_id in self._kept.get(broker_id, {}).items():
            topic = image.topics.get(name)
            if name not in self.deletion_requested and (topic is None or topic.id != topic_id):
                raise Violation(f"broker {broker_id} followed another log, and lost topic {name}")
