"""Fetching and acknowledging: the background task of a share consumer.

One loop plans whenever something has changed: metadata for unknown leaders, and at most one request
per leader, because those of a share session are numbered. A request is a ShareFetch, a long poll,
with the acknowledgements that are pending; or a ShareAcknowledge, if enough records are buffered.

What is acquired from a leader is lost when its session is: when the connection breaks, or another
broker becomes the leader. It is delivered again, to some consumer of the group.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any
from uuid import UUID

from ottla.protocol.api.share_acknowledge import (
    AcknowledgementBatch,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
)
from ottla.protocol.api.share_fetch import PartitionData, ShareFetchResponse
from ottla.protocol.errors import ErrorCode
from ottla.protocol.primitives import NIL_UUID
from ottla.protocol.registry import SHARE_ACKNOWLEDGE

from ..cluster import Cluster, needs_metadata_refresh
from ..consumer.planner import NEVER, Planner, TaskKey
from ..errors import ClientError, ClosedError, KafkaError
from ..offsets import kafka_error
from ..types import AcknowledgeType, TopicPartition
from .config import ShareConfig
from .partition import SharePartition, acknowledgement_batches
from .session import Acknowledgements, ShareSession

logger = logging.getLogger(__name__)

#: Called with what was acknowledged, and the error if it was not.
AcknowledgedCallback = Callable[[TopicPartition, list[int], Exception | None], None]

# The first version of ShareAcknowledge with renewals.
_FIRST_WITH_RENEWALS = 2
# A lock that ends within this time may have ended when an acknowledgement arrives.
_LOCK_MARGIN_SECONDS = 1.0
# An application that asks for records at least this often has some acquired in advance.
_AHEAD_SECONDS = 0.5
# Errors of a partition after which its leader is looked up.
_STALE_LEADER = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)
_LEADERS = "leaders"
_MOVED = "Another broker leads the partition: its records are delivered again"
_LOCK_HAS_ENDED = "The acquisition lock has ended: the record is delivered again"


class _Leader:
    """A broker that records are acquired from."""

    def __init__(self, node_id: int, session: ShareSession) -> None:
        self.node_id = node_id
        self.session = session
        self.lock_seconds = 0.0
        self.can_renew = True
        self.failures = 0
        self.retry_at = 0.0
        #: When pending acknowledgements are sent even if nothing is fetched; None: there are none.
        self.acknowledge_at: float | None = None


class ShareFetcher(Planner):
    """Fetches and acknowledges until it is closed."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        config: ShareConfig,
        on_arrival: Callable[[SharePartition], None],
        on_acknowledged: AcknowledgedCallback,
        *,
        isolates: bool,
    ) -> None:
        """Create one. With `isolates`, records that were delivered before are acquired one by one.

        So a record that kills its consumer does not raise the delivery counts of others.
        """
        super().__init__()
        self.member_id = ""
        #: Whether the application waits for records.
        self.is_asked = False
        self._isolates = isolates
        self._max_records = 1 if isolates else config.max_records
        #: When the application asked for records last.
        self.asked_at = 0.0
        self._cluster = cluster
        self._group = group
        self._config = config
        self._on_arrival = on_arrival
        self._on_acknowledged = on_acknowledged
        self._partitions: dict[TopicPartition, SharePartition] = {}
        self._leaders: dict[int, _Leader] = {}
        # Flushes that wait: what they wait for.
        self._flushes: list[_Flush] = []
        self._is_closing = False

    @property
    def assigned(self) -> frozenset[TopicPartition]:
        """The partitions that are fetched."""
        return frozenset(tp for tp, one in self._partitions.items() if one.is_assigned)

    @property
    def lock_seconds(self) -> float | None:
        """How long records are acquired for; None if that is not known yet."""
        return max((one.lock_seconds for one in self._leaders.values()), default=0.0) or None

    def partition(self, topic: str, index: int) -> SharePartition | None:
        """Return a partition of which records may be acquired."""
        return self._partitions.get(TopicPartition(topic, index))

    @property
    def partitions(self) -> Collection[SharePartition]:
        """All partitions of which records may be acquired."""
        return self._partitions.values()

    def assign(self, tps: frozenset[TopicPartition]) -> None:
        """Fetch these partitions and no others. What is buffered of others is released."""
        for tp in tps:
            known = self._partitions.get(tp)
            if known is None:
                topic = self._cluster.metadata.topics.get(tp.topic)
                known = SharePartition(tp, NIL_UUID if topic is None else topic.id)
                self._partitions[tp] = known
            known.is_assigned = True
        for tp, partition in list(self._partitions.items()):
            if tp not in tps:
                partition.is_assigned = False
                partition.release_buffer()
        self.wake()

    def ask(self) -> None:
        """Note that the application waits for records."""
        self.is_asked = True
        self.wake()

    async def flush(self, timeout: float) -> dict[TopicPartition, Exception]:
        """Send what is pending, and return the errors once it is answered. Raises TimeoutError."""
        flush = _Flush(self._partitions.values())
        if not flush.waiting:
            return {}
        self._flushes.append(flush)
        self.wake()
        try:
            async with asyncio.timeout(timeout):
                await flush.done.wait()
        finally:
            self._flushes.remove(flush)
        return flush.errors

    def stop(self) -> None:
        """Fetch no more: the consumer is being closed."""
        self._is_closing = True
        self.wake()

    async def close(self) -> None:
        """Send what is pending, release everything else, and close the sessions."""
        while self._running - {_LEADERS}:
            self._changed.clear()
            await self._changed.wait()
        leaders = [one for one in self._leaders.values() if one.session.is_open]
        async with asyncio.TaskGroup() as tasks:
            for leader in leaders:
                tasks.create_task(self._acknowledge(leader, closes=True))

    # Planning.

    def _plan(self) -> Iterable[tuple[TaskKey, Coroutine[Any, Any, None]]]:
        """Yield what is to be done now, and set a timer for what is to be done later."""
        if self._is_closing:
            return
        now = asyncio.get_running_loop().time()
        later = NEVER
        leaderless: set[str] = set()
        by_leader: dict[int, list[SharePartition]] = {}
        for tp, partition in list(self._partitions.items()):
            if not partition.is_assigned and partition.is_idle:
                del self._partitions[tp]
                continue
            leader_id = self._leader_id(tp)
            if partition.has_stale_leader or leader_id is None:
                if partition.retry_at > now:
                    later = min(later, partition.retry_at)
                elif partition.is_assigned:
                    leaderless.add(tp.topic)
            elif partition.leader not in (-1, leader_id):
                self._lose([partition], KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, _MOVED))
                partition.leader = leader_id
            else:
                partition.leader = leader_id
            if partition.leader >= 0:
                by_leader.setdefault(partition.leader, []).append(partition)
        if leaderless and _LEADERS not in self._running:
            yield _LEADERS, self._find_leaders(leaderless)
        limit = max(1, self._max_records // max(1, len(by_leader)))
        for node_id, partitions in by_leader.items():
            leader = self._leaders.get(node_id)
            if leader is None:
                session = ShareSession(self._group, self.member_id)
                leader = self._leaders[node_id] = _Leader(node_id, session)
            if node_id in self._running:
                continue
            if leader.retry_at > now:
                later = min(later, leader.retry_at)
                continue
            work, due = self._work_for(leader, partitions, limit, now)
            later = min(later, due)
            if work is not None:
                yield node_id, work
        self._wake_at(later)

    def _work_for(
        self, leader: _Leader, partitions: list[SharePartition], limit: int, now: float
    ) -> tuple[Coroutine[Any, Any, None] | None, float]:
        """Return what to do for a leader, and when there may be something else to do."""
        later = min((one.retry_at for one in partitions if one.retry_at > now), default=NEVER)
        fetchable = [
            one
            for one in partitions
            if one.is_assigned
            and one.retry_at <= now
            and one.error is None
            and not one.has_stale_leader
        ]
        is_open = leader.session.is_open
        # Acknowledgements of partitions that are not fetched need a request of their own.
        pending = [one for one in partitions if one.pending]
        if is_open and any(one not in fetchable for one in pending):
            return self._acknowledge(leader), later
        buffered = sum(one.buffered for one in partitions)
        if is_open and leader.can_renew:
            renew_before = now + leader.lock_seconds / 2
            # What an application that hangs does not ask for is left to others.
            is_alive = now - self.asked_at < self._config.max_poll_interval
            renewed = {
                one: one.locks_to_renew(renew_before if is_alive else now, now)
                for one in partitions
            }
            renewed = {one: offsets for one, offsets in renewed.items() if offsets}
            if renewed:
                return self._renew(leader, renewed), later
            if buffered:
                later = min(later, now + leader.lock_seconds / 4)
        # In advance only for an application that asks often: what it does not get to is for others.
        is_ahead = self._max_records > 1 and now - self.asked_at < _AHEAD_SECONDS
        if fetchable and buffered <= limit // 2 and (self.is_asked or is_ahead):
            return self._fetch(leader, fetchable, limit), later
        if not is_open or not pending:
            leader.acknowledge_at = None
            return None, later
        if leader.acknowledge_at is None:
            leader.acknowledge_at = now + self._config.acknowledge_interval
        if self._flushes or leader.acknowledge_at <= now:
            return self._acknowledge(leader), later
        return None, min(later, leader.acknowledge_at)

    def _leader_id(self, tp: TopicPartition) -> int | None:
        topic = self._cluster.metadata.topics.get(tp.topic)
        if topic is None or not 0 <= tp.partition < len(topic.partitions):
            return None
        leader = topic.partitions[tp.partition].leader
        return leader if leader >= 0 else None

    async def _find_leaders(self, topics: set[str]) -> None:
        affected = [one for one in self._partitions.values() if one.tp.topic in topics]
        try:
            metadata = await self._cluster.refresh(
                sorted(topics), may_create=False, after_error=True
            )
        except ClosedError:
            return
        except (KafkaError, ClientError) as error:
            logger.info("cannot fetch metadata of %s: %s", ", ".join(sorted(topics)), error)
            for partition in affected:
                self._retry_later(partition)
            return
        for partition in affected:
            partition.has_stale_leader = False
            info = metadata.topics.get(partition.tp.topic)
            if info is not None and info.id not in (NIL_UUID, partition.topic_id):
                # The topic was created anew.
                self._lose([partition], KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, _MOVED))
                partition.topic_id = info.id
            if self._leader_id(partition.tp) is None:
                self._retry_later(partition)

    # Requests.

    async def _fetch(self, leader: _Leader, partitions: list[SharePartition], limit: int) -> None:
        """Send one ShareFetch with what is pending, and buffer what it returns."""
        if self._is_closing:
            return
        sent = self._take_pending(leader) if leader.session.is_open else {}
        request = leader.session.fetch_request(partitions, sent, self._config, limit)
        timeout = self._config.max_wait + self._cluster.config.timeouts.request
        try:
            response = await self._cluster.send(
                leader.node_id, request, ShareFetchResponse, channel="share", timeout=timeout
            )
            self._raise(response.error_code, response.error_message)
        except (KafkaError, ClientError) as failure:
            self._handle_failure(leader, failure)
            return
        leader.failures = 0
        leader.lock_seconds = response.acquisition_lock_timeout_ms / 1000
        by_id = {one.id: one for one in self._partitions.values()}
        answered: set[SharePartition] = set()
        for topic in response.responses:
            for data in topic.partitions:
                partition = by_id.get((topic.topic_id, data.partition_index))
                if partition is None:
                    continue
                if partition in sent:
                    answered.add(partition)
                    code, message = data.acknowledge_error_code, data.acknowledge_error_message
                    self._finish(partition, code, message)
                self._add(leader, partition, data)
        for partition in sent.keys() - answered:
            self._finish(partition, 0, None)
        if self._isolates:
            self._limit(response)

    def _limit(self, response: ShareFetchResponse) -> None:
        """Acquire more at once while there are first deliveries only."""
        counts = {
            acquired.delivery_count
            for topic in response.responses
            for data in topic.partitions
            for acquired in data.acquired_records
        }
        if any(count > 1 for count in counts):
            self._max_records = 1
        elif counts:
            self._max_records = min(2 * self._max_records, self._config.max_records)

    def _add(self, leader: _Leader, partition: SharePartition, data: PartitionData) -> None:
        if data.error_code:
            self._handle_error(partition, data.error_code, data.error_message)
            return
        partition.failures = 0
        if not data.acquired_records or partition.leader != leader.node_id or self._is_closing:
            return
        if lost := partition.drop_lost(data.acquired_records):
            self._report(
                partition, lost, KafkaError(ErrorCode.INVALID_RECORD_STATE, _LOCK_HAS_ENDED)
            )
        now = asyncio.get_running_loop().time()
        error: Exception | None
        try:
            error = partition.add(
                bytes(data.records),
                data.acquired_records,
                now,
                leader.lock_seconds,
                checks_crc=self._config.check_crcs,
            )
        except ClientError as truncated:
            error = truncated
        if error is not None:
            partition.error = error
        if not partition.is_assigned:
            partition.release_buffer()
        self._on_arrival(partition)

    async def _acknowledge(self, leader: _Leader, *, closes: bool = False) -> None:
        """Send one ShareAcknowledge with what is pending."""
        sent = self._take_pending(leader)
        if sent or closes:
            leader.acknowledge_at = None
            request = leader.session.acknowledge_request(sent, closes=closes)
            await self._send_acknowledgements(leader, request, sent)

    async def _send_acknowledgements(
        self,
        leader: _Leader,
        request: ShareAcknowledgeRequest,
        sent: Acknowledgements,
    ) -> None:
        try:
            codes = await self._answers(leader, request)
        except (KafkaError, ClientError) as failure:
            self._handle_failure(leader, failure)
            return
        for partition in sent:
            self._finish(partition, *codes.get(partition.id, (0, None)))

    async def _renew(self, leader: _Leader, renewed: dict[SharePartition, list[int]]) -> None:
        """Renew locks: of records that wait to be delivered, or that the application asked for."""
        for partition in renewed:
            partition.renewals.clear()
        try:
            connection = await self._cluster.connect(leader.node_id, "share")
            if connection.version_for(SHARE_ACKNOWLEDGE) < _FIRST_WITH_RENEWALS:
                leader.can_renew = False
                logger.warning("%s cannot renew acquisition locks", connection.address)
                return
            batches = {
                one: acknowledgement_batches(dict.fromkeys(offsets, AcknowledgeType.RENEW))
                for one, offsets in renewed.items()
            }
            request = leader.session.acknowledge_request(batches, renews=True)
            codes = await self._answers(leader, request)
        except (KafkaError, ClientError) as failure:
            self._handle_failure(leader, failure)
            return
        lock_end = asyncio.get_running_loop().time() + leader.lock_seconds
        for partition, offsets in renewed.items():
            code, message = codes.get(partition.id, (0, None))
            if code == ErrorCode.NONE:
                partition.renew(offsets, lock_end)
            elif code == ErrorCode.INVALID_REQUEST:
                leader.can_renew = False
                logger.warning(
                    "Group %s does not renew acquisition locks: %s", self._group, message
                )
            else:
                # Some have ended: each ends at the time that is known.
                logger.info("cannot renew locks of %s: %s", partition.tp, ErrorCode.of(code).name)

    async def _answers(
        self, leader: _Leader, request: ShareAcknowledgeRequest
    ) -> dict[tuple[UUID, int], tuple[int, str | None]]:
        """Send a ShareAcknowledge, and return error code and message of each partition."""
        response = await self._cluster.send(
            leader.node_id, request, ShareAcknowledgeResponse, channel="share"
        )
        self._raise(response.error_code, response.error_message)
        leader.failures = 0
        return {
            (topic.topic_id, data.partition_index): (data.error_code, data.error_message)
            for topic in response.responses
            for data in topic.partitions
        }

    # Results.

    def _take_pending(self, leader: _Leader) -> dict[SharePartition, list[AcknowledgementBatch]]:
        now = asyncio.get_running_loop().time()
        leader.acknowledge_at = None
        sent = {}
        for partition in self._partitions.values():
            if partition.leader != leader.node_id or not partition.pending:
                continue
            batches, late = partition.take_pending(now)
            if late:
                self._report(
                    partition, late, KafkaError(ErrorCode.INVALID_RECORD_STATE, _LOCK_HAS_ENDED)
                )
            if batches:
                sent[partition] = batches
        return sent

    def _finish(self, partition: SharePartition, code: int, message: str | None) -> None:
        """Act on the result of the acknowledgements that were in flight."""
        error = kafka_error(code, message or f"acknowledging records of {partition.tp}")
        if code == ErrorCode.INVALID_RECORD_STATE:
            now = asyncio.get_running_loop().time()
            offsets = partition.send_again(now, _LOCK_MARGIN_SECONDS)
        else:
            offsets = partition.finish()
        if code in _STALE_LEADER:
            partition.has_stale_leader = True
        self._report(partition, offsets, error)

    def _report(
        self, partition: SharePartition, offsets: list[int], error: Exception | None
    ) -> None:
        if not offsets:
            return
        for flush in self._flushes:
            flush.finish(partition, offsets, error)
        self._on_acknowledged(partition.tp, offsets, error)

    def _lose(self, partitions: Iterable[SharePartition], error: Exception) -> None:
        for partition in partitions:
            self._report(partition, partition.lose(), error)

    def _raise(self, code: int, message: str | None) -> None:
        error = kafka_error(code, message or f"share group {self._group!r}")
        if error is not None:
            raise error

    def _handle_failure(self, leader: _Leader, failure: KafkaError | ClientError) -> None:
        """Begin a new session after a request that failed: what was acquired is lost."""
        partitions = [one for one in self._partitions.values() if one.leader == leader.node_id]
        leader.session.reset()
        leader.acknowledge_at = None
        self._lose(partitions, failure)
        if isinstance(failure, ClosedError):
            return
        level = logging.DEBUG if leader.failures else logging.WARNING  # warn once
        logger.log(level, "share session with broker %d: %s", leader.node_id, failure)
        leader.retry_at = self._retry_time(leader.failures)
        leader.failures += 1
        for partition in partitions:
            if needs_metadata_refresh(failure):
                partition.has_stale_leader = True
            if not failure.retriable:
                partition.error = failure
                self._on_arrival(partition)

    def _handle_error(self, partition: SharePartition, code: int, message: str | None) -> None:
        error = kafka_error(code, message or str(partition.tp))
        assert error is not None
        self._retry_later(partition)
        if code in _STALE_LEADER:
            partition.has_stale_leader = True
        elif not error.retriable:
            partition.error = error
            self._on_arrival(partition)

    def _retry_later(self, partition: SharePartition) -> None:
        partition.retry_at = self._retry_time(partition.failures)
        partition.failures += 1

    def _retry_time(self, failures: int) -> float:
        delay = self._cluster.config.retry.delay(failures, random.random())  # noqa: S311
        return asyncio.get_running_loop().time() + delay


class _Flush:
    """What a flush waits for."""

    def __init__(self, partitions: Iterable[SharePartition]) -> None:
        self.waiting = {
            one: {*one.pending, *one.in_flight}
            for one in partitions
            if one.pending or one.in_flight
        }
        self.errors: dict[TopicPartition, Exception] = {}
        self.done = asyncio.Event()

    def finish(
        self, partition: SharePartition, offsets: list[int], error: Exception | None
    ) -> None:
        waiting = self.waiting.get(partition)
        if waiting is None:
            return
        if error is not None and not waiting.isdisjoint(offsets):
            self.errors.setdefault(partition.tp, error)
        waiting.difference_update(offsets)
        if not waiting:
            del self.waiting[partition]
            if not self.waiting:
                self.done.set()
