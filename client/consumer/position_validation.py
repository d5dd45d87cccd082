"""Position validation (KIP-320): whether the log of a new leader has what was read.

After an unclean leader election, or when committed records were lost, the log of the new leader may
end before the consumer's position, or have other records there. So when the leader epoch of a
partition changes, and before the first fetch at a committed offset, the leader is asked where the
epoch of the last record that was read ends in its log. If that is before the position, the log was
truncated: `auto_offset_reset` continues at the first offset that is known to diverge; without it
the application gets a `LogTruncationError`, and decides.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import NamedTuple

from ottla.protocol.api.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

from ..cluster import Cluster, needs_metadata_refresh
from ..errors import ClientError, ClosedError, KafkaError, LogTruncationError, UnsupportedError
from ..offsets import group_by_topic, kafka_error
from ..types import TopicPartition
from .config import ReadConfig
from .delivery import Delivery
from .partition_retries import PartitionRetries
from .position_lookup import PositionLookup
from .positions import AssignedPartition

logger = logging.getLogger(__name__)

_CONSUMER = -1


class _Validation(NamedTuple):
    """A partition that is validated, as it was when the request was sent."""

    partition: AssignedPartition
    #: Of the leader that is asked.
    leader_epoch: int
    offset: int
    fetched_epoch: int
    fetch_epoch: int


class PositionValidation:
    """Validates fetch offsets after a change of the leader."""

    def __init__(
        self,
        cluster: Cluster,
        delivery: Delivery,
        config: ReadConfig,
        retries: PartitionRetries,
        lookup: PositionLookup,
    ) -> None:
        self._cluster = cluster
        self._delivery = delivery
        self._config = config
        self._retries = retries
        self._lookup = lookup
        self._in_progress: set[AssignedPartition] = set()

    @staticmethod
    def needs(partition: AssignedPartition, leader_epoch: int) -> bool:
        """Whether it is unknown if the log of the leader of `leader_epoch` has what was fetched."""
        return partition.fetched_epoch >= 0 and leader_epoch > partition.validated_epoch

    def is_in_progress(self, partition: AssignedPartition) -> bool:
        """Whether a partition is being validated."""
        return partition in self._in_progress

    def begin(self, partitions: Collection[AssignedPartition]) -> None:
        """Mark partitions as being validated; `run` is to follow."""
        self._in_progress.update(partitions)

    async def run(self, node: int, epochs: dict[AssignedPartition, int]) -> None:
        """Validate partitions that a broker leads in these epochs."""
        try:
            await self._validate(node, epochs)
        finally:
            self._in_progress.difference_update(epochs)

    async def _validate(self, node: int, epochs: dict[AssignedPartition, int]) -> None:
        validations = {
            one.tp: _Validation(one, epoch, one.fetch_offset, one.fetched_epoch, one.fetch_epoch)
            for one, epoch in epochs.items()
        }
        try:
            response = await self._cluster.send(
                node, _request(validations.values()), OffsetForLeaderEpochResponse
            )
        except ClosedError:
            return
        except UnsupportedError as error:
            logger.debug("positions cannot be validated: %s", error)
            for partition, epoch in epochs.items():
                partition.validated_epoch = max(partition.validated_epoch, epoch)
            return
        except (KafkaError, ClientError) as failure:
            reason = f"cannot validate positions at broker {node}: {failure}"
            self._retries.log_first(epochs, reason)
            for partition in epochs:
                partition.has_stale_leader = needs_metadata_refresh(failure)
                self._retries.handle(partition, failure)
            return
        results = {
            TopicPartition(topic.topic, result.partition): result
            for topic in response.topics
            for result in topic.partitions
        }
        for tp, validation in validations.items():
            # There may have been a seek meanwhile.
            if validation.partition.fetch_epoch == validation.fetch_epoch:
                self._apply(validation, results.get(tp))

    def _apply(self, validation: _Validation, result: EpochEndOffset | None) -> None:
        partition, leader_epoch, offset, _fetched_epoch, _fetch_epoch = validation
        if result is None:
            self._retries.retry_later(partition)
            return
        error = kafka_error(result.error_code, f"{partition.tp}, validation of offset {offset}")
        if error is not None:
            partition.has_stale_leader = needs_metadata_refresh(error)
            self._retries.handle(partition, error)
            return
        partition.failures = 0
        is_known = result.leader_epoch >= 0 and result.end_offset >= 0
        if not is_known or result.end_offset < offset:
            # What was not delivered yet may differ, and is fetched again.
            self._delivery.take_back([partition])
            partition.discard()
        if not is_known:
            self._truncated(partition, leader_epoch, None)
        elif result.end_offset < partition.position:
            self._truncated(partition, leader_epoch, result)
        else:
            partition.validated_epoch = max(partition.validated_epoch, leader_epoch)

    def _truncated(
        self, partition: AssignedPartition, leader_epoch: int, end: EpochEndOffset | None
    ) -> None:
        """Apply auto_offset_reset to a position that the leader's log does not have."""
        error = LogTruncationError(
            partition.tp, partition.position, None if end is None else end.end_offset
        )
        if self._config.reset_to is None:
            self._retries.fail(partition, error)
            return
        logger.warning("%s", error)
        if end is None:
            self._lookup.reset(partition, str(error))
            return
        self._delivery.forget([partition])
        partition.start_at(end.end_offset, end.leader_epoch, leader_epoch)


def _request(validations: Iterable[_Validation]) -> OffsetForLeaderEpochRequest:
    by_tp = {one.partition.tp: one for one in validations}
    return OffsetForLeaderEpochRequest(
        replica_id=_CONSUMER,
        topics=[
            OffsetForLeaderTopic(
                topic=topic,
                partitions=[
                    OffsetForLeaderPartition(
                        partition=tp.partition,
                        current_leader_epoch=by_tp[tp].leader_epoch,
                        leader_epoch=by_tp[tp].fetched_epoch,
                    )
                    for tp in tps
                ],
            )
            for topic, tps in group_by_topic(by_tp)
        ],
    )
