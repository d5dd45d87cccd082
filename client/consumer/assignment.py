"""Which partitions a consumer has, and how they come and go.

They come from a group, or are all that its topics have, or were assigned by hand. One loop watches
the cluster's metadata for topics and partitions that are new. A group gives and takes partitions
through the methods that `membership.Owner` lists.
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
from .delivery import Delivery
from .fetcher import Fetcher
from .group_member import GroupMember
from .positions import AssignedPartition, Phase, Positions
from .subscription import Subscription, partition_counts

logger = logging.getLogger(__name__)

#: Told of partitions that come or go; it may be a coroutine function.
RebalanceCallback = Callable[[frozenset[TopicPartition]], Awaitable[None] | None]

# How soon a topic is looked for again that was not there.
_MISSING_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Callbacks:
    """What the application wants to hear of rebalances."""

    on_assigned: RebalanceCallback | None
    on_revoked: RebalanceCallback | None
    on_lost: RebalanceCallback | None


class Assignment:
    """The partitions of a consumer."""

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
        #: The part that it takes in a group.
        self.member: GroupMember | None = None
        self._cluster = cluster
        self._positions = positions
        self._delivery = delivery
        self._fetcher = fetcher
        self._committer = committer
        self._callbacks = callbacks
        self._telling: asyncio.Task[None] | None = None
        self._is_new = False
        self._is_changed = asyncio.Event()
        self._is_found = asyncio.Event()

    def subscribe(self, subscription: Subscription) -> None:
        """Read these topics, and no others."""
        self.subscription = subscription
        self._is_new = True
        self._is_changed.set()

    def unsubscribe(self) -> None:
        """Read nothing."""
        self.subscription = self.member = None
        self._is_found.clear()
        self.assign(())

    def assign(self, places: Collection[TopicPartition]) -> None:
        """Read these partitions, and no others."""
        self._drop(self._positions.places - frozenset(places))
        self.begin(self._positions.assign(places))

    def begin(self, partitions: Iterable[AssignedPartition]) -> None:
        """Start where the group has left off, or at an end; or where somebody has sought to."""
        for partition in partitions:
            if partition.phase is not Phase.NEW:
                continue
            if self._committer is not None:
                partition.look_up(Phase.COMMITTED)
            else:
                self._fetcher.reset(partition, "nothing says where to start")
        self._fetcher.wake()

    @property
    def is_telling(self) -> bool:
        """Whether it is one of its callbacks that asks."""
        return self._telling is not None and self._telling is asyncio.current_task()

    # Watching.

    async def watch(self) -> None:
        """Notice topics and partitions that are new."""
        tries = 0
        while True:
            self._is_changed.clear()
            try:
                is_all = await self.look()
                most = self._cluster.config.metadata_max_age
                seconds, tries = most if is_all else min(most, _MISSING_SECONDS), 0
            except (KafkaError, ClientError) as error:
                if not error.retriable:
                    raise
                level = logging.DEBUG if tries else logging.WARNING  # not over and over
                logger.log(level, "looking for %s: %s", self.subscription, error)
                seconds = self._cluster.config.retry.delay(tries, 0.5)
                tries += 1
            try:
                async with asyncio.timeout(seconds):
                    await self._is_changed.wait()
            except TimeoutError:
                continue

    async def look(self) -> bool:
        """Look topics up, and act on what is new; False if one that is wanted is not there."""
        subscription, member = self.subscription, self.member
        assert subscription is not None
        # Whoever leads the group watches for everybody what it has shared out.
        shared, known = ((), {}) if member is None else (member.shared_topics, member.counts)
        metadata = await self._cluster.refresh(subscription.to_ask(shared))
        if subscription is not self.subscription:
            return False  # there is another one by now
        is_news = subscription.look(metadata) or self._is_new
        is_first, self._is_new = not self._is_found.is_set(), False
        self._is_found.set()
        if member is None:
            self.assign(subscription.places)
            return not subscription.is_missing
        counts = partition_counts(metadata, shared, known)
        if not is_first and (is_news or counts != known):
            member.rejoin()
        return not subscription.is_missing and len(counts) == len(shared)

    async def take_part(self) -> None:
        """Be a member of the group. Raises KafkaError when that will not have it."""
        assert self.member is not None
        await self._is_found.wait()
        try:
            await self.member.run()
        except (KafkaError, ClientError):
            await self.lose(self.owned())
            raise

    # What a group asks of it.

    def wanted_topics(self) -> Collection[str]:
        """Give what it is subscribed to."""
        return () if self.subscription is None else self.subscription.found

    def owned(self) -> frozenset[TopicPartition]:
        """Give what it has."""
        return self._positions.places

    async def receive(self, places: Collection[TopicPartition]) -> None:
        """Take partitions."""
        fresh = self._positions.assign(places)
        await self._tell(self._callbacks.on_assigned, places)
        self.begin(fresh)

    async def release(
        self, places: Collection[TopicPartition], patience: float, is_lost: Callable[[], bool]
    ) -> None:
        """Let go of partitions when the application has nothing of them in its hands."""
        partitions = self._hold(places)
        try:
            async with asyncio.timeout(patience):
                while any(one.is_in_hand for one in partitions) and not is_lost():
                    self._delivery.is_put_down.clear()
                    await self._delivery.is_put_down.wait()
        except TimeoutError:
            logger.warning("%s: given up while something of it is in hand", _listed(places))
            for partition in partitions:
                partition.is_torn = True
        if is_lost():
            await self.lose(places)
            return
        if self._committer is not None:
            await self._committer.commit_done(places)
        await self.give_up(places)

    async def give_up(self, places: Collection[TopicPartition]) -> None:
        """Let go of partitions now."""
        if places:
            self._hold(places)
            await self._tell(self._callbacks.on_revoked, places)
            self._drop(places)

    async def lose(self, places: Collection[TopicPartition]) -> None:
        """Let go of partitions that others may have already."""
        if places:
            self._hold(places)
            await self._tell(self._callbacks.on_lost, places)
            self._drop(places)

    def freeze(self) -> None:
        """Give nothing more of what it has: that is lost, and about to be let go of."""
        self._hold(self.owned())
        self._delivery.is_put_down.set()

    # And how.

    def _hold(self, places: Collection[TopicPartition]) -> list[AssignedPartition]:
        partitions = [partition for partition in self._positions if partition.place in places]
        for partition in partitions:
            partition.is_held = True
        self._delivery.interrupt(partitions)
        return partitions

    def _drop(self, places: Collection[TopicPartition]) -> None:
        gone = [partition for partition in self._positions if partition.place in places]
        self._delivery.forget(gone)
        self._positions.drop(places)

    async def _tell(
        self, callback: RebalanceCallback | None, places: Collection[TopicPartition]
    ) -> None:
        if callback is None:
            return
        self._telling = asyncio.current_task()
        try:
            result = callback(frozenset(places))
            if isawaitable(result):
                await result
        except Exception as error:  # it is the application's own, which is to hear of it
            logger.exception("a callback failed for %s", _listed(places))
            self._delivery.report(error)
        finally:
            self._telling = None


def _listed(places: Collection[TopicPartition]) -> str:
    return ", ".join(map(str, sorted(places)))
