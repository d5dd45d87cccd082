"""Commits: storing consumed offsets with the group coordinator."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping

from ottla.protocol.errors import ErrorCode

from ..cluster import Cluster
from ..errors import ClientError, ClosedError, KafkaError
from ..offsets import commit_offsets
from ..types import OffsetAndMetadata, TopicPartition
from .delivery import Delivery
from .group_member import GroupMember, MemberState
from .positions import Positions

logger = logging.getLogger(__name__)

_REBALANCE_ERRORS = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION)


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
        self.member: GroupMember | None = None
        self._cluster = cluster
        self._positions = positions
        self._delivery = delivery
        self._interval = interval

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
            return offsets

        if offsets is None:
            # At once, so that no automatic commit meanwhile is behind this one.
            self._delivery.update_position()
            self._positions.mark_consumed()
        timeout = self._cluster.config.timeouts.operation
        await self._cluster.retry(
            lambda: self._commit_after_rebalance(due, timeout), timeout=timeout, what="committing"
        )
        # Delivered records are consumed now: a rebalance may wait for this.
        self._delivery.processing_ended.set()

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
        results = await commit_offsets(self._cluster, self.group, offsets, member=identity)
        failures = {tp: error for tp, error in results.items() if error is not None}
        self._positions.mark_committed(
            (tp, offset.offset) for tp, offset in offsets.items() if tp not in failures
        )
        for error in failures.values():
            if member is not None:
                member.handle_error(error.code, identity[0])
            raise error
