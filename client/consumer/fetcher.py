"""Prefetching: the background task of a consumer that fills the fetch buffers of its partitions.

One loop plans whenever something has changed: position lookups, metadata for unknown leaders, and
at most one Fetch per broker, a long poll for all fetchable partitions that it leads. A failure
affects only the partitions it happens to: the others are read on while a broker is down or hangs.

A broker is fetched from again when half of its share of the buffer has been read, and then for all
of its partitions. (Fetching only for those with empty buffers would start a long poll for idle
partitions, and the busy ones would have to wait for its end.) `prefetch_bytes` is shared out among
the brokers, so that an application that reads slowly holds `prefetch_bytes` and one batch per
broker, no more. Paused partitions keep their buffers, up to half as much again in all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Iterable
from itertools import count
from typing import Any, NamedTuple

from ottla.protocol.api.fetch import LAST_VERSION_WITH_TOPIC_NAMES, FetchResponse, PartitionData
from ottla.protocol.errors import ErrorCode

from ..cluster import Cluster, PartitionInfo, needs_metadata_refresh
from ..errors import ClientError, ClosedError, KafkaError
from ..fetch_request import PartitionFetch, fetch_request
from ..offsets import kafka_error
from ..types import TopicPartition
from .config import FetchConfig, ReadConfig
from .delivery import Delivery
from .fetched_data import FetchedData, TruncatedError
from .partition_retries import PartitionRetries
from .planner import NEVER, Planner, TaskKey
from .position_lookup import PositionLookup
from .position_validation import PositionValidation
from .positions import AssignedPartition, Positions

logger = logging.getLogger(__name__)


class _FetchedPartition(NamedTuple):
    """A partition of a Fetch request, as it was when the request was sent."""

    partition: AssignedPartition
    offset: int
    fetch_epoch: int
    leader_epoch: int


class Fetcher(Planner):
    """Fills fetch buffers until it is cancelled."""

    def __init__(
        self,
        cluster: Cluster,
        positions: Positions,
        delivery: Delivery,
        config: FetchConfig,
        read_config: ReadConfig,
    ) -> None:
        super().__init__()
        self._cluster = cluster
        self._positions = positions
        self._delivery = delivery
        self._config = config
        self._read_config = read_config
        self._retries = PartitionRetries(cluster, delivery)
        self._lookup = PositionLookup(cluster, delivery, read_config, self._retries, self.wake)
        self._validation = PositionValidation(
            cluster, delivery, read_config, self._retries, self._lookup
        )
        self._serial = count(1)

    async def find_positions(self, partitions: Collection[AssignedPartition]) -> None:
        """Look up the positions of partitions once; retriable errors are retried later."""
        await self._lookup.find_positions(partitions)

    def reset(self, partition: AssignedPartition, reason: str) -> None:
        """Apply auto_offset_reset to a partition without a valid position."""
        self._lookup.reset(partition, reason)

    def _plan(self) -> Iterable[tuple[TaskKey, Coroutine[Any, Any, None]]]:
        """Yield what is to be done now, and set a timer for the next retry."""
        now = asyncio.get_running_loop().time()
        leaderless: set[str] = set()
        unpositioned: list[AssignedPartition] = []
        by_leader: dict[int, list[AssignedPartition]] = {}
        unvalidated: dict[int, dict[AssignedPartition, int]] = {}
        next_retry = NEVER
        for partition in self._positions:
            if partition.retry_at > now:
                next_retry = min(next_retry, partition.retry_at)
            elif self._lookup.needs(partition):
                unpositioned.append(partition)
            elif partition.is_fetchable:
                info = self._partition_info(partition.tp)
                if info is None or info.leader < 0 or partition.has_stale_leader:
                    leaderless.add(partition.tp.topic)
                elif not self._validation.needs(partition, info.leader_epoch):
                    by_leader.setdefault(info.leader, []).append(partition)
                elif not self._validation.is_in_progress(partition):
                    unvalidated.setdefault(info.leader, {})[partition] = info.leader_epoch
        self._wake_at(next_retry)
        self._limit_paused()
        if unpositioned:
            self._lookup.begin(unpositioned)
            yield f"positions {next(self._serial)}", self._lookup.run(unpositioned)
        for leader, epochs in unvalidated.items():
            self._validation.begin(epochs)
            yield f"validation {next(self._serial)}", self._validation.run(leader, epochs)
        if leaderless and "leaders" not in self._running:
            yield "leaders", self._find_leaders(leaderless)
        share = self._config.prefetch_bytes // (2 * max(1, len(by_leader)))
        for leader, partitions in by_leader.items():
            buffered = sum(partition.buffer.size_bytes for partition in partitions)
            if leader not in self._running and buffered <= share:
                yield leader, self._fetch(leader, partitions, max(1, share))

    def _leader(self, tp: TopicPartition) -> int | None:
        info = self._partition_info(tp)
        return None if info is None or info.leader < 0 else info.leader

    def _leader_epoch(self, tp: TopicPartition) -> int:
        info = self._partition_info(tp)
        return -1 if info is None else info.leader_epoch

    def _partition_info(self, tp: TopicPartition) -> PartitionInfo | None:
        topic = self._cluster.metadata.topics.get(tp.topic)
        if topic is None or not 0 <= tp.partition < len(topic.partitions):
            return None
        return topic.partitions[tp.partition]

    def _limit_paused(self) -> None:
        """Discard the buffers of paused partitions if they hold too much."""
        paused = [one for one in self._positions if one.is_paused and one.buffer.size_bytes]
        if sum(one.buffer.size_bytes for one in paused) > self._config.prefetch_bytes // 2:
            for partition in paused:
                partition.discard()

    async def _find_leaders(self, topics: set[str]) -> None:
        try:
            metadata = await self._cluster.refresh(sorted(topics), after_error=True)
        except ClosedError:
            return
        except (KafkaError, ClientError) as error:
            affected = [one for one in self._positions if one.tp.topic in topics]
            names = ", ".join(sorted(topics))
            self._retries.log_first(affected, f"cannot fetch metadata of {names}: {error}")
            for partition in affected:
                self._retries.retry_later(partition)
            return
        for partition in self._positions:
            if partition.tp.topic not in topics:
                continue
            partition.has_stale_leader = False
            info = metadata.topics.get(partition.tp.topic)
            if self._leader(partition.tp) is not None:
                continue
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if info is None else info.error
            if code and not code.retriable:
                self._retries.fail(partition, kafka_error(code, partition.tp.topic))
            else:
                self._retries.log_if_persistent(partition, f"{partition.tp} has no leader")
                self._retries.retry_later(partition)

    async def _fetch(self, node: int, partitions: list[AssignedPartition], share: int) -> None:
        """Send one Fetch, and buffer what it returns."""
        config = self._config
        # Partitions may have been paused, revoked or sought since this was planned.
        partitions = [
            one for one in partitions if one.is_fetchable and self._positions.is_current(one)
        ]
        partitions.sort(key=lambda partition: partition.last_served)
        if not partitions:
            return
        requested = {
            one.tp: _FetchedPartition(
                one, one.fetch_offset, one.fetch_epoch, self._leader_epoch(one.tp)
            )
            for one in partitions
        }
        request = fetch_request(
            map(self._partition_fetch, requested.values()),
            max_wait_ms=int(config.max_wait * 1000),
            min_bytes=config.min_bytes,
            max_bytes=min(config.max_bytes, share),
            read_committed=self._read_config.read_committed,
        )
        timeout = config.max_wait + self._cluster.config.timeouts.request
        try:
            response = await self._cluster.send(
                node,
                request,
                FetchResponse,
                channel="fetch",
                timeout=timeout,
                max_version=LAST_VERSION_WITH_TOPIC_NAMES,
            )
            if (error := kafka_error(response.error_code, f"broker {node}")) is not None:
                raise error
        except ClosedError:
            return
        except (KafkaError, ClientError) as failure:
            self._retries.log_first(partitions, f"cannot fetch from broker {node}: {failure}")
            for partition in partitions:
                partition.has_stale_leader = needs_metadata_refresh(failure)
                self._retries.handle(partition, failure)
            return
        # The records of a response share one buffer, which lives as long as any of them.
        parts = [(topic.topic, data) for topic in response.responses for data in topic.partitions]
        is_only_one = sum(bool(data.records) for _topic, data in parts) <= 1
        for topic, data in parts:
            fetched = requested.get(TopicPartition(topic, data.partition_index))
            if fetched is not None:
                self._buffer_data(fetched, data, copy=not is_only_one)

    def _partition_fetch(self, requested: _FetchedPartition) -> PartitionFetch:
        return PartitionFetch(
            *requested.partition.tp,
            requested.offset,
            self._config.partition_max_bytes,
            requested.leader_epoch,
        )

    def _buffer_data(self, fetched: _FetchedPartition, data: PartitionData, *, copy: bool) -> None:
        partition, offset, fetch_epoch, leader_epoch = fetched
        if not self._positions.is_current(partition) or partition.fetch_epoch != fetch_epoch:
            return  # revoked or sought meanwhile
        if partition.fetch_offset != offset:
            return  # fetched from another leader meanwhile: this one was slow
        if data.error_code:
            self._handle_error(partition, offset, data.error_code)
            return
        partition.failures = 0
        if not data.records:
            return
        aborted = [(one.producer_id, one.first_offset) for one in data.aborted_transactions or ()]
        try:
            fetched_data = FetchedData(
                partition.tp,
                offset,
                bytes(data.records) if copy else data.records,
                aborted if self._read_config.read_committed else (),
                checks_crc=self._config.check_crcs,
            )
        except TruncatedError as error:
            self._retries.fail(partition, error)
            return
        partition.last_served = next(self._serial)
        partition.add(fetched_data, leader_epoch)
        self._delivery.enqueue(partition)

    def _handle_error(self, partition: AssignedPartition, offset: int, code: int) -> None:
        """Act on the error code of one partition."""
        error = kafka_error(code, f"{partition.tp} at offset {offset}")
        assert error is not None
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._delivery.update_position()
            if partition.position != offset:
                self._retries.retry_later(partition)  # deliver what is buffered first
            elif self._read_config.reset_to is None:
                self._retries.fail(partition, error)
            else:
                logger.warning("%s: resetting the position", error)
                self.reset(partition, str(error))
            return
        partition.has_stale_leader = needs_metadata_refresh(error)
        self._retries.handle(partition, error)
