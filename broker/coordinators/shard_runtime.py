"""Runs one coordinator shard on the log of its partition.

The shard decides, the runtime does the I/O: it appends records, replays each one once it is as
durable as the topic asks for, completes requests, and keeps one timer for the next deadline of the
shard. Appends complete in the order of the log, so that the shard's state is always that of a
prefix of it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from ottla.coord.deadlines import Now
from ottla.coord.effects import Append, Effect, Reply
from ottla.coord.group_shard import GroupShard
from ottla.coord.records import CoordinatorRecord, decode_record, encode_record
from ottla.protocol.compression import Compression
from ottla.protocol.errors import BatchError, DecodeError, ErrorCode
from ottla.storage.errors import BatchTooLargeError

from ..cluster.metadata_log import build_key_value_batch, read_key_values
from ..partitions.partition import Partition
from ..requests.errors import EXPECTED_ERRORS

logger = logging.getLogger(__name__)

#: A load yields to other tasks after this many records.
_RECORDS_PER_SLICE = 1000

R = TypeVar("R")
#: Handles a request; the future is the token of its response.
Event = Callable[[GroupShard, "asyncio.Future[R]", Now], list[Effect]]


class ShardRuntime:
    """A shard and its partition, from load to unload."""

    def __init__(self, shard: GroupShard, partition: Partition) -> None:
        self.shard = shard
        self.partition = partition
        #: Whether it was unloaded, or the broker stops.
        self.is_closed = False
        # Appends whose records are in the log but not flushed, with their last offsets.
        self._in_flight: deque[tuple[int, Append]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    def __repr__(self) -> str:
        return f"<ShardRuntime {self.partition!r}, {len(self.shard.groups)} groups>"

    # Loading and unloading.

    async def load(self) -> None:
        """Replay the log of the partition, and activate the shard, unless closed meanwhile.

        Raises what reading a log raises.
        """
        started = time.perf_counter()
        record_count = 0
        # Most records of a log that is not compacted yet are outdated: replay the last of each key.
        latest: dict[bytes, bytes | None] = {}
        async for batch in self.partition.batches():
            if self.is_closed:
                return
            try:
                records = read_key_values(batch)
            except BatchError as error:
                logger.error("%r: skipped unreadable %r: %s", self.partition, batch, error)
                continue
            record_count += len(records)
            latest.update(records)
        for number, (key, value) in enumerate(latest.items(), start=1):
            try:
                record = decode_record(key, value)
            except DecodeError as error:
                logger.error(
                    "%r: skipped the unreadable record of key %r: %s", self.partition, key, error
                )
                continue
            if record is not None:
                self.shard.replay(record)
            if number % _RECORDS_PER_SLICE == 0:
                await asyncio.sleep(0)
                if self.is_closed:
                    return
        self.activate()
        if record_count:
            logger.info(
                "Loaded groups",
                extra={
                    "partition": self.partition.index,
                    "groups": len(self.shard.groups),
                    "records": record_count,
                    "milliseconds": round((time.perf_counter() - started) * 1000),
                },
            )

    def activate(self) -> None:
        """Start to handle requests; the log has been replayed, or is new and empty."""
        self.shard.activate(current_time())
        self._schedule_timer()

    def unload(self) -> None:
        """Stop handling requests. Waiting ones, and appends in flight, get NOT_COORDINATOR."""
        self.close()
        effects = self.shard.refuse_waiting(ErrorCode.NOT_COORDINATOR)
        while self._in_flight:
            _last_offset, append = self._in_flight.popleft()
            effects += append.complete(ErrorCode.NOT_COORDINATOR)
        self.run(effects)

    def close(self) -> None:
        """Stop a load in progress, and the timer."""
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    # Events.

    def submit(self, event: Event[R]) -> R | asyncio.Future[R]:
        """Handle a request; return its response, or a future of it."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self.run(event(self.shard, future, current_time()))
        return future.result() if future.done() else future

    def run(self, effects: Iterable[Effect]) -> None:
        """Carry out the effects of an event."""
        todo = deque(effects)
        while todo:
            effect = todo.popleft()
            if isinstance(effect, Reply):
                if not effect.token.done():
                    effect.token.set_result(effect.response)
            else:
                todo.extend(self._append(effect))
        self._schedule_timer()

    def _append(self, append: Append) -> list[Effect]:
        """Append records; return what follows, unless the records have to be flushed first."""
        if self.is_closed:
            return append.complete(ErrorCode.NOT_COORDINATOR)
        try:
            last_offset = self._append_records(append.records)
        except EXPECTED_ERRORS as error:
            logger.warning(
                "Group %s: append to %r failed: %s",
                append.records[0].group_id,
                self.partition,
                error,
            )
            is_too_large = isinstance(error, BatchTooLargeError)
            return append.complete(
                ErrorCode.MESSAGE_TOO_LARGE if is_too_large else ErrorCode.COORDINATOR_NOT_AVAILABLE
            )
        if not self.partition.acks_all_means_fsync and not self._in_flight:
            return self._appended(append)
        self._in_flight.append((last_offset, append))
        self.partition.when_flushed(last_offset, lambda error: self._flushed(last_offset, error))
        return []

    def _append_records(self, records: Sequence[CoordinatorRecord]) -> int:
        time_ms = current_time().time_ms
        encoded = [encode_record(record) for record in records]
        try:
            batch = build_key_value_batch(encoded, time_ms)
            return self.partition.append(batch, time_ms).last_offset
        except BatchTooLargeError:
            # The members of a large group have similar metadata, which compresses well.
            batch = build_key_value_batch(encoded, time_ms, Compression.ZSTD)
            return self.partition.append(batch, time_ms).last_offset

    def _flushed(self, offset: int, error: Exception | None) -> None:
        """Complete the appends up to `offset`, in the order of the log."""
        while self._in_flight and self._in_flight[0][0] <= offset:
            _last_offset, append = self._in_flight.popleft()
            if error is None:
                self.run(self._appended(append))
            else:
                self.run(append.complete(ErrorCode.COORDINATOR_NOT_AVAILABLE))

    def _appended(self, append: Append) -> list[Effect]:
        for record in append.records:
            self.shard.replay(record)
        return append.complete(ErrorCode.NONE)

    # The timer.

    def _schedule_timer(self) -> None:
        due_ms = self.shard.deadlines.next()
        if due_ms is None or self.is_closed:
            return
        if self._timer is not None:
            if self._timer_ms <= due_ms:
                return
            self._timer.cancel()
        self._timer_ms = due_ms
        seconds = max(due_ms - current_time().tick_ms, 0) / 1000
        self._timer = asyncio.get_running_loop().call_later(seconds, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self.run(self.shard.expire(current_time()))


def current_time() -> Now:
    """Return the time, by both clocks."""
    return Now(int(time.monotonic() * 1000), int(time.time() * 1000))
