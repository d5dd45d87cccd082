"""The partitions of a consumer, and how they are assigned and revoked.

They are assigned by a group, or are all partitions of the subscribed topics, or were assigned
manually. One loop watches the cluster's metadata for new topics and partitions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from inspect import isawaitable

from ..cluster import Cluster
from ..errors import ClientError, KafkaError
from ..types import TopicPartition
from .committer import Committer
from .consumer_protocol_member import ConsumerProtocolMember
from .delivery import Delivery
from .fetcher import Fetcher
from .group_member import GroupMember
from .positions import AssignedPartition, FetchState, Positions
from .subscription import Subscription, partition_counts

logger = logging.getLogger(__name__)

#: Called with the partitions that are assigned or revoked; it may be a coroutine function.
RebalanceCallback = Callable[[frozenset[TopicPartition]], Awaitable[None] | None]

# How soon to look again for a topic that does not exist.
_MISSING_TOPIC_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Callbacks:
    """The rebalance callbacks of the application."""

    on_assigned: RebalanceCallback | None
    on_revoked: RebalanceCallback | None
    on_lost: RebalanceCallback | None


class Assignment:
    """The partitions that are assigned to a consumer."""

    def __init__(
        self,
        cluster: Cluster,
        positions: Positions,
        delivery: Delivery,
        fetcher: Fetcher,
        committer: Committer | None,
        callbacks: Callbacks,
    ) -> None:
        self.subscription: Subscription | None = None
        #: Set while the consumer is a member of a group.
        self.member: GroupMember | ConsumerProtocolMember | None = None
        self._cluster = cluster
        self._positions = positions
        self._delivery = delivery
        self._fetcher = fetcher
        self._committer = committer
        self._callbacks = callbacks
        self._callback_task: asyncio.Task[None] | None = None
        self._is_new_subscription = False
        self._subscription_changed = asyncio.Event()
        self._topics_known = asyncio.Event()

    def subscribe(self, subscription: Subscription) -> None:
        """Replace the subscription."""
        self.subscription = subscription
        self._is_new_subscription = True
        self._subscription_changed.set()

    def unsubscribe(self) -> None:
        """Drop the subscription and all partitions."""
        self.subscription = self.member = None
        self._topics_known.clear()
        self.assign(())

    def assign(self, tps: Collection[TopicPartition]) -> None:
        """Assign these partitions, and no others."""
        self._unassign(self._positions.assigned - frozenset(tps))
        self.start_reading(self._positions.assign(tps))

    def start_reading(self, partitions: Iterable[AssignedPartition]) -> None:
        """Start at the committed offset or the reset position, where there was no seek."""
        for partition in partitions:
            if partition.state is not FetchState.INITIALIZING:
                continue
            if self._committer is not None:
                partition.await_position(FetchState.AWAIT_COMMITTED)
            else:
                self._fetcher.reset(partition, "there is no position to start at")
        self._fetcher.wake()

    @property
    def is_in_callback(self) -> bool:
        """Whether the current task is one that runs a rebalance callback."""
        return self._callback_task is not None and self._callback_task is asyncio.current_task()

    # Metadata.

    async def watch(self) -> None:
        """Watch for new topics and partitions."""
        failures = 0
        while True:
            self._subscription_changed.clear()
            try:
                is_complete = await self.refresh()
                max_age = self._cluster.config.metadata_max_age
                delay = max_age if is_complete else min(max_age, _MISSING_TOPIC_SECONDS)
                failures = 0
            except (KafkaError, ClientError) as error:
                if not error.retriable:
                    raise
                level = logging.DEBUG if failures else logging.WARNING  # warn once
                logger.log(level, "cannot fetch metadata of %s: %s", self.subscription, error)
                delay = self._cluster.config.retry.delay(failures, 0.5)
                failures += 1
            try:
                async with asyncio.timeout(delay):
                    await self._subscription_changed.wait()
            except TimeoutError:
                continue

    async def refresh(self) -> bool:
        """Refresh metadata, and act on what is new; False if a subscribed topic is missing."""
        subscription, member = self.subscription, self.member
        assert subscription is not None
        # The leader of a group watches the topics of all members.
        topics = () if member is None else member.group_topics
        known = {} if member is None else member.partition_counts
        metadata = await self._cluster.refresh(subscription.topics_to_fetch(topics))
        if subscription is not self.subscription:
            return False  # it was replaced meanwhile
        is_changed = subscription.update(metadata) or self._is_new_subscription
        is_first, self._is_new_subscription = not self._topics_known.is_set(), False
        self._topics_known.set()
        if member is None:
            self.assign(subscription.partitions)
            return not subscription.is_missing
        counts = partition_counts(metadata, topics, known)
        if not is_first and (is_changed or counts != known):
            member.rejoin()
        return not subscription.is_missing and len(counts) == len(topics)

    async def run_member(self) -> None:
        """Be a member of the group. Raises KafkaError when the group rejects it."""
        assert self.member is not None
        await self._topics_known.wait()
        try:
            await self.member.run()
        except (KafkaError, ClientError):
            await self.lose(self.current())
            raise

    # Called by the group member.

    def subscribed_topics(self) -> Collection[str]:
        """Return the subscribed topics; of a pattern, those that match."""
        return () if self.subscription is None else self.subscription.topics

    def subscribed_regex(self) -> str:
        """Return the pattern, if the coordinator is to resolve it; "" if not."""
        return "" if self.subscription is None else self.subscription.regex

    def give_up_regex(self) -> bool:
        """Resolve the pattern here from now on: the coordinator cannot; False if there is none."""
        return self.subscription is not None and self.subscription.give_up_regex()

    def current(self) -> frozenset[TopicPartition]:
        """Return the assigned partitions."""
        return self._positions.assigned

    async def add(self, tps: Collection[TopicPartition]) -> None:
        """Add partitions that the group assigned."""
        added = self._positions.assign(tps)
        await self._run_callback(self._callbacks.on_assigned, tps)
        self.start_reading(added)

    async def revoke_gracefully(
        self, tps: Collection[TopicPartition], timeout: float, is_lost: Callable[[], bool]
    ) -> None:
        """Revoke partitions when the application has processed what it was given, and commit.

        `is_lost` turns true when the group has removed the member meanwhile.
        """
        partitions = self._stop_delivery(tps)
        try:
            async with asyncio.timeout(timeout):
                while any(partition.is_processing for partition in partitions) and not is_lost():
                    self._delivery.processing_ended.clear()
                    await self._delivery.processing_ended.wait()
        except TimeoutError:
            logger.warning(
                "revoking %s while its records are being processed: timeout after %g s",
                _joined(tps),
                timeout,
            )
            for partition in partitions:
                partition.revoked_while_processing = True
        if is_lost():
            await self.lose(tps)
            return
        if self._committer is not None:
            await self._committer.commit_consumed(tps)
        await self.revoke(tps)

    async def revoke(self, tps: Collection[TopicPartition]) -> None:
        """Revoke partitions now."""
        if tps:
            self._stop_delivery(tps)
            await self._run_callback(self._callbacks.on_revoked, tps)
            self._unassign(tps)

    async def lose(self, tps: Collection[TopicPartition]) -> None:
        """Drop partitions that other members may have already."""
        if tps:
            self._stop_delivery(tps)
            await self._run_callback(self._callbacks.on_lost, tps)
            self._unassign(tps)

    def freeze(self) -> None:
        """Stop all delivery: the partitions are lost, and about to be dropped."""
        self._stop_delivery(self.current())
        self._delivery.processing_ended.set()

    def _stop_delivery(self, tps: Collection[TopicPartition]) -> list[AssignedPartition]:
        partitions = [partition for partition in self._positions if partition.tp in tps]
        for partition in partitions:
            partition.is_revoking = True
        self._delivery.take_back(partitions)
        return partitions

    def _unassign(self, tps: Collection[TopicPartition]) -> None:
        partitions = [one for one in self._positions if one.tp in tps]
        self._delivery.forget(partitions)
        if self._committer is not None:
            self._committer.unassign(partitions)
        self._positions.unassign(tps)

    async def _run_callback(
        self, callback: RebalanceCallback | None, tps: Collection[TopicPartition]
    ) -> None:
        if callback is None:
            return
        self._callback_task = asyncio.current_task()
        try:
            result = callback(frozenset(tps))
            if isawaitable(result):
                await result
        except Exception as error:  # application code: raised to the application
            logger.exception("rebalance callback failed for %s", _joined(tps))
            self._delivery.report(error)
        finally:
            self._callback_task = None


def _joined(tps: Collection[TopicPartition]) -> str:
    return ", ".join(map(str, sorted(tps)))
