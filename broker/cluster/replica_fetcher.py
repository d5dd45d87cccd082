"""Replica fetchers: copy the partitions that this broker follows from their leaders.

There is one fetcher per leader, with one connection, one fetch session and one request at a time.
A fetch acknowledges everything before its offset, so a response counts only if the partition still
follows in the leader epoch of the request, and its log still ends where the request says.

A request names only partitions that differ from the session, and only those are looked at that were
in a response, or whose state has changed since: the cost of a fetch does not grow with the number
of partitions that are followed.

A follower whose last records are not in its leader's log learns so from the response (the diverging
epoch), truncates its log and fetches again, as often as it takes. It never truncates below its high
watermark, unless an unclean election says that committed records are lost: a correct leader never
asks for it, and what is asked for by an incorrect one stays on this disk.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from ottla.client.config import RetryConfig
from ottla.client.connection import BrokerConnection
from ottla.client.errors import ClientError
from ottla.protocol.api.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from ottla.protocol.errors import BatchError, ErrorCode, KafkaError
from ottla.storage.errors import StorageError
from ottla.storage.gaps import truncate_at_first_gap

from ..observability.outage import Outage
from ..partitions.partition import Partition, Role
from ..requests.errors import ApiError
from ..requests.slices import SLICE_ELEMENTS, in_slices
from .forwarding import client_config

if TYPE_CHECKING:
    from .replica_manager import ReplicaManager

logger = logging.getLogger(__name__)

#: The first version with the epoch of the follower.
_FETCH_VERSION = 17
_RETRY = RetryConfig(backoff=0.05, max_backoff=1.0)
#: Pause of a partition whose leader answered with an error: one of the two has old metadata.
_PARTITION_BACKOFF_SECONDS = 0.05
#: Pause of a partition that could not be appended to: the disk may have space later.
_FAILURE_BACKOFF_SECONDS = 1.0
#: How often a truncation looks whether a compaction has let go of the log.
_COMMIT_CHECK_SECONDS = 0.01
#: After this much, other tasks get their turn.
_BYTES_PER_YIELD = 1024 * 1024
#: How often all partitions are looked at, for logs that failed or whose start has changed.
_CHECK_SECONDS = 2.0
_SESSION_ERRORS = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)
_NO_SESSION = 0
_NEW_SESSION_EPOCH = 0

#: A partition by topic id and index.
PartitionKey = tuple[UUID, int]


class _Fetch(NamedTuple):
    """What is asked for a partition; also what the fetch session of the leader has."""

    leader_epoch: int
    offset: int
    last_epoch: int
    start_offset: int


class _Followed:
    """A partition that is fetched."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.retry_at = 0.0
        #: Whether the last response could not be appended.
        self.has_failed = False
        #: Whether it is not fetched any more.
        self.is_failed = False
        #: Whether the leader has committed records that this follower does not have, as far as it
        #: knows.
        self.is_behind = True
        #: Whether damage may have left gaps in the log.
        self.may_have_gaps = True

    def next_fetch(self) -> _Fetch:
        log, state = self.partition.log, self.partition.state
        assert state is not None
        return _Fetch(
            state.leader_epoch, log.end_offset, log.leader_epochs.current, log.start_offset
        )


