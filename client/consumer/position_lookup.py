"""Finding positions: the group's committed offset, or one end of the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from ..cluster import Cluster, needs_metadata_refresh
from ..errors import ClientError, ClosedError, ConsumerError, KafkaError
from ..offsets import ListedOffset, fetch_committed_offsets, list_offsets_from
from ..types import LATEST, OffsetAndMetadata, TopicPartition
from .config import ReadConfig
from .delivery import Delivery
from .partition_retries import PartitionRetries
from .positions import AssignedPartition, FetchState

logger = logging.getLogger(__name__)


class PositionLookup:
    """Looks up the positions of partitions that have none."""

    def __init__(
        self,
        cluster: Cluster,
        delivery: Delivery,
        config: ReadConfig,
        retries: PartitionRetries,
        on_found: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._delivery = delivery
        self._config = config
        self._retries = retries
        self._on_found = on_found
        self._in_progress: set[AssignedPartition] = set()

    def needs(self, partition: AssignedPartition) -> bool:
        """Whether the position of a partition is to be looked up, and is not being so already."""
        return (
            partition.state in (FetchState.AWAIT_COMMITTED, FetchState.AWAIT_RESET)
            and partition.error is None
            and partition not in self._in_progress
        )

    def begin(self, partitions: Collection[AssignedPartition]) -> None:
        """Mark partitions as being looked up; `run` is to follow."""
        self._in_progress.update(partitions)

    async def run(self, partitions: Collection[AssignedPartition]) -> None:
        """Look up positions in the background."""
        try:
            await self.find_positions(partitions)
        finally:
            self._in_progress.difference_update(partitions)

    async def find_positions(self, partitions: Collection[AssignedPartition]) -> None:
        """Look up positions once; retriable errors are left to the background."""
        await self._find_committed(_in_state(partitions, FetchState.AWAIT_COMMITTED))
        # Those without a committed offset have been reset by now.
        await self._find_log_ends(_in_state(partitions, FetchState.AWAIT_RESET))
        self._on_found()

    def reset(self, partition: AssignedPartition, reason: str) -> None:
        """Apply auto_offset_reset: await one end of the log, or fail if there is no policy."""
        reset_to = self._config.reset_to
        if reset_to is not None:
            self._delivery.forget([partition])
            partition.await_position(FetchState.AWAIT_RESET, reset_to)
            return
        reason = f"{partition.tp}: {reason}, and auto_offset_reset is none"
        self._retries.fail(partition, ConsumerError(reason))

    async def _find_committed(self, partitions: list[AssignedPartition]) -> None:
        if not partitions:
            return
        group = self._config.group
        assert group is not None
        epochs = {partition: partition.fetch_epoch for partition in partitions}
        tps = [partition.tp for partition in partitions]
        committed: dict[TopicPartition, OffsetAndMetadata | KafkaError | ClientError | None] = {}
        try:
            committed |= await fetch_committed_offsets(self._cluster, group, tps)
        except ClosedError:
            return
        except (KafkaError, ClientError) as failure:
            logger.debug("cannot fetch the committed offsets of group %s: %s", group, failure)
            self._cluster.invalidate_coordinator(group)
            committed = dict.fromkeys(tps, failure)
        for partition, fetch_epoch in epochs.items():
            if partition.fetch_epoch != fetch_epoch:
                continue  # there was a seek meanwhile
            match committed.get(partition.tp):
                case OffsetAndMetadata(offset, _metadata, leader_epoch):
                    partition.start_at(offset, leader_epoch)
                    partition.committed = offset
                case None:
                    self.reset(partition, f"group {group!r} has no committed offset")
                case error:
                    self._retries.handle(partition, error)

    async def _find_log_ends(self, partitions: list[AssignedPartition]) -> None:
        if not partitions:
            return
        epochs = {partition: partition.fetch_epoch for partition in partitions}
        leaders = await self._cluster.leaders_of(partition.tp for partition in partitions)
        by_leader: dict[int, list[AssignedPartition]] = {}
        for partition, fetch_epoch in epochs.items():
            leader = leaders[partition.tp]
            if partition.fetch_epoch != fetch_epoch:
                continue  # there was a seek meanwhile
            if isinstance(leader, int):
                by_leader.setdefault(leader, []).append(partition)
            else:
                self._apply_log_end(partition, leader)
        # All at once: a broker that hangs must not delay the partitions of the others.
        await asyncio.gather(
            *(self._find_log_ends_at(node, led) for node, led in by_leader.items())
        )

    async def _find_log_ends_at(self, node: int, partitions: list[AssignedPartition]) -> None:
        epochs = {partition: partition.fetch_epoch for partition in partitions}
        ends = await list_offsets_from(
            self._cluster,
            node,
            {partition.tp: partition.reset_to for partition in partitions},
            read_committed=self._config.read_committed,
        )
        for partition, fetch_epoch in epochs.items():
            self._in_progress.discard(partition)
            if partition.fetch_epoch == fetch_epoch:
                self._apply_log_end(partition, ends.get(partition.tp))
        self._on_found()

    def _apply_log_end(
        self,
        partition: AssignedPartition,
        end: ListedOffset | KafkaError | ClientError | None,
    ) -> None:
        match end:
            case ListedOffset(offset, _timestamp, epoch):
                if partition.reset_to == LATEST:
                    partition.start_at(offset, epoch, validated_epoch=epoch)
                else:
                    partition.start_at(offset)
            case None:
                self._retries.retry_later(partition)
            case error:
                if needs_metadata_refresh(error):
                    self._cluster.invalidate([partition.tp.topic])
                self._retries.handle(partition, error)


def _in_state(
    partitions: Collection[AssignedPartition], state: FetchState
) -> list[AssignedPartition]:
    return [partition for partition in partitions if partition.state is state]
