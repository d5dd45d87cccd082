"""What must hold of replicas at any time, seen from the inside of all brokers and the store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING
from uuid import UUID

from harness.state_rules import state_anomalies
from ottla.broker.broker import Broker
from ottla.broker.cluster.metadata_log import LOG_NAME as METADATA_LOG
from ottla.broker.partitions.partition import Partition, Role
from ottla.coord.metadata_image import parse_partition_key
from ottla.coord.partition_state import PartitionState

from .checks import Invariant, Violation

if TYPE_CHECKING:
    from .disk import StoredDirectory, StoredLog
    from .store import SimulatedStoreServer

PartitionKey = tuple[UUID, int]
MIN_ISR = 2


class _Committed:
    """The committed batches of a partition, as some replica had them first."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        #: The latest leader epoch of which a leader was seen, and the highest high watermark.
        self.leader_epoch = -1
        self.high_watermark = 0


class ReplicaChecks:
    """Checks of replicas. Each method raises Violation."""

    def __init__(self) -> None:
        self._committed: dict[PartitionKey, _Committed] = {}
        self._states: dict[PartitionKey, PartitionState] = {}
        self._checked_changes = 0
        #: Acknowledged records: partition, offset and value.
        self._acked: list[tuple[str, int, int, bytes]] = []
        self.ack_count = 0

    def acked(self, topic: str, index: int, offset: int, value: bytes) -> None:
        """A record was acknowledged with acks=all."""
        self._acked.append((topic, index, offset, value))
        self.ack_count += 1

    def check_states(self, server: SimulatedStoreServer) -> None:
        """Each state in the store follows from the one before by a rule."""
        history = server.history
        for change in history[self._checked_changes :]:
            for entry in change.entries:
                key = parse_partition_key(entry.key)
                if key is None:
                    continue
                after = PartitionState.from_json(entry.value)
                before = self._states.get(key)
                if before is not None:
                    for kind in state_anomalies(before, after, MIN_ISR):
                        raise Violation(Invariant.STATES, f"{kind}: {before} -> {after}")
                self._states[key] = after
        self._checked_changes = len(history)

    def latest_states(self, server: SimulatedStoreServer) -> list[PartitionState]:
        """Return the states of all partitions in the store."""
        return [
            PartitionState.from_json(entry.value)
            for key, entry in server.entries.items()
            if parse_partition_key(key) is not None
        ]

    def out_of_sync(self, server: SimulatedStoreServer) -> list[PartitionState]:
        """Return the states that have no leader, or lack replicas in the ISR."""
        return [
            state
            for state in self.latest_states(server)
            if state.is_under_replicated or not state.has_leader
        ]

    def check_leaders(self, disks: Mapping[int, StoredDirectory]) -> None:
        """One process leads a partition in a leader epoch, on all brokers."""
        leaders: dict[tuple[str, object, int], tuple[int, int]] = {}
        for broker_id, disk in disks.items():
            for name, log in disk.logs.items():
                if name == METADATA_LOG:
                    continue
                for epoch, process in log.leaders.items():
                    key = (name, log.metadata.topic_id, epoch)
                    leader = leaders.setdefault(key, (broker_id, process))
                    if leader != (broker_id, process):
                        raise Violation(
                            Invariant.LEADERS,
                            f"{leader} and {(broker_id, process)} led {name} in epoch {epoch}",
                        )

    def check_truncations(self, disks: Mapping[int, StoredDirectory]) -> None:
        """No replica truncates below its high watermark."""
        for broker_id, disk in disks.items():
            for text in disk.refused_truncations:
                raise Violation(Invariant.TRUNCATIONS, f"broker {broker_id} {text}")

    def check_replicas(self, brokers: Iterable[Broker]) -> None:
        """Committed records are the same on all replicas; high watermarks do not go back."""
        for broker in brokers:
            for partition in list(broker.topics.replicated_partitions()):
                topic = broker.topics.image.topics.get(partition.topic)
                if topic is not None and partition.log.topic_id == topic.id:
                    key = (topic.id, partition.index)
                    committed = self._committed.setdefault(key, _Committed())
                    self._compare(broker.id, partition, committed)

    def _compare(self, broker_id: int, partition: Partition, committed: _Committed) -> None:
        stored: StoredLog = partition.log.stored  # type: ignore[attr-defined]
        high_watermark = partition.high_watermark
        count = sum(base < high_watermark for base in stored.base_offsets)
        known = len(committed.batches)
        if stored.batches[: min(count, known)] != committed.batches[: min(count, known)]:
            raise Violation(
                Invariant.REPLICAS,
                f"broker {broker_id} has other records below the high watermark"
                f" {high_watermark} of {partition}",
            )
        committed.batches += stored.batches[known:count]
        if partition.role is not Role.LEADER or partition.leader_epoch < committed.leader_epoch:
            return
        committed.leader_epoch = partition.leader_epoch
        if partition.is_high_watermark_known:
            if high_watermark < committed.high_watermark:
                raise Violation(
                    Invariant.HIGH_WATERMARK,
                    f"{partition} has {high_watermark} on broker {broker_id} in epoch"
                    f" {partition.leader_epoch}, after {committed.high_watermark}",
                )
            committed.high_watermark = high_watermark

    def check_acked(self, brokers: Iterable[Broker], deleted: Iterable[str]) -> None:
        """After the faults, the leaders have all acknowledged records."""
        gone = set(deleted)
        leaders = {
            (partition.topic, partition.index): partition
            for broker in brokers
            for partition in broker.topics.replicated_partitions()
            if partition.role is Role.LEADER
        }
        for topic, index, offset, value in self._acked:
            partition = leaders.get((topic, index))
            if topic in gone:
                continue
            if partition is None:
                raise Violation(Invariant.PROGRESS, f"{topic}-{index} has no leader")
            stored: StoredLog = partition.log.stored  # type: ignore[attr-defined]
            found = [
                data
                for base, data in zip(stored.base_offsets, stored.batches, strict=True)
                if base == offset
            ]
            if not found or value not in found[0]:
                raise Violation(
                    Invariant.ACKED, f"{value!r}, acked at offset {offset} of {topic}-{index}"
                )
