"""Commits: storing consumed offsets with the group coordinator.

The coordinator checks that a commit comes from a member of the current generation, but not that the
partition is assigned to this member. An application that processed a record for so long that the
rebalance did not wait for it would therefore move the offset that the partition's next member has
committed backwards. So the offsets that an application passes are fenced here:

- the partition has to be assigned, and not to have been revoked since the call, even if it was
  assigned again;
- the offset must not be before the one at which this assignment started, or that a seek went to;
- the member has to be in a generation. Without one the commit would count as that of a consumer
  without a group membership, which the coordinator accepts if all other members have left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping

from ottla.protocol.errors import ErrorCode

from ..cluster import Cluster
from ..errors import ClientError, ClosedError, ConsumerError, KafkaError
from ..offsets import commit_offsets, fetch_committed_offsets
from ..types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from .consumer_protocol_member import ConsumerProtocolMember
from .delivery import Delivery
from .group_member import GroupMember
from .member_state import MemberState
from .positions import AssignedPartition, Positions

logger = logging.getLogger(__name__)

_REBALANCE_ERRORS = (
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.STALE_MEMBER_EPOCH,
)


class Committer:
    """Commits for a group: when asked to, and every `interval` seconds if that is set."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        positions: Positions,
        delivery: Delivery,
        interval: float | None,
    ) -> None:
        self.group = group
        #: The member that commits; None if partitions were assigned manually.
        self.member: GroupMember | ConsumerProtocolMember | None = None
        #: Whether partitions were ever assigned by the group, so that late commits are possible.
        self.is_group_managed = False
        self._cluster = cluster
        self._positions = positions
        self._delivery = delivery
        self._interval = interval
        # The positions of partitions that were revoked after records were delivered that no commit
        # covers.
        self._revoked_uncommitted: dict[TopicPartition, int] = {}

    async def run(self) -> None:
        """Commit consumed offsets at each interval."""
        while self._interval:
            await asyncio.sleep(self._interval)
            try:
                await self.commit_consumed(None)
            except ClosedError:
                return

    async def commit_consumed(
        self,
        tps: Collection[TopicPartition] | None,
        *,
        include_processing: bool = False,
        timeout: float = 0,
    ) -> None:
        """Commit consumed offsets, of these partitions or of all, if auto-commit is enabled.

        A failure is only logged: the records are delivered again.
        """

        def offsets() -> Mapping[TopicPartition, OffsetAndMetadata]:
            due = self._positions.offsets_to_commit(include_processing=include_processing)
            return {tp: offset for tp, offset in due.items() if tps is None or tp in tps}

        if not self._interval:
            return
        generation_id = self._generation_id
        try:
            await self._commit_after_rebalance(offsets, timeout)
        except ClosedError:
            raise
        except (KafkaError, ClientError) as error:
            is_transient = self._is_rebalance(error, generation_id)
            logger.log(
                logging.DEBUG if is_transient else logging.WARNING,
                "commit for group %s failed: %s",
                self.group,
                error,
            )
            if error.retriable:
                self._cluster.invalidate_coordinator(self.group)

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None) -> None:
        """Commit these offsets, or all that was delivered. Raises KafkaError."""

        def due() -> Mapping[TopicPartition, OffsetAndMetadata]:
            if offsets is None:
                return self._positions.offsets_to_commit(include_processing=True)
            self._check_assigned(partitions)
            return offsets

        partitions = {} if offsets is None else {tp: self._positions.get(tp) for tp in offsets}
        if offsets is not None:
            self._check_assigned(partitions)
            await self._check_lowest_positions(offsets)
        else:
            # At once, so that no automatic commit meanwhile is behind this one.
            self._delivery.update_position()
            self._positions.mark_consumed()
        timeout = self._cluster.config.timeouts.operation
        await self._cluster.retry(
            lambda: self._commit_after_rebalance(due, timeout), timeout=timeout, what="committing"
        )
        # Delivered records are consumed now: a rebalance may wait for this.
        self._delivery.processing_ended.set()

    # Commits in transactions.

    def unassign(self, partitions: Iterable[AssignedPartition]) -> None:
        """Remember which of these partitions have records that were not committed."""
        self._revoked_uncommitted.update(
            {one.tp: one.position for one in partitions if one.has_uncommitted}
        )

    def rewind(self) -> None:
        """Forget what was delivered and not committed: it is delivered again."""
        self._revoked_uncommitted.clear()

    def transaction_offsets(
        self,
    ) -> tuple[ConsumerGroupMetadata, dict[TopicPartition, OffsetAndMetadata]]:
        """Return what was delivered and is not committed, and the member that commits it.

        Raises KafkaError if some of it was revoked: the next member processes it again, so the
        transaction with its results must not be committed.
        """
        if self._interval:
            raise ConsumerError(
                "Offsets of this consumer are committed automatically: with transactions, create it"
                " with auto_commit=None"
            )
        if self._revoked_uncommitted:
            revoked = ", ".join(map(str, sorted(self._revoked_uncommitted)))
            raise KafkaError(
                ErrorCode.ILLEGAL_GENERATION,
                f"Cannot commit for group {self.group!r}: {revoked} was revoked after records were"
                " delivered; abort the transaction, and call seek_to_committed()",
            )
        self._delivery.update_position()
        offsets = self._positions.offsets_to_commit(include_processing=True)
        # Without offsets there is nothing that only a member may do.
        group = self.group_metadata() if offsets else ConsumerGroupMetadata(self.group)
        return group, offsets

    def mark_transaction_committed(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        """Store offsets that a transaction has committed."""
        for tp, one in offsets.items():
            if self._revoked_uncommitted.get(tp) == one.offset:
                del self._revoked_uncommitted[tp]  # revoked after its offset was sent
        self._positions.mark_committed((tp, one.offset) for tp, one in offsets.items())
        # Delivered records are consumed now: a rebalance may wait for this.
        self._delivery.processing_ended.set()

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return the group and the member. Raises KafkaError if it is not a member now."""
        if self.member is None:
            return ConsumerGroupMetadata(self.group)
        generation_id, member_id, instance_id = self.member.identity
        if generation_id < 0:
            raise self._not_a_member()
        return ConsumerGroupMetadata(self.group, generation_id, member_id, instance_id)

    def _not_a_member(self) -> KafkaError:
        return KafkaError(
            ErrorCode.UNKNOWN_MEMBER_ID,
            f"Cannot commit for group {self.group!r}: this consumer is not a member of it now",
        )

    async def _commit_after_rebalance(
        self, due: Callable[[], Mapping[TopicPartition, OffsetAndMetadata]], timeout: float
    ) -> None:
        """Commit what is due; if the group is rebalancing, again when it has, within `timeout`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            generation_id = self._generation_id
            self._delivery.update_position()
            try:
                await self._commit(due())
            except KafkaError as error:
                if not self._is_rebalance(error, generation_id) or loop.time() >= deadline:
                    raise
                await asyncio.sleep(self._cluster.config.retry.backoff)
            else:
                return

    def _check_assigned(
        self, partitions: Mapping[TopicPartition, AssignedPartition | None]
    ) -> None:
        """Raise KafkaError if one of these was not assigned, or has been revoked since."""
        if not self.is_group_managed:
            return
        for tp, partition in partitions.items():
            if partition is None or not self._positions.is_current(partition):
                raise KafkaError(
                    ErrorCode.ILLEGAL_GENERATION,
                    f"Cannot commit {tp} for group {self.group!r}: it is not assigned to this"
                    " member any more, and another one may have processed its records",
                )

    async def _check_lowest_positions(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        """Raise KafkaError for an offset before the one at which its partition was assigned."""
        if self.member is None:
            return
        lowest = {tp: self._positions[tp].lowest_position for tp in offsets}
        if unknown := [tp for tp, position in lowest.items() if position is None]:
            # Just assigned: it starts at the committed offset.
            committed = await self._cluster.retry(
                lambda: fetch_committed_offsets(self._cluster, self.group, unknown),
                what="looking up committed offsets",
            )
            for tp, result in committed.items():
                if isinstance(result, KafkaError):
                    raise result
                lowest[tp] = 0 if result is None else result.offset
        for tp, offset in offsets.items():
            if offset.offset < (lowest[tp] or 0):
                raise KafkaError(
                    ErrorCode.ILLEGAL_GENERATION,
                    f"Cannot commit offset {offset.offset} of {tp} for group {self.group!r}: this"
                    f" member was assigned the partition at offset {lowest[tp]}; seek to an earlier"
                    " offset before committing it",
                )

    @property
    def _generation_id(self) -> int:
        return -1 if self.member is None else self.member.generation_id

    def _is_rebalance(self, error: Exception, generation_id: int) -> bool:
        """Whether a commit failed because of a rebalance that this member takes part in.

        Partitions that it keeps can be committed afterwards.
        """
        if self.member is None or not isinstance(error, KafkaError):
            return False
        is_rebalancing = (
            self.member.state is not MemberState.STABLE
            or self.member.generation_id != generation_id
        )
        return is_rebalancing and error.code in _REBALANCE_ERRORS

    async def _commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Send one OffsetCommit. Raises the first error of a partition."""
        if not offsets:
            return
        member = self.member
        identity = (-1, "", None) if member is None else member.identity
        if member is not None and identity[0] < 0:
            raise self._not_a_member()
        partitions = {tp: self._positions.get(tp) for tp in offsets}
        results = await commit_offsets(self._cluster, self.group, offsets, member=identity)
        failures = {tp: error for tp, error in results.items() if error is not None}
        self._positions.mark_committed(
            (tp, offset.offset)
            for tp, offset in offsets.items()
            # One that was assigned again meanwhile starts at whatever is committed by then.
            if tp not in failures and self._positions.get(tp) is partitions[tp]
        )
        for error in failures.values():
            if member is not None:
                member.handle_error(error.code, identity[0])
            raise error
