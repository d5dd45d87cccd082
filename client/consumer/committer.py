"""Committing: telling a group's coordinator how far its partitions have been read."""

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

_REBALANCED = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION)


class Committer:
    """Commits for a group: when it is told to, and every so often if `seconds` are given."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        positions: Positions,
        delivery: Delivery,
        seconds: float | None,
    ) -> None:
        self.group = group
        #: In whose name; None where partitions were assigned by hand.
        self.member: GroupMember | None = None
        self._cluster = cluster
        self._positions = positions
        self._delivery = delivery
        self._seconds = seconds

    async def run(self) -> None:
        """Commit what is done with, every so often."""
        while self._seconds:
            await asyncio.sleep(self._seconds)
            try:
                await self.commit_done(None)
            except ClosedError:
                return

    async def commit_done(
        self,
        places: Collection[TopicPartition] | None,
        *,
        with_hands: bool = False,
        patience: float = 0,
    ) -> None:
        """Commit what is done with, of these partitions or of all, if that is automatic.

        It is no disaster if that fails: what was done is done again.
        """

        def due() -> Mapping[TopicPartition, OffsetAndMetadata]:
            found = self._positions.to_commit(with_hands=with_hands)
            return {
                place: offset
                for place, offset in found.items()
                if places is None or place in places
            }

        if not self._seconds:
            return
        before = self._generation_id
        try:
            await self._commit_when_settled(due, patience)
        except ClosedError:
            raise
        except (KafkaError, ClientError) as error:
            is_passing = self._is_passing(error, before)
            logger.log(
                logging.DEBUG if is_passing else logging.WARNING,
                "committing for group %s: %s",
                self.group,
                error,
            )
            if error.retriable:
                self._cluster.invalidate_coordinator(self.group)

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None) -> None:
        """Commit these, or all that was delivered. Raises KafkaError."""

        def due() -> Mapping[TopicPartition, OffsetAndMetadata]:
            return self._positions.to_commit(with_hands=True) if offsets is None else offsets

        if offsets is None:
            # Said and done: nothing that is committed meanwhile is to be behind it.
            self._delivery.settle()
            self._positions.put_down()
        seconds = self._cluster.config.timeouts.operation
        await self._cluster.retry(
            lambda: self._commit_when_settled(due, seconds), timeout=seconds, what="committing"
        )
        # What was in the application's hands is done with, too.
        self._delivery.is_put_down.set()

    async def _commit_when_settled(
        self, due: Callable[[], Mapping[TopicPartition, OffsetAndMetadata]], patience: float
    ) -> None:
        """Commit what is due; if the group is just rebalancing, once more when it has."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience
        while True:
            before = self._generation_id
            self._delivery.settle()
            try:
                await self._commit(due())
            except KafkaError as error:
                if not self._is_passing(error, before) or loop.time() >= deadline:
                    raise
                await asyncio.sleep(self._cluster.config.retry.backoff)
            else:
                return

    @property
    def _generation_id(self) -> int:
        return -1 if self.member is None else self.member.generation_id

    def _is_passing(self, error: Exception, generation_id: int) -> bool:
        """Whether the group has a new generation, and this member has or will have a part in it.

        What it keeps it may commit then.
        """
        if self.member is None or not isinstance(error, KafkaError):
            return False
        is_moving = (
            self.member.state is not MemberState.STABLE
            or self.member.generation_id != generation_id
        )
        return is_moving and error.code in _REBALANCED

    async def _commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit, once. Raises the first error that a partition has."""
        if not offsets:
            return
        member = self.member
        identity = (-1, "", None) if member is None else member.identity
        results = await commit_offsets(self._cluster, self.group, offsets, member=identity)
        failures = {place: error for place, error in results.items() if error is not None}
        self._positions.took_commit(
            (place, offset.offset) for place, offset in offsets.items() if place not in failures
        )
        for error in failures.values():
            if member is not None:
                member.heed(error.code, identity[0])
            raise error