class ReplicaFetcher:
    """Fetches all partitions that one broker leads, and this one follows."""

    def __init__(self, manager: ReplicaManager, leader_id: int) -> None:
        self._manager = manager
        self._leader_id = leader_id
        self._partitions: dict[PartitionKey, _Followed] = {}
        self._changed = asyncio.Event()
        self._client_config = client_config(manager.config)
        self._session_id = _NO_SESSION
        self._session_epoch = _NEW_SESSION_EPOCH
        # What the session has.
        self._sent: dict[PartitionKey, _Fetch] = {}
        # Partitions that may differ from the session, and those that will be tried again.
        self._changed_keys: dict[PartitionKey, None] = {}
        self._paused: set[PartitionKey] = set()
        # Partitions whose log may have gaps that are not to be truncated while it is in the ISR.
        self._unchecked: set[PartitionKey] = set()
        self._check_at = 0.0
        self._connection: BrokerConnection | None = None
        self._task = asyncio.get_running_loop().create_task(self._run())

    def __len__(self) -> int:
        return len(self._partitions)

    def has(self, key: PartitionKey, partition: Partition) -> bool:
        """Whether a partition is fetched."""
        followed = self._partitions.get(key)
        return followed is not None and followed.partition is partition

    def add(self, key: PartitionKey, partition: Partition) -> None:
        """Fetch a partition from now on."""
        followed = self._partitions.get(key)
        if followed is None or followed.partition is not partition:
            self._partitions[key] = _Followed(partition)
        else:
            followed.retry_at, followed.is_failed = 0.0, False
        self._unchecked.add(key)
        self._changed_keys[key] = None
        self._changed.set()

    def remove(self, key: PartitionKey) -> None:
        """Fetch a partition no longer; a response under way does not count."""
        if self._partitions.pop(key, None) is not None:
            self._unchecked.discard(key)
            self._changed_keys[key] = None
            self._changed.set()

    async def stop(self) -> None:
        """Stop; a truncation under way completes first."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        outage = Outage(logger, "leader is unreachable")
        while True:
            while not self._partitions:
                self._changed.clear()
                await self._changed.wait()
            try:
                await self._fetch()
                outage.ended()
            except (ClientError, KafkaError, ApiError, OSError) as error:
                self._disconnect()
                outage.failed(leader=self._leader_id, reason=str(error))
                await asyncio.sleep(_RETRY.delay(outage.failures - 1, random.random()))  # noqa: S311
            except asyncio.CancelledError:
                self._disconnect()
                raise
            except Exception:
                self._disconnect()
                logger.exception("replica fetcher failed", extra={"leader": self._leader_id})
                await asyncio.sleep(1.0)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._reset_session()

    def _reset_session(self) -> None:
        self._session_id, self._session_epoch = _NO_SESSION, _NEW_SESSION_EPOCH
        self._sent = {}
        self._changed_keys = dict.fromkeys(self._partitions)

    async def _fetch(self) -> None:
        """Send one request, and handle its response."""
        if self._connection is None or not self._connection.is_open:
            self._disconnect()
            endpoint = self._manager.endpoint_of(self._leader_id)
            self._connection = await BrokerConnection.open(
                endpoint.host, endpoint.port, self._client_config
            )
        await self._truncate_damaged()
        await self._check_all()
        changes = self._changes()
        if not any(changes.values()) and self._sent.keys() <= changes.keys():
            self._changed.clear()
            await self._pause(self._seconds_until_retry())
            return
        self._changed_keys = {}
        request = self._request(changes)
        sent = self._sent
        config = self._manager.config
        started = time.perf_counter()
        response = await self._connection.send(
            request,
            FetchResponse,
            version=_FETCH_VERSION,
            timeout=(config.replica_socket_timeout_ms + config.replica_fetch_wait_max_ms) / 1000,
        )
        durations = self._manager.metrics.replica_fetch_seconds[self._leader_id]
        durations.observe(time.perf_counter() - started)
        if response.error_code:
            code = ErrorCode.of(response.error_code)
            self._reset_session()
            if code not in _SESSION_ERRORS:
                raise ApiError(code, f"Fetch failed: {code.message}")
            return
        self._session_id = response.session_id
        if self._session_id == _NO_SESSION:
            self._reset_session()
        else:
            self._session_epoch += 1
        await self._handle(response, sent)

    async def _truncate_damaged(self) -> None:
        """Truncate logs at their first gap: the leader has what recovery has set aside.

        Only of replicas that are not in the ISR or ELR: recovery has taken them out of both.
        """
        unchecked, self._unchecked = self._unchecked, set()
        for key in unchecked:
            followed = self._partitions.get(key)
            if followed is None or not followed.may_have_gaps:
                continue
            partition, state = followed.partition, followed.partition.state
            if partition.role is not Role.FOLLOWER or state is None:
                continue
            if self._manager.broker_id in (*state.isr, *state.elr):
                continue  # A state without it will come first.
            followed.may_have_gaps = False
            try:
                await self._truncate_at_gap(partition)
            except (OSError, StorageError) as error:
                followed.may_have_gaps = True
                self._manager.refresh_role(key)
                self._unchecked.add(key)
                self._retry_later(followed, error)
            else:
                self._manager.refresh_role(key)
            self._changed_keys[key] = None

    async def _truncate_at_gap(self, partition: Partition) -> None:
        found: list[int | None] = []
        await self._in_thread(partition, lambda: found.append(truncate_at_first_gap(partition.log)))
        if found and found[0] is not None:
            logger.warning(
                "truncated a damaged log: copying it again from there",
                extra={"partition": repr(partition), "offset": found[0]},
            )
            partition.restore_high_watermark(partition.high_watermark)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass

    def _seconds_until_retry(self) -> float:
        now = time.monotonic()
        paused = (self._partitions[key].retry_at - now for key in self._paused)
        return max(min(paused, default=_CHECK_SECONDS), 0.001)

    async def _check_all(self) -> None:
        """Find partitions that differ from the session for reasons that nobody tells."""
        now = time.monotonic()
        if now < self._check_at:
            return
        self._check_at = now + _CHECK_SECONDS
        async for keys in in_slices(list(self._partitions)):
            for key in keys:
                if self._wanted(key, now) != self._sent.get(key):
                    self._changed_keys[key] = None

    def _wanted(self, key: PartitionKey, now: float) -> _Fetch | None:
        """Return what is to be fetched for a partition; None if it is not to be fetched now."""
        followed = self._partitions.get(key)
        if (
            followed is None
            or followed.retry_at > now
            or followed.is_failed
            or followed.partition.role is not Role.FOLLOWER
            # Fetches of a log that cannot be appended to would keep the replica in the ISR.
            or followed.partition.log.offline_reason is not None
            or self._manager.is_disk_full
        ):
            return None
        return followed.next_fetch()

    def _changes(self) -> dict[PartitionKey, _Fetch | None]:
        """Return what differs from the session: the next fetch, or None to forget the partition."""
        now = time.monotonic()
        keys, paused = {**self._changed_keys, **dict.fromkeys(self._paused)}, set()
        changes: dict[PartitionKey, _Fetch | None] = {}
        for key in keys:
            followed = self._partitions.get(key)
            if followed is not None:
                if followed.is_behind and followed.retry_at <= now:
                    seconds = self._manager.seconds_until_fetch(followed.partition)
                    followed.retry_at = max(followed.retry_at, now + seconds)
                if followed.retry_at > now:
                    paused.add(key)
            wanted = self._wanted(key, now)
            if wanted != self._sent.get(key):
                changes[key] = wanted
        self._paused = paused
        return changes

    def _request(self, changes: dict[PartitionKey, _Fetch | None]) -> FetchRequest:
        """Return the request for what differs from the session, which then has it."""
        config = self._manager.config
        topics: dict[UUID, list[FetchPartition]] = {}
        forgotten: dict[UUID, list[int]] = {}
        for (topic_id, index), fetch in changes.items():
            if fetch is None:
                del self._sent[topic_id, index]
                forgotten.setdefault(topic_id, []).append(index)
                continue
            self._sent[topic_id, index] = fetch
            topics.setdefault(topic_id, []).append(
                FetchPartition(
                    partition=index,
                    current_leader_epoch=fetch.leader_epoch,
                    fetch_offset=fetch.offset,
                    last_fetched_epoch=fetch.last_epoch,
                    log_start_offset=fetch.start_offset,
                    partition_max_bytes=config.replica_fetch_max_bytes,
                )
            )
        return FetchRequest(
            replica_state=ReplicaState(
                replica_id=self._manager.broker_id, replica_epoch=self._manager.broker_epoch
            ),
            max_wait_ms=config.replica_fetch_wait_max_ms,
            min_bytes=1,
            max_bytes=config.replica_fetch_response_max_bytes,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=[
                FetchTopic(topic_id=topic_id, partitions=partitions)
                for topic_id, partitions in topics.items()
            ],
            forgotten_topics_data=[
                ForgottenTopic(topic_id=topic_id, partitions=indexes)
                for topic_id, indexes in forgotten.items()
            ],
        )

    async def _handle(self, response: FetchResponse, sent: dict[PartitionKey, _Fetch]) -> None:
        handled_bytes = handled_partitions = 0
        to_flush: list[Partition] = []
        for topic in response.responses:
            for data in topic.partitions:
                key = (topic.topic_id, data.partition_index)
                followed, fetch = self._partitions.get(key), sent.get(key)
                self._changed_keys[key] = None
                handled_partitions += 1
                if handled_partitions % SLICE_ELEMENTS == 0:
                    await asyncio.sleep(0)
                # Only an answer to what this partition would ask for now.
                if followed is None or fetch is None or followed.next_fetch() != fetch:
                    continue
                if followed.partition.role is not Role.FOLLOWER:
                    continue
                try:
                    await self._handle_partition(key, followed, data)
                except (OSError, StorageError, BatchError) as error:
                    self._manager.refresh_role(key)
                    self._retry_later(followed, error)
                    continue
                if not data.error_code:
                    followed.has_failed = False
                if data.records and followed.partition.is_fsynced:
                    to_flush.append(followed.partition)
                handled_bytes += len(data.records or b"")
                if handled_bytes > _BYTES_PER_YIELD:
                    handled_bytes = 0
                    await asyncio.sleep(0)
        await self._flush(to_flush)

    async def _flush(self, partitions: Iterable[Partition]) -> None:
        """Fsync what was appended: the next fetch acknowledges it."""
        flushes = [asyncio.wrap_future(self._manager.flush(one)) for one in partitions]
        if flushes:
            await asyncio.gather(*flushes, return_exceptions=True)

    async def _handle_partition(
        self, key: PartitionKey, followed: _Followed, data: PartitionData
    ) -> None:
        partition = followed.partition
        log = partition.log
        if data.error_code:
            await self._handle_error(key, followed, data)
        elif data.diverging_epoch.epoch >= 0:
            diverging = data.diverging_epoch
            offset = log.leader_epochs.truncation_offset(
                diverging.epoch, diverging.end_offset, log.end_offset
            )
            await self._truncate(key, followed, offset)
        else:
            if data.records:
                partition.append_as_follower(data.records, self._manager.now_ms())
                self._manager.record_fetched(partition, len(data.records))
            followed.is_behind = data.high_watermark > log.end_offset
            partition.set_high_watermark(data.high_watermark)
            offset = min(data.log_start_offset, partition.high_watermark)
            if offset > log.start_offset:
                await asyncio.to_thread(log.write_start_offset, offset)
                log.advance_start_offset(offset)

    async def _handle_error(
        self, key: PartitionKey, followed: _Followed, data: PartitionData
    ) -> None:
        partition, code = followed.partition, ErrorCode.of(data.error_code)
        end_offset = partition.log.end_offset
        if code is ErrorCode.OFFSET_OUT_OF_RANGE and data.log_start_offset > end_offset:
            logger.warning(
                "the leader has deleted what this replica does not have: starting anew",
                extra={"partition": repr(partition), "offset": data.log_start_offset},
            )
            start_offset = data.log_start_offset
            if await self._in_thread(partition, lambda: partition.log.restart_at(start_offset)):
                partition.restore_high_watermark(start_offset)
                self._manager.refresh_role(key)
            return
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            # Longer than the leader's log, without a known epoch: nothing of it is the leader's.
            await self._truncate(key, followed, partition.log.start_offset)
            return
        logger.debug(
            "fetch of a partition failed",
            extra={"partition": repr(partition), "leader": self._leader_id, "error": code.name},
        )
        followed.retry_at = time.monotonic() + _PARTITION_BACKOFF_SECONDS

    async def _truncate(self, key: PartitionKey, followed: _Followed, offset: int) -> None:
        partition = followed.partition
        state = partition.state
        assert state is not None
        if offset < partition.high_watermark and not state.is_recovering:
            self._fail(
                followed,
                "refused to truncate committed records: the leader does not have them",
                f"the leader's log diverges at offset {offset}, and the high watermark is"
                f" {partition.high_watermark}",
            )
            return
        logger.info(
            "truncating",
            extra={
                "partition": repr(partition),
                "offset": offset,
                "records": partition.log.end_offset - offset,
                "leader_epoch": state.leader_epoch,
            },
        )
        if await self._in_thread(partition, lambda: partition.log.truncate(offset)):
            if partition.high_watermark > partition.log.end_offset:
                partition.restore_high_watermark(partition.log.end_offset)
            self._manager.refresh_role(key)

    @staticmethod
    async def _in_thread(partition: Partition, change: Callable[[], None]) -> bool:
        """Change a log in a thread, which may take a second; nobody else uses it meanwhile.

        Returns False, with nothing done, if the partition has changed before that could start.
        """
        log = partition.log
        expected = (partition.state, partition.role, log.end_offset)
        while log.is_committing:
            await asyncio.sleep(_COMMIT_CHECK_SECONDS)
        if (partition.state, partition.role, log.end_offset) != expected:
            return False  # The next fetch tells what is to be done now.
        log.is_truncating = True
        task = asyncio.get_running_loop().run_in_executor(None, change)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait((task,))
            raise
        finally:
            log.is_truncating = False
        return True

    def _retry_later(self, followed: _Followed, error: Exception) -> None:
        """Pause a partition that could not be appended to; log it when that begins."""
        if isinstance(error, OSError):
            self._manager.count_disk_error(error)
        followed.retry_at = time.monotonic() + _FAILURE_BACKOFF_SECONDS
        if not followed.has_failed:
            followed.has_failed = True
            logger.error(
                "partition cannot be replicated",
                extra={"partition": repr(followed.partition), "reason": str(error)},
            )

    def _fail(self, followed: _Followed, message: str, reason: str) -> None:
        followed.is_failed = True
        logger.error(message, extra={"partition": repr(followed.partition), "reason": reason})
