"""A replica of a partition: its log, its role, its high watermark and its delayed fetches.

A partition without a state is led by its only replica. With a `PartitionState`, this broker leads
it, follows the leader, or does neither (`Role`).

What an ack promises is the topic's `durability` (see storage/config.py). `append` returns when the
records are in the page cache; `when_flushed` calls back when they are fsynced, and `when_committed`
when acks=all is kept.

Consumers see records below the high watermark, which never goes back. With one replica it follows
the log end offset; with durability=fsync, the log's recovery point. With several, it is the lowest
of these among the in-sync replicas, as far as the leader knows: a follower's fetch offset is its
end, and with durability=fsync a follower fsyncs before it fetches. Then acks=all means that all
in-sync replicas have the records, and the leader alone fsyncs nothing.

Consumers with isolation level read_committed see only records below the last stable offset: the
first offset of a transaction without a visible marker.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from enum import Enum
from typing import TypeVar

from ottla.coord.election import effective_min_isr
from ottla.coord.follower_progress import FollowerProgress
from ottla.coord.metadata_image import INTERNAL_TOPICS
from ottla.coord.partition_state import NO_LEADER, PartitionState
from ottla.protocol.batch import MARKER_BYTES, RecordBatch, split_batches
from ottla.protocol.errors import ErrorCode
from ottla.storage.cold_reads import ColdRead
from ottla.storage.config import LogConfig
from ottla.storage.disk import Buffer
from ottla.storage.errors import LogOfflineError, StorageError
from ottla.storage.flusher import Flusher
from ottla.storage.log import Log, LogAppendInfo, LogSlice
from ottla.storage.read_mode import NO_WAITING, ColdReadError
from ottla.storage.transaction_index import AbortedTransaction

from ..observability.metrics import TopicTraffic
from ..requests.errors import ApiError, NotLeaderError
from ..requests.fetch_sessions import PartitionKey
from ..requests.follower_session import FollowerSession
from ..requests.waiters import WaiterRegistry

#: Read size of `batches`.
_BLOCK_BYTES = 256 * 1024

T = TypeVar("T")

#: Called when the records are fsynced or committed, or with the error that prevented it.
FlushCallback = Callable[[Exception | None], None]


class Role(Enum):
    """What this broker does with a partition."""

    LEADER = "leader"
    FOLLOWER = "follower"
    #: There is no leader, or this broker may not act on what it knows.
    OFFLINE = "offline"


class Partition:
    """One partition and its leader state."""

    __slots__ = (
        "_acks",
        "_flusher",
        "_is_flushing",
        "_loop",
        "_uncommitted",
        "_unflushed",
        "accepted_epoch",
        "acks_all_waits",
        "deletion_lock",
        "follower_sessions",
        "high_watermark",
        "index",
        "is_fsynced",
        "is_internal",
        "is_under_min_isr",
        "leader_epoch",
        "log",
        "progress",
        "replica_waiters",
        "role",
        "state",
        "topic",
        "traffic",
        "waiters",
    )

    def __init__(
        self,
        topic: str,
        index: int,
        log: Log,
        flusher: Flusher,
        traffic: TopicTraffic,
        leader_epoch: int = 0,
    ) -> None:
        self.topic = topic
        self.index = index
        #: Whether clients may not produce to it.
        self.is_internal = topic in INTERNAL_TOPICS
        self.log = log
        #: The counters of the topic, which its partitions share.
        self.traffic = traffic
        self.set_leader_epoch(leader_epoch)
        self.role = Role.LEADER
        #: The stored state; None if the partition cannot have other replicas.
        self.state: PartitionState | None = None
        #: On the leader of several replicas: what it knows of its followers.
        self.progress: FollowerProgress | None = None
        #: Whether there are too few in-sync replicas for acks=all.
        self.is_under_min_isr = False
        #: Delayed fetches of consumers, in the order in which they came.
        self.waiters: WaiterRegistry = {}
        #: Delayed fetches of followers without a session, which also get what is not committed.
        self.replica_waiters: WaiterRegistry = {}
        #: The fetch sessions of followers, with the partition's key in each.
        self.follower_sessions: dict[FollowerSession, PartitionKey] = {}
        self._flusher = flusher
        self._loop = asyncio.get_running_loop()
        self._unflushed: list[tuple[int, FlushCallback]] = []
        self._is_flushing = False
        #: Held while records are deleted on request.
        self.deletion_lock = asyncio.Lock()
        # Last offset and size of appends above the high watermark.
        self._uncommitted: list[tuple[int, int]] = []
        # What waits for the high watermark, with the offset that it must pass.
        self._acks: list[tuple[int, FlushCallback]] = []
        self._read_config()
        #: The offset below which records are visible to consumers.
        self.high_watermark = log.recovery_point if self.is_fsynced else log.end_offset

    def __repr__(self) -> str:
        return f"<Partition {self.topic}-{self.index}>"

    @property
    def last_stable_offset(self) -> int:
        """The offset below which all transactions are decided."""
        log, high_watermark = self.log, self.high_watermark
        unstable = log.first_unstable_offset
        if unstable is None:
            return high_watermark
        return min(high_watermark, max(unstable, log.start_offset))

    def has_open_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether a producer has a transaction open here, in this epoch."""
        states = self.log.producer_states
        is_open = states.txn_start_offset(producer_id) is not None
        return is_open and states.epoch_of(producer_id) == producer_epoch

    def set_leader_epoch(self, epoch: int, accepted_epoch: int | None = None) -> None:
        """Start a leader epoch: it begins at the log end offset.

        Clients may know one from `accepted_epoch` on, by default only this one.
        """
        self.leader_epoch = epoch
        self.accepted_epoch = epoch if accepted_epoch is None else accepted_epoch

    def check_epoch(self, leader_epoch: int) -> None:
        """Raise ApiError if a client expects another leader epoch; -1 skips the check.

        An older epoch means that the client's metadata is stale, a newer one that ours is.
        """
        if leader_epoch == -1 or self.accepted_epoch <= leader_epoch <= self.leader_epoch:
            return
        is_stale = leader_epoch < self.leader_epoch
        raise ApiError(
            ErrorCode.FENCED_LEADER_EPOCH if is_stale else ErrorCode.UNKNOWN_LEADER_EPOCH
        )

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the largest epoch up to `epoch` that the log has, and its end offset.

        (-1, -1) if the epoch is unknown. The log does not have the current epoch before the first
        append in it, nor others in which nothing was appended.
        """
        log = self.log
        return log.leader_epochs.end_of_led(epoch, self.leader_epoch, log.end_offset)

    def epoch_of_offset(self, offset: int) -> int:
        """Return the leader epoch of the record at an offset, written or not; -1 if unknown."""
        if offset >= self.log.end_offset:
            return self.leader_epoch
        epochs = [epoch for epoch, start in self.log.leader_epochs if start <= offset]
        return epochs[-1] if epochs else -1

    def set_config(self, config: LogConfig) -> None:
        """Apply a changed config."""
        self.log.set_config(config)
        self._read_config()
        self._advance_high_watermark()

    # Roles.

    def lead(self, state: PartitionState, broker_id: int, now_ms: int) -> None:
        """Lead in the leader epoch of a state, or follow a newer state of the same epoch."""
        was_leader = self.role is Role.LEADER
        is_new_epoch = not was_leader or self.leader_epoch != state.leader_epoch
        self.state = state
        if is_new_epoch or self.progress is None:
            # A leader that goes on in a new epoch has all that it had, and can still ack it.
            waiting, self._acks = self._acks, []
            self.role = Role.LEADER
            self.set_leader_epoch(state.leader_epoch)
            self._uncommitted.clear()
            self.progress = None
            if len(state.replicas) > 1:
                self.progress = FollowerProgress(state, broker_id, self.log.end_offset, now_ms)
                self.log.high_watermark = self.high_watermark
            else:
                self.log.high_watermark = None
            self._read_config()
            for offset, callback in waiting:
                self.when_committed(offset, callback)
        else:
            self.progress.set_state(state)
        self._read_config()
        self._advance_high_watermark()
        self.notify_followers()
        if self.is_under_min_isr and self._acks:
            self._fail_acks(state)

    def follow(self, state: PartitionState, *, is_active: bool) -> None:
        """Follow the leader of a state, if it has one; wait if not, or if not `is_active`."""
        if self.role is Role.LEADER or (
            self.state is not None and self.state.leader_epoch != state.leader_epoch
        ):
            self.wake_all()
        self.role = Role.FOLLOWER if state.has_leader and is_active else Role.OFFLINE
        self.state = state
        self.progress = None
        self.leader_epoch = self.accepted_epoch = state.leader_epoch
        self.is_under_min_isr = False
        self.log.high_watermark = self.high_watermark
        self._uncommitted.clear()
        self._fail_acks(state)

    def set_high_watermark(self, offset: int) -> None:
        """Set the high watermark of a follower: the leader's, as far as the log goes."""
        offset = min(offset, self.log.end_offset)
        if offset > self.high_watermark:
            self.high_watermark = self.log.high_watermark = offset
            self._notify_committed()

    def restore_high_watermark(self, offset: int) -> None:
        """Set the high watermark after a start, or after the log has been truncated."""
        offset = max(min(offset, self.log.end_offset), self.log.start_offset)
        self.high_watermark = self.log.high_watermark = offset

    @property
    def is_high_watermark_known(self) -> bool:
        """Whether the high watermark is not below that of earlier leaders.

        A new leader learns of it when its followers have everything of earlier epochs.
        """
        progress = self.progress
        return progress is None or self.high_watermark >= progress.epoch_start_offset

    def record_fetch(
        self, broker_id: int, broker_epoch: int, offset: int, now_ms: int, start_offset: int = 0
    ) -> None:
        """Record that a follower has everything before `offset`; see `FollowerProgress`."""
        if self.progress is not None:
            self.progress.record_fetch(
                broker_id,
                broker_epoch,
                offset,
                leader_end_offset=self.log.end_offset,
                now_ms=now_ms,
                start_offset=start_offset,
            )
            self._advance_high_watermark()

    def begin_expansion(self, added: Mapping[int, int]) -> None:
        """Count followers as in sync while their addition to the ISR is being stored."""
        if self.progress is not None:
            self.progress.begin_expansion(added)

    # Appends.

    def append(self, records: Buffer, now_ms: int) -> LogAppendInfo:
        """Append a batch of the broker's own records, which are not validated.

        It may be part of a transaction; its sequence is not checked.

        Raises what `Log.append` does, and NotLeaderError.
        """
        self._check_leader()
        appended = self.log.append(
            records, leader_epoch=self.leader_epoch, now_ms=now_ms, validates_records=False
        )
        self._on_append(appended, len(records))
        return appended

    def _check_leader(self) -> None:
        # When it is lost, what waits for acks is called, and that may append what waits behind it.
        if self.role is not Role.LEADER:
            leader = -1 if self.state is None else self.state.leader
            raise NotLeaderError(leader, self.leader_epoch)

    def append_as_follower(self, records: Buffer, now_ms: int) -> None:
        """Append batches that were fetched from the leader. Raises what the method of `Log` does.

        Consumers see them when the leader's high watermark is known to have passed them.
        """
        self.log.append_as_follower(records, now_ms)
        self.traffic.replication_bytes_in += len(records)
        self._uncommitted.append((self.log.end_offset - 1, len(records)))

    def append_marker(
        self,
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        is_commit: bool,
        transaction_version: int,
        now_ms: int,
    ) -> LogAppendInfo:
        """Append the marker that ends a producer's transaction.

        Raises what `Log` does, and NotLeaderError.
        """
        self._check_leader()
        appended = self.log.append_marker(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            is_commit=is_commit,
            transaction_version=transaction_version,
            leader_epoch=self.leader_epoch,
            now_ms=now_ms,
        )
        if self.progress is not None:
            self._on_append(appended, MARKER_BYTES)
        elif self.is_fsynced:
            self.when_flushed(appended.last_offset, lambda _error: self._notify_marker())
        else:
            self.high_watermark = appended.last_offset + 1
            self._notify_marker()
        return appended

    def append_produced(
        self,
        batch: RecordBatch,
        now_ms: int,
        is_validated: bool,
        *,
        must_start_at_zero: bool = False,
    ) -> LogAppendInfo:
        """Append a batch of a producer, whose header is valid, and its records if `is_validated`.

        With transaction version 2, an unknown producer `must_start_at_zero` with its sequence.
        Raises what `Log.append_batches` does, and NotLeaderError.
        """
        self._check_leader()
        appended = self.log.append_batches(
            batch.view,
            (batch,),
            leader_epoch=self.leader_epoch,
            now_ms=now_ms,
            is_validated=is_validated,
            must_start_at_zero=must_start_at_zero,
        )
        if not appended.is_duplicate:
            self.traffic.messages_in += appended.last_offset - appended.base_offset + 1
            self.traffic.bytes_in += batch.size
        self._on_append(appended, batch.size)
        return appended

    def read(self, offset: int, max_bytes: int) -> LogSlice:
        """Read whole batches below the high watermark; see `Log.read`."""
        return self.log.read(offset, max_bytes, self.high_watermark)

    def read_as_follower(self, offset: int, max_bytes: int) -> LogSlice:
        """Read whole batches for a follower, up to the log end offset."""
        return self.log.read(offset, max_bytes)

    def read_committed(
        self, offset: int, max_bytes: int
    ) -> tuple[LogSlice, list[AbortedTransaction]]:
        """Read whole batches below the last stable offset, and which transactions were aborted."""
        log = self.log
        log_slice = log.read(offset, max_bytes, self.last_stable_offset)
        return log_slice, log.aborted_transactions_in(log_slice, offset) if log_slice.view else []

    def cold_read(
        self, offset: int, max_bytes: int, *, is_committed: bool = False, is_replica: bool = False
    ) -> ColdRead:
        """Return what a thread does for a read that raised ColdReadError."""
        end_offset = self.last_stable_offset if is_committed else self.high_watermark
        return ColdRead(
            self.log,
            offset,
            max_bytes,
            self.log.end_offset if is_replica else end_offset,
            with_transactions=is_committed,
        )

    async def batches(self) -> AsyncIterator[RecordBatch]:
        """Yield all batches of the log, giving way to other tasks after each block."""
        offset = self.log.start_offset
        while (log_slice := await self._read_block(offset)).view:
            if not log_slice.is_in_page_cache():
                await asyncio.to_thread(log_slice.load_into_page_cache)
                log_slice = self.log.read(
                    offset, _BLOCK_BYTES
                )  # the segment may have been replaced
            # Not from the mapped view: a read error of a mapped page kills the process (SIGBUS).
            data = log_slice.segment.read(log_slice.position, len(log_slice.view))
            for batch in split_batches(data):
                yield batch
                offset = batch.next_offset
            await asyncio.sleep(0)

    async def _read_block(self, offset: int) -> LogSlice:
        try:
            with NO_WAITING:
                return self.log.read(offset, _BLOCK_BYTES)
        except ColdReadError:
            cold_read = self.cold_read(offset, _BLOCK_BYTES, is_replica=True)
            await asyncio.to_thread(cold_read.load)
            cold_read.install()
            return self.log.read(offset, _BLOCK_BYTES)

    def when_flushed(self, offset: int, callback: FlushCallback) -> None:
        """Call `callback` when the record at `offset` is fsynced, which may be at once."""
        if self.log.recovery_point > offset:
            self._advance_high_watermark()
            callback(None)
            return
        self._unflushed.append((offset, callback))
        if not self._is_flushing:
            # Together with what the requests behind this one append, if they have arrived.
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def when_committed(self, offset: int, callback: FlushCallback) -> None:
        """Call `callback` when acks=all is kept for the record at `offset`, maybe at once."""
        if self.progress is not None:
            if self.high_watermark > offset:
                callback(None)
            else:
                self._acks.append((offset, callback))
        elif self.acks_all_waits:
            self.when_flushed(offset, callback)
        else:
            callback(None)

    def wake_all(self) -> None:
        """Complete all delayed fetches: they cannot get what they wait for here."""
        for waiter in (*self.waiters, *self.replica_waiters):
            waiter.wake()
        for session, key in self.follower_sessions.items():
            session.wake(key)

    def notify_followers(self) -> None:
        """Tell followers with their next fetch what has changed beside the records."""
        for session, key in self.follower_sessions.items():
            session.has_changed(key)

    def _read_config(self) -> None:
        durability = self.log.config.durability
        self.is_fsynced = durability == "fsync"
        self.acks_all_waits = durability != "page-cache" or self.progress is not None
        self.is_under_min_isr = (
            self.progress is not None
            and self.state is not None
            and len(self.state.isr) < effective_min_isr(self.state, self.min_isr)
        )

    @property
    def min_isr(self) -> int:
        """The topic's min.insync.replicas."""
        return self.log.config.min_insync_replicas

    def _on_append(self, appended: LogAppendInfo, size_bytes: int) -> None:
        """Advance the high watermark and notify delayed fetches, at once or after the fsync."""
        if appended.is_duplicate:
            return
        if self.progress is not None:
            self._uncommitted.append((appended.last_offset, size_bytes))
            for waiter in self.replica_waiters:
                waiter.appended(size_bytes)
            for session, key in self.follower_sessions.items():
                session.appended(key, size_bytes)
            if self.is_fsynced:
                self.when_flushed(appended.last_offset, _ignore)
            else:
                self._advance_high_watermark()
            return
        if self.is_fsynced:
            self.when_flushed(appended.last_offset, lambda _error: self._notify(size_bytes))
            return
        self.high_watermark = appended.last_offset + 1
        if self.waiters:
            self._notify(size_bytes)

    def _advance_high_watermark(self) -> None:
        end_offset = self.log.recovery_point if self.is_fsynced else self.log.end_offset
        if self.progress is not None:
            self._advance_with_followers(self.progress, end_offset)
        elif self.role is Role.LEADER:
            self.high_watermark = max(self.high_watermark, end_offset)

    def _advance_with_followers(self, progress: FollowerProgress, end_offset: int) -> None:
        high_watermark = progress.high_watermark(self.high_watermark, end_offset, self.min_isr)
        if high_watermark == self.high_watermark:
            return
        self.high_watermark = self.log.high_watermark = high_watermark
        for session, key in self.follower_sessions.items():
            session.committed(key)
        self._notify_committed()
        for callback in _take_below(self._acks, high_watermark):
            callback(None)

    def _notify_committed(self) -> None:
        """Notify delayed fetches of consumers of what is below the high watermark now."""
        size_bytes = sum(_take_below(self._uncommitted, self.high_watermark))
        for waiter in self.waiters:
            # What an earlier leader has appended is not counted, and a marker may be among it.
            if waiter.is_committed or not size_bytes:
                waiter.check()
            else:
                waiter.appended(size_bytes)

    def _fail_acks(self, state: PartitionState) -> None:
        """Fail all that waits for the high watermark: it may not come here any more."""
        if not self._acks:
            return
        error: ApiError
        if self.role is Role.LEADER and state.leader_epoch == self.leader_epoch:
            error = ApiError(
                ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
                f"{len(state.isr)} replicas are in sync: min.insync.replicas is {self.min_isr}",
            )
        else:
            error = NotLeaderError(state.leader, state.leader_epoch)
        self._fail_all_acks(error)

    def refuse_acks(self) -> None:
        """Fail all that waits for the high watermark: another broker may lead."""
        self._fail_all_acks(NotLeaderError(NO_LEADER, self.leader_epoch))

    def _fail_all_acks(self, error: ApiError) -> None:
        waiting, self._acks = self._acks, []
        for _offset, callback in waiting:
            callback(error)

    def _notify(self, size_bytes: int) -> None:
        is_stable = self.log.first_unstable_offset is None
        for waiter in self.waiters:
            if is_stable or not waiter.is_committed:
                waiter.appended(size_bytes)

    def _notify_marker(self) -> None:
        """Notify delayed fetches of a marker: it may have advanced the last stable offset."""
        for waiter in self.waiters:
            if waiter.is_committed:
                waiter.check()
            else:
                waiter.appended(MARKER_BYTES)

    def _flush(self) -> None:
        """Start one fsync for all callbacks so far; later ones wait for the next (group commit)."""
        self._is_flushing = True
        try:
            flush = self._flusher.flush(self.log)
        except RuntimeError as error:  # the broker is stopping
            self._fail_callbacks(LogOfflineError(str(error)))
            return
        flush.add_done_callback(self._flushed_in_thread)

    def _flushed_in_thread(self, flush: Future[int]) -> None:
        self._loop.call_soon_threadsafe(self._flushed, flush)

    def _flushed(self, flush: Future[int]) -> None:
        self._is_flushing = False
        error = flush.exception()
        if error is not None:
            self._fail_callbacks(
                error if isinstance(error, StorageError) else LogOfflineError(str(error))
            )
            return
        flushed_offset = flush.result()
        self._advance_high_watermark()
        for callback in _take_below(self._unflushed, flushed_offset):
            callback(None)
        if self._unflushed and not self._is_flushing:
            self._flush()

    def _fail_callbacks(self, error: StorageError) -> None:
        self._is_flushing = False
        waiting, self._unflushed = self._unflushed, []
        for _offset, callback in waiting:
            callback(error)


def _take_below(queue: list[tuple[int, T]], offset: int) -> list[T]:
    """Remove what is queued for offsets below `offset`, and return it.

    The queue is a list, because an empty deque takes 760 bytes.
    """
    count = 0
    for queued_offset, _item in queue:
        if queued_offset >= offset:
            break
        count += 1
    taken = [item for _offset, item in queue[:count]]
    del queue[:count]
    return taken


def _ignore(_error: Exception | None) -> None:
    """Do nothing: the high watermark advances with the flush by itself."""
