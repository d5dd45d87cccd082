"""Fetching ahead: the background of a consumer, which fills the buffers of its partitions.

One loop plans, whenever something has changed: positions that are to be looked up, leaders that are
not known, and for each broker that leads something one Fetch at a time, a long poll for all that is
wanted of it. What goes wrong concerns the partitions that it happens to, and no others: those of
brokers that answer are read on while one is down, or hangs.

A broker is asked for more when half of what may be buffered of it has been read, and then for all
of its partitions. (Asking only for those whose buffers are empty would park a long poll for the
idle ones, and the busy ones would have to wait until it ends.) What may be buffered is shared out
among brokers, so that an application that reads slowly holds `prefetch_bytes` and a batch of each
broker, no more. Partitions that were paused keep what they have, up to half as much again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Collection, Coroutine, Iterable
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

from ottla.protocol.api.fetch import FetchResponse, PartitionData
from ottla.protocol.errors import ErrorCode

from ..cluster import Cluster, PartitionInfo, needs_metadata_refresh
from ..errors import ClientError, ClosedError, ConsumerError, KafkaError
from ..fetch_request import PartitionFetch, fetch_request
from ..offsets import fetch_committed_offsets, kafka_error, list_offsets_from
from ..types import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition
from .delivery import Delivery
from .fetched_data import FetchedData, TruncatedError
from .positions import AssignedPartition, Phase, Positions

logger = logging.getLogger(__name__)

# After so many tries what is wrong with a partition is no move of its leader.
_LASTING = 3


@dataclass(frozen=True, slots=True)
class FetchConfig:
    """How records are fetched."""

    #: A fetch is answered when there are so many bytes,
    min_bytes: int = 1
    #: or after so many seconds.
    max_wait: float = 0.5
    #: How much one answer may bring, over all partitions and for each; one batch comes always.
    max_bytes: int = 50 * 1024 * 1024
    partition_max_bytes: int = 1024 * 1024
    #: How much may wait in memory for the application, as it came.
    prefetch_bytes: int = 32 * 1024 * 1024
    #: Whether batches are checked for damage.
    check_crcs: bool = True

    def __post_init__(self) -> None:
        for name in ("min_bytes", "max_bytes", "partition_max_bytes", "prefetch_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: at least 1 is needed")
        if self.max_wait < 0:
            raise ValueError(f"max_wait is {self.max_wait:g}: it cannot be negative")


@dataclass(frozen=True, slots=True)
class Reading:
    """What is read, and from where."""

    group: str | None
    #: EARLIEST, LATEST, or None: where to start when nothing says where.
    reset_to: int | None
    #: Whether records of transactions that are open or aborted are left out.
    is_committed: bool


class _Wanted(NamedTuple):
    """A partition that is being fetched from."""

    partition: AssignedPartition
    offset: int
    incarnation: int


class Fetcher:
    """Fills buffers until it is cancelled."""

    def __init__(
        self,
        cluster: Cluster,
        positions: Positions,
        delivery: Delivery,
        config: FetchConfig,
        reading: Reading,
    ) -> None:
        self._cluster = cluster
        self._positions = positions
        self._delivery = delivery
        self._config = config
        self._reading = reading
        self._news = asyncio.Event()
        self._alarm: asyncio.TimerHandle | None = None
        self._turns = count(1)
        # What is under way: nodes that are asked, and look-ups.
        self._busy: set[int | str] = set()
        # The partitions whose positions are being looked up.
        self._looking: set[AssignedPartition] = set()

    def wake(self) -> None:
        """Take note that something has changed."""
        self._news.set()

    async def run(self) -> None:
        """Plan, and do what was planned."""
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    self._news.clear()
                    for key, work in self._plan():
                        self._busy.add(key)
                        tasks.create_task(self._do(key, work))
                    await self._news.wait()
        finally:
            if self._alarm is not None:
                self._alarm.cancel()

    async def _do(self, key: int | str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        finally:
            self._busy.discard(key)
            self.wake()

    def _plan(self) -> Iterable[tuple[int | str, Coroutine[Any, Any, None]]]:
        """Decide what to do next."""
        now = asyncio.get_running_loop().time()
        homeless: set[str] = set()
        lost: list[AssignedPartition] = []
        by_node: dict[int, list[AssignedPartition]] = {}
        next_try = float("inf")
        for partition in self._positions:
            if partition.retry_at > now:
                next_try = min(next_try, partition.retry_at)
            elif partition.phase in (Phase.COMMITTED, Phase.RESET) and partition.error is None:
                if partition not in self._looking:
                    lost.append(partition)
            elif partition.is_fetchable:
                node = self._leader(partition.place)
                if node is None or partition.is_astray:
                    homeless.add(partition.place.topic)
                else:
                    by_node.setdefault(node, []).append(partition)
        self._wake_at(next_try)
        self._drop_what_is_paused()
        if lost:
            self._looking.update(lost)
            yield f"positions {next(self._turns)}", self._look_up(lost)
        if homeless and "leaders" not in self._busy:
            yield "leaders", self._find_leaders(homeless)
        share = self._config.prefetch_bytes // (2 * max(1, len(by_node)))
        for node, partitions in by_node.items():
            buffered = sum(partition.buffered_bytes for partition in partitions)
            if node not in self._busy and buffered <= share:
                yield node, self._fetch(node, partitions, max(1, share))

    def _leader(self, place: TopicPartition) -> int | None:
        """Give the leader of a partition, if it is known."""
        info = self._info(place)
        return None if info is None or info.leader < 0 else info.leader

    def _info(self, place: TopicPartition) -> PartitionInfo | None:
        topic = self._cluster.metadata.topics.get(place.topic)
        if topic is None or not 0 <= place.partition < len(topic.partitions):
            return None
        return topic.partitions[place.partition]

    def _drop_what_is_paused(self) -> None:
        paused = [one for one in self._positions if one.is_paused and one.buffered_bytes]
        if sum(one.buffered_bytes for one in paused) > self._config.prefetch_bytes // 2:
            for partition in paused:
                partition.discard()

    def _wake_at(self, when: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if when != float("inf"):
            self._alarm = asyncio.get_running_loop().call_at(when, self.wake)

    # Leaders and positions.

    async def _find_leaders(self, topics: set[str]) -> None:
        try:
            metadata = await self._cluster.refresh(sorted(topics))
        except ClosedError:
            return
        except (KafkaError, ClientError) as error:
            affected = [one for one in self._positions if one.place.topic in topics]
            self._complain(affected, f"metadata of {', '.join(sorted(topics))}: {error}")
            for partition in affected:
                self._try_later(partition)
            return
        for partition in self._positions:
            if partition.place.topic not in topics:
                continue
            partition.is_astray = False
            info = metadata.topics.get(partition.place.topic)
            if self._leader(partition.place) is not None:
                continue
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if info is None else info.error
            if code and not code.retriable:
                self._fail(partition, kafka_error(code, partition.place.topic))
            else:
                self._note(partition, f"{partition.place} has no leader")
                self._try_later(partition)

    async def _look_up(self, partitions: Collection[AssignedPartition]) -> None:
        try:
            await self.find_positions(partitions)
        finally:
            self._looking.difference_update(partitions)

    async def find_positions(self, partitions: Collection[AssignedPartition]) -> None:
        """Look up where to read; errors that may pass are tried again later."""
        await self._find_committed([one for one in partitions if one.phase is Phase.COMMITTED])
        # The others start at an end: they were told to, or nothing was committed.
        await self._find_ends([one for one in partitions if one.phase is Phase.RESET])
        self.wake()

    async def _find_committed(self, partitions: list[AssignedPartition]) -> None:
        group = self._reading.group
        if not partitions:
            return
        assert group is not None
        before = {partition: partition.incarnation for partition in partitions}
        found: dict[TopicPartition, OffsetAndMetadata | KafkaError | ClientError | None] = {}
        try:
            found |= await fetch_committed_offsets(
                self._cluster, group, [one.place for one in before]
            )
        except ClosedError:
            return
        except (KafkaError, ClientError) as failure:
            logger.debug("committed offsets of group %s: %s", group, failure)
            self._cluster.invalidate_coordinator(group)
            found = dict.fromkeys((one.place for one in before), failure)
        for partition, incarnation in before.items():
            if partition.incarnation != incarnation:
                continue  # somebody sought meanwhile
            match found.get(partition.place):
                case OffsetAndMetadata(offset, _metadata, epoch):
                    partition.start_at(offset, epoch)
                    partition.committed = offset
                case None:
                    self.reset(partition, f"group {group!r} has committed nothing")
                case error:
                    self._retry_or_fail(partition, error)

    async def _find_ends(self, partitions: list[AssignedPartition]) -> None:
        if not partitions:
            return
        before = {partition: partition.incarnation for partition in partitions}
        leaders = await self._cluster.leaders_of(one.place for one in partitions)
        by_node: dict[int, list[AssignedPartition]] = {}
        for partition, incarnation in before.items():
            leader = leaders[partition.place]
            if partition.incarnation != incarnation:
                continue  # somebody sought meanwhile
            if isinstance(leader, int):
                by_node.setdefault(leader, []).append(partition)
            else:
                self._take_end(partition, leader)
        # Nobody waits for a broker that is not his.
        await asyncio.gather(*(self._find_ends_at(node, some) for node, some in by_node.items()))

    async def _find_ends_at(self, node: int, partitions: list[AssignedPartition]) -> None:
        before = {partition: partition.incarnation for partition in partitions}
        found = await list_offsets_from(
            self._cluster,
            node,
            {partition.place: partition.reset_to for partition in partitions},
            read_committed=self._reading.is_committed,
        )
        for partition, incarnation in before.items():
            self._looking.discard(partition)
            if partition.incarnation == incarnation:
                self._take_end(partition, found.get(partition.place))
        self.wake()

    def _take_end(
        self,
        partition: AssignedPartition,
        found: OffsetAndTimestamp | KafkaError | ClientError | None,
    ) -> None:
        match found:
            case OffsetAndTimestamp(offset, _timestamp):
                partition.start_at(offset)
            case None:
                self._try_later(partition)
            case error:
                if needs_metadata_refresh(error):
                    self._cluster.invalidate([partition.place.topic])
                self._retry_or_fail(partition, error)

    def reset(self, partition: AssignedPartition, reason: str) -> None:
        """Start at an end of the log, or tell the application that nobody said where."""
        if self._reading.reset_to is not None:
            self._delivery.forget([partition])
            partition.look_up(Phase.RESET, self._reading.reset_to)
            return
        reason = f"{partition.place}: {reason}, and auto_offset_reset is none"
        self._fail(partition, ConsumerError(reason))

    # FetchConfig.

    async def _fetch(self, node: int, partitions: list[AssignedPartition], share: int) -> None:
        """Ask a broker once, and take in what it gives."""
        config = self._config
        # Somebody may have sought, paused or let go of one since this was planned.
        partitions = [one for one in partitions if one.is_fetchable and self._positions.has(one)]
        partitions.sort(key=lambda partition: partition.served)
        if not partitions:
            return
        wanted = {one.place: _Wanted(one, one.fetch_offset, one.incarnation) for one in partitions}
        request = fetch_request(
            map(self._partition_fetch, wanted.values()),
            max_wait_ms=int(config.max_wait * 1000),
            min_bytes=config.min_bytes,
            max_bytes=min(config.max_bytes, share),
            read_committed=self._reading.is_committed,
        )
        timeout = config.max_wait + self._cluster.config.timeouts.request
        try:
            answer = await self._cluster.send(
                node, request, FetchResponse, channel="fetch", timeout=timeout
            )
            if (error := kafka_error(answer.error_code, f"broker {node}")) is not None:
                raise error
        except ClosedError:
            return
        except (KafkaError, ClientError) as failure:
            self._complain(partitions, f"fetching from broker {node}: {failure}")
            for partition in partitions:
                partition.is_astray = needs_metadata_refresh(failure)
                self._retry_or_fail(partition, failure)
            return
        # The parts of an answer lie in one buffer, which lives as long as any of them.
        parts = [(topic.topic, data) for topic in answer.responses for data in topic.partitions]
        is_alone = sum(bool(data.records) for _topic, data in parts) <= 1
        for topic, data in parts:
            found = wanted.get(TopicPartition(topic, data.partition_index))
            if found is not None:
                self._take(found, data, copies=not is_alone)

    def _partition_fetch(self, wanted: _Wanted) -> PartitionFetch:
        topic, index = wanted.partition.place
        info = self._info(wanted.partition.place)
        leader_epoch = -1 if info is None else info.leader_epoch
        max_bytes = self._config.partition_max_bytes
        return PartitionFetch(topic, index, wanted.offset, max_bytes, leader_epoch)

    def _take(self, wanted: _Wanted, data: PartitionData, *, copies: bool) -> None:
        partition, offset, incarnation = wanted
        if not self._positions.has(partition) or partition.incarnation != incarnation:
            return  # it is read by somebody else, or elsewhere
        if data.error_code:
            self._heed(partition, offset, data.error_code)
            return
        partition.tries = 0
        if not data.records:
            return
        aborted = [(one.producer_id, one.first_offset) for one in data.aborted_transactions or ()]
        try:
            chunk = FetchedData(
                partition.place,
                offset,
                bytes(data.records) if copies else data.records,
                aborted if self._reading.is_committed else (),
                checks_crc=self._config.check_crcs,
            )
        except TruncatedError as error:
            self._fail(partition, error)
            return
        partition.served = next(self._turns)
        partition.add(chunk)
        self._delivery.offer(partition)

    def _heed(self, partition: AssignedPartition, offset: int, code: int) -> None:
        """Act on an error of one partition."""
        error = kafka_error(code, f"{partition.place} at offset {offset}")
        assert error is not None
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._delivery.settle()
            if partition.position != offset:
                self._try_later(partition)  # what was fetched before is read first
            elif self._reading.reset_to is None:
                self._fail(partition, error)
            else:
                logger.warning("%s: starting at an end of the log", error)
                self.reset(partition, str(error))
            return
        partition.is_astray = needs_metadata_refresh(error)
        self._retry_or_fail(partition, error)

    def _complain(self, partitions: Iterable[AssignedPartition], reason: str) -> None:
        """Log what goes wrong, but not over and over."""
        is_new = any(partition.tries == 0 for partition in partitions)
        logger.log(logging.WARNING if is_new else logging.DEBUG, "%s", reason)

    def _note(self, partition: AssignedPartition, reason: str) -> None:
        """Log what is wrong with one partition: aloud when it lasts, and then once."""
        logger.log(logging.WARNING if partition.tries == _LASTING else logging.DEBUG, "%s", reason)

    def _retry_or_fail(self, partition: AssignedPartition, error: KafkaError | ClientError) -> None:
        if error.retriable:
            self._note(partition, str(error))
            self._try_later(partition)
        else:
            self._fail(partition, error)

    def _try_later(self, partition: AssignedPartition) -> None:
        pause = self._cluster.config.retry.delay(partition.tries, random.random())  # noqa: S311
        partition.tries += 1
        partition.retry_at = asyncio.get_running_loop().time() + pause

    def _fail(self, partition: AssignedPartition, error: Exception | None) -> None:
        """Let the application know; it is tried again when it has been told."""
        self._try_later(partition)
        partition.error = error
        self._delivery.offer(partition)
