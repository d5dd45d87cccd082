"""What clients were told, and what must hold because of it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any
from uuid import UUID

from ottla.broker.cluster.metadata_log import LOG_NAME as METADATA_LOG

if TYPE_CHECKING:
    from .disk import StoredDirectory

TopicPartition = tuple[str, int]


class Invariant(Enum):
    """What a cluster promises, whatever happens to it."""

    TOPICS_STAY = "an acknowledged topic is not lost"
    DATA_STAYS = "data is deleted only with a topic whose deletion was requested"
    METADATA_LOG = "a follower does not follow another metadata log"
    PRODUCER_IDS = "a producer id is assigned once"
    LEADERS = "one process leads a partition in a leader epoch"
    ASSIGNMENTS = "a partition has one owner in a generation"
    OFFSETS = "a committed offset is not lost and does not move back"
    PRODUCER_EPOCHS = "producer id and epoch of a transactional id do not go back"
    DECISIONS = "a decided transaction stays decided"
    STATES = "each state of a partition follows from the one before by a rule"
    REPLICAS = "committed records are the same on all replicas"
    HIGH_WATERMARK = "a high watermark does not go back"
    TRUNCATIONS = "no replica truncates below its high watermark"
    ACKED = "an acknowledged record is not lost"
    PROGRESS = "without faults, members commit and all brokers serve"


class Violation(AssertionError):  # noqa: N818
    """The cluster broke a promise."""

    def __init__(self, invariant: Invariant, message: str) -> None:
        self.invariant = invariant
        super().__init__(f"{message} ({invariant.value})")


class History:
    """Everything that clients saw. Each method raises Violation if it contradicts the past."""

    def __init__(self) -> None:
        #: Acknowledged topics by name, except those whose deletion was requested.
        self.topics: dict[str, UUID] = {}
        self.deletion_requested: set[str] = set()
        self._producer_ids: dict[int, int] = {}
        self._owners: dict[tuple[str, int, TopicPartition], str] = {}
        self.committed: dict[tuple[str, TopicPartition], int] = {}
        self.requested: dict[tuple[str, TopicPartition], int] = {}
        self.commit_count = 0
        #: Groups and transactional ids whose coordinator has lost its disk: nothing is promised
        #: about them.
        self.lost: set[str] = set()
        self._producers: dict[str, tuple[int, int]] = {}
        #: Whether the last transaction was committed, for transactional ids without an open one.
        self._decisions: dict[str, bool] = {}
        self.decision_count = 0
        self._kept: dict[int, dict[str, UUID]] = {}

    def assigned_producer_id(self, producer_id: int, broker_id: int) -> None:
        """A producer got an id: no other may have it."""
        other = self._producer_ids.get(producer_id)
        if other is not None:
            raise Violation(
                Invariant.PRODUCER_IDS,
                f"producer id {producer_id} was assigned by {other} and {broker_id}",
            )
        self._producer_ids[producer_id] = broker_id

    def assigned(
        self, group: str, generation: int, member: str, partitions: list[TopicPartition]
    ) -> None:
        """A member got its assignment: nobody else of this generation may own the partitions."""
        for tp in partitions:
            owner = self._owners.setdefault((group, generation, tp), member)
            if owner != member and group not in self.lost:
                raise Violation(
                    Invariant.ASSIGNMENTS,
                    f"{tp} of {group}, generation {generation}: owned by {owner} and {member}",
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
        if not at_least <= offset <= at_most and group not in self.lost:
            raise Violation(
                Invariant.OFFSETS,
                f"{group} has committed {offset} for {tp}, not {at_least} to {at_most}",
            )

    def initialized_producer(self, transactional_id: str, producer_id: int, epoch: int) -> None:
        """A transactional producer was initialized: it fences all earlier ones."""
        self._check_producer(transactional_id, producer_id, epoch)
        last = self._producers.get(transactional_id)
        if (producer_id, epoch) == last and transactional_id not in self.lost:
            raise Violation(
                Invariant.PRODUCER_EPOCHS, f"{transactional_id} got producer and epoch {last} twice"
            )
        self._producers[transactional_id] = (producer_id, epoch)

    def began(self, transactional_id: str) -> None:
        """A producer is about to begin a transaction: the last decision is past."""
        self._decisions.pop(transactional_id, None)

    def decided(
        self, transactional_id: str, producer_id: int, epoch: int, *, is_commit: bool
    ) -> None:
        """EndTxn succeeded: the transaction has this outcome for ever."""
        self._check_producer(transactional_id, producer_id, epoch)
        self._check_decision(transactional_id, is_commit=is_commit)
        self._producers[transactional_id] = (producer_id, epoch)
        self._decisions[transactional_id] = is_commit
        self.decision_count += 1

    def described(self, transactional_id: str, producer_id: int, epoch: int, state: str) -> None:
        """A coordinator described a transactional id."""
        self._check_producer(transactional_id, producer_id, epoch)
        if state == "Ongoing" or state.endswith(("Commit", "Abort")):
            is_commit = None if state == "Ongoing" else state.endswith("Commit")
            self._check_decision(transactional_id, is_commit=is_commit)

    def _check_producer(self, transactional_id: str, producer_id: int, epoch: int) -> None:
        last = self._producers.get(transactional_id, (-1, -1))
        is_same = last[0] in (-1, producer_id)  # Epochs are not exhausted here.
        if not (is_same and epoch >= last[1]) and transactional_id not in self.lost:
            raise Violation(
                Invariant.PRODUCER_EPOCHS,
                f"{transactional_id} has producer {producer_id}, epoch {epoch}, after {last}",
            )

    def _check_decision(self, transactional_id: str, *, is_commit: bool | None) -> None:
        last = self._decisions.get(transactional_id)
        if last is not None and is_commit is not last and transactional_id not in self.lost:
            raise Violation(
                Invariant.DECISIONS,
                f"{transactional_id}: committed is {is_commit}, and was {last}",
            )

    def check_leaders(self, disks: Mapping[int, StoredDirectory]) -> None:
        """Only one process may append to a log in a leader epoch.

        Followers write the metadata log in the epochs of the controller.
        """
        for broker_id, disk in disks.items():
            for name, log in disk.logs.items():
                if log.shared_epochs and name != METADATA_LOG:
                    raise Violation(
                        Invariant.LEADERS,
                        f"two processes of broker {broker_id} led {name} in {log.shared_epochs}",
                    )

    def check_disks(self, disks: Mapping[int, StoredDirectory]) -> None:
        """No data may be deleted, except that of topics whose deletion was requested."""
        for name, disk in disks.items():
            for log_name, log in disk.deleted_names:
                topic = log_name.rpartition("-")[0]
                if log.end_offset and topic not in self.deletion_requested:
                    raise Violation(
                        Invariant.DATA_STAYS,
                        f"broker {name} deleted {log_name} unasked",
                    )

    def check_topics(self, broker_id: int, image: Any) -> None:
        """All acknowledged topics must be in the image of a broker."""
        for name, topic_id in self.topics.items():
            topic = image.topics.get(name)
            if topic is None or topic.id != topic_id:
                raise Violation(Invariant.TOPICS_STAY, f"broker {broker_id} has lost topic {name}")

    def controller_lost(self, broker_id: int, image: Any) -> None:
        """The controller has lost metadata: what this follower has by now, it must keep."""
        self._kept[broker_id] = {name: topic.id for name, topic in image.topics.items()}

    def check_kept(self, broker_id: int, image: Any) -> None:
        """A follower still has the topics that it had when the controller lost them."""
        for name, topic_id in self._kept.get(broker_id, {}).items():
            topic = image.topics.get(name)
            if name not in self.deletion_requested and (topic is None or topic.id != topic_id):
                raise Violation(
                    Invariant.METADATA_LOG,
                    f"broker {broker_id} followed another log, and lost topic {name}",
                )
