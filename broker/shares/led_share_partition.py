"""A share partition on the leader of its partition: loaded, changed, stored, and given up.

Its records change in memory first (`SharePartition`), and no answer that depends on a change is
sent before the change is stored: a record's delivery, too, counts only when it is durable that it
was delivered. There is one write at a time; what changes meanwhile is in the next one.

If the state cannot be stored, because another leader owns it, the offsets were altered, or the
coordinator is not available for long, the share partition is closed, and everything that waits for
it fails. The next fetch reads the state again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from ottla.coord.share.offset_reset import duration_ms_of
from ottla.coord.share.partition import SharePartition, SharePartitionConfig, restored
from ottla.coord.share.state import UNINITIALIZED, ShareState
from ottla.protocol.errors import ErrorCode

from ..requests.errors import EXPECTED_ERRORS, ApiError, error_code_of
from .persister import SharePartitionKey, WrittenState, read_state, write_state

if TYPE_CHECKING:
    from ottla.coord.config import ShareGroupConfig

    from ..partitions.partition import Partition
    from ..requests.waiters import WaiterRegistry
    from .share_partitions import SharePartitions

logger = logging.getLogger(__name__)

#: How long a coordinator may be unavailable before what waits for a write fails.
_WRITE_SECONDS = 15.0
_RETRY_SECONDS = 0.1
#: How long an owner trusts that it is the owner, while there is nothing to store.
_VERIFY_SECONDS = 30.0
#: Errors of a coordinator that moves or starts.
_RETRIABLE = frozenset(
    (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.BROKER_NOT_AVAILABLE,
    )
)


class LedSharePartition:
    """One share partition that this broker serves. `records` is None until it is loaded."""

    def __init__(
        self, owner: SharePartitions, key: SharePartitionKey, partition: Partition
    ) -> None:
        self.key = key
        self.partition = partition
        self.records: SharePartition | None = None
        #: Held while records are read for an acquisition.
        self.fetch_lock = asyncio.Lock()
        #: Fetches that wait for records to become available.
        self.waiters: WaiterRegistry = {}
        #: Why it was closed; None while it is served.
        self.error: ApiError | None = None
        self.last_used = time.monotonic()
        #: The estimated memory.
        self.size_bytes = 0
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        # A partition without a state has one leader for ever.
        self._leader_epoch = 0 if partition.state is None else partition.leader_epoch
        self._state_epoch = 0
        self._stored: list[asyncio.Future[None]] = []
        self._is_dirty = False
        self._written_at = time.monotonic()
        self._writer: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.loading = owner.broker.start_task(self._load())

    def __repr__(self) -> str:
        return f"<LedSharePartition {self.key.group_id!r} {self.partition!r}>"

    @property
    def is_idle(self) -> bool:
        """Whether nobody would miss it: the state is stored, and nothing is acquired."""
        records = self.records
        return (
            records is not None
            and not self.waiters
            and not self._is_dirty
            and self._writer is None
            and not self.fetch_lock.locked()
            and not records.acquired_count
        )

    def configure(self, config: ShareGroupConfig) -> None:
        """Apply the config of the group, which may have changed."""
        if self.records is not None:
            self.records.config = _limits_of(config)
            self.records.move_start(self.partition.log.start_offset)

    def store(self) -> asyncio.Future[None]:
        """Store the records as they are now; return a future of that.

        It fails with an ApiError, of which nobody has to take notice.
        """
        stored: asyncio.Future[None] = self._loop.create_future()
        stored.add_done_callback(_ignore_error)
        if self.error is not None:
            stored.set_exception(self.error)
            return stored
        self._owner.resize(self)
        if self.records is not None:
            self._owner.counts.archived += self.records.take_archived()
        self._stored.append(stored)
        self._is_dirty = True
        if self._writer is None:
            self._writer = self._owner.broker.start_task(self._write_all())
        self._schedule_timer()
        return stored

    def verify(self, *, is_forced: bool = False) -> None:
        """Find out whether this broker still owns the state, if that is not known from lately.

        The offsets of a group may be altered elsewhere: a write is fenced then.
        """
        is_due = time.monotonic() - self._written_at >= _VERIFY_SECONDS
        if self.records is not None and self._writer is None and (is_due or is_forced):
            self.store()

    def release(self, member_id: str) -> None:
        """Make the records available that a member has acquired: it is gone."""
        if self.records is not None and self.error is None and self.records.release(member_id):
            self._records_became_available()

    def wake(self) -> None:
        """Let waiting fetches look for records again."""
        for waiter in list(self.waiters):
            waiter.check()

    def close(self, error: ApiError) -> None:
        """Give it up; what waits for it fails with an error."""
        if self.error is not None:
            return
        self.error = error
        if self._timer is not None:
            self._timer.cancel()
        self._fail(error)
        self._owner.forget(self)
        self.wake()

    # Loading.

    async def _load(self) -> None:
        """Read the state, however long the coordinator takes. Never raises."""
        try:
            state = await self._read()
            config = self._owner.config_of(self.key.group_id)
            if state.start_offset == UNINITIALIZED:
                start_offset = await self._reset_offset(config)
                state = state._replace(start_offset=start_offset)
            self._state_epoch = state.state_epoch
            records = restored(state, _limits_of(config))
            records.move_start(self.partition.log.start_offset)
        except EXPECTED_ERRORS as error:
            self.close(as_api_error(error))
            return
        if self.error is None:
            self.records = records
            self.wake()

    async def _read(self) -> ShareState:
        while True:
            try:
                return await read_state(self._owner.broker, self.key, self._leader_epoch)
            except ApiError as error:
                if error.code not in _RETRIABLE or self.error is not None:
                    raise
                logger.debug("%r: the state is not available: %s", self, error)
            await asyncio.sleep(_RETRY_SECONDS)

    async def _reset_offset(self, config: ShareGroupConfig) -> int:
        """Return where a group starts that has not read the partition."""
        partition = self.partition
        while not partition.is_high_watermark_known:
            await asyncio.sleep(_RETRY_SECONDS)
        reset = config.auto_offset_reset
        if reset == "earliest":
            return partition.log.start_offset
        if reset == "latest":
            return partition.high_watermark
        from_ms = int(time.time() * 1000) - duration_ms_of(reset)
        return await self._owner.offset_at(partition, from_ms)

    # Writing.

    async def _write_all(self) -> None:
        while self._is_dirty and self.error is None:
            self._is_dirty = False
            stored, self._stored = self._stored, []
            try:
                await self._write()
            except ApiError as error:
                self._stored = stored + self._stored
                logger.info(
                    "Share partition closed",
                    extra={
                        "group": self.key.group_id,
                        "topic": self.partition.topic,
                        "partition": self.partition.index,
                        "reason": error.code.name,
                    },
                )
                self.close(error)
                break
            self._written_at = time.monotonic()
            for future in stored:
                if not future.done():
                    future.set_result(None)
        self._writer = None

    async def _write(self) -> None:
        """Write the records as they are now, until that is done. Raises ApiError."""
        deadline = time.monotonic() + _WRITE_SECONDS
        assert self.records is not None
        state = WrittenState(
            self._state_epoch,
            self._leader_epoch,
            self.records.start_offset,
            self.records.state_batches(),
        )
        while True:
            try:
                await write_state(self._owner.broker, self.key, state)
            except ApiError as error:
                if error.code not in _RETRIABLE or time.monotonic() >= deadline:
                    raise
            else:
                return
            if self.error is not None:
                raise self.error
            await asyncio.sleep(_RETRY_SECONDS)

    def _fail(self, error: ApiError) -> None:
        waiting, self._stored = self._stored, []
        for future in waiting:
            if not future.done():
                future.set_exception(error)

    # Locks.

    def _schedule_timer(self) -> None:
        assert self.records is not None
        due_ms = self.records.next_deadline_ms
        if due_ms is None or self.error is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
        seconds = max(due_ms - now_ms(), 0) / 1000
        self._timer = self._loop.call_later(seconds, self._expire)

    def _expire(self) -> None:
        assert self.records is not None
        count = self.records.expire(now_ms())
        if count:
            self._owner.counts.expired += count
            self._records_became_available()
        else:
            self._schedule_timer()

    def _records_became_available(self) -> None:
        # Nobody waits for it: if it is lost, the records are available all the same.
        self.store()
        self.wake()


def as_api_error(error: Exception) -> ApiError:
    """Return an expected error as what clients are told."""
    return error if isinstance(error, ApiError) else ApiError(error_code_of(error), str(error))


def now_ms() -> int:
    """Return the time of the clock of locks."""
    return int(time.monotonic() * 1000)


def _limits_of(config: ShareGroupConfig) -> SharePartitionConfig:
    return SharePartitionConfig(
        config.delivery_count_limit, config.lock_duration_ms, config.max_record_locks
    )


def _ignore_error(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()
