"""A partition that this broker owns: its log, what consumers may see of it, and who waits for it.

What an ack means is the topic's `durability` (see storage/config.py). `append` returns when the
operating system has the records; `when_flushed` tells when the device has them too. Of a topic with
durability=fsync consumers see only what the device has: the high watermark is the flushed offset.
Else it is the end of the log.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future

from ottla.coord.metadata_image import INTERNAL_TOPICS
from ottla.protocol.batch import RecordBatch, split_batches
from ottla.protocol.errors import ErrorCode
from ottla.storage.config import LogConfig
from ottla.storage.disk import Buffer
from ottla.storage.errors import LogOfflineError, StorageError
from ottla.storage.flusher import Flusher
from ottla.storage.log import Log, LogAppendInfo, LogSlice

from ..requests.errors import ApiError
from ..requests.waiters import Waiter

#: What is read at once of a log that the broker itself wants to know.
_BLOCK_BYTES = 256 * 1024

#: Told that the device has what was waited for, or why it has not.
Flushed = Callable[[Exception | None], None]

#: Leadership is static, so the epoch never changes.
LEADER_EPOCH = 0


class Partition:
    """One partition."""

    __slots__ = (
        "_flusher",
        "_is_syncing",
        "_loop",
        "_unflushed",
        "acks_all_means_fsync",
        "index",
        "is_fsynced",
        "is_internal",
        "leader_epoch",
        "log",
        "topic",
        "waiters",
    )

    def __init__(self, topic: str, index: int, log: Log, flusher: Flusher) -> None:
        self.topic = topic
        self.index = index
        #: Whether only the broker writes to it.
        self.is_internal = topic in INTERNAL_TOPICS
        self.log = log
        self.leader_epoch = LEADER_EPOCH
        self.waiters: set[Waiter] = set()
        self._flusher = flusher
        self._loop = asyncio.get_running_loop()
        self._unflushed: deque[tuple[int, Flushed]] = deque()
        self._is_syncing = False
        self._read_config()

    def __repr__(self) -> str:
        return f"<Partition {self.topic}-{self.index}>"

    @property
    def high_watermark(self) -> int:
        """The end of what consumers may see."""
        return self.log.recovery_point if self.is_fsynced else self.log.end_offset

    def check_epoch(self, leader_epoch: int) -> None:
        """Raise ApiError if a client believes in another leader than this one; -1: it does not say.

        An older epoch means that its metadata is stale, a newer one that ours are.
        """
        if leader_epoch not in (self.leader_epoch, -1):
            is_stale = leader_epoch < self.leader_epoch
            raise ApiError(
                ErrorCode.FENCED_LEADER_EPOCH if is_stale else ErrorCode.UNKNOWN_LEADER_EPOCH
            )

    def set_config(self, config: LogConfig) -> None:
        """Obey other settings from now on."""
        self.log.set_config(config)
        self._read_config()

    def append(self, records: Buffer, now_ms: int) -> LogAppendInfo:
        """Append a batch, and wake who waits for it; see `Log.append` for what it raises."""
        appended = self.log.append(records, leader_epoch=self.leader_epoch, now_ms=now_ms)
        if self.is_fsynced:
            if not appended.is_duplicate:
                size_bytes = len(records)
                self.when_flushed(appended.last_offset, lambda _error: self._tell(size_bytes))
        elif self.waiters:
            self._tell(len(records))
        return appended

    def read(self, offset: int, max_bytes: int) -> LogSlice:
        """Read whole batches that consumers may see; see `Log.read`."""
        end = self.log.recovery_point if self.is_fsynced else None
        return self.log.read(offset, max_bytes, end)

    async def batches(self) -> AsyncIterator[RecordBatch]:
        """Give all batches of the log, and let others have their turn now and then."""
        offset = self.log.start_offset
        while (part := self.log.read(offset, _BLOCK_BYTES)).view:
            if not part.is_in_page_cache():
                await asyncio.to_thread(part.load_into_page_cache)
                part = self.log.read(offset, _BLOCK_BYTES)  # of a file that may be another by now
            # Not from the view: a mapped page that the device fails to give ends the process.
            for batch in split_batches(part.segment.read(part.position, len(part.view))):
                yield batch
                offset = batch.next_offset
            await asyncio.sleep(0)

    def when_flushed(self, offset: int, flushed: Flushed) -> None:
        """Have `flushed` called when the device has the record at `offset`; perhaps at once."""
        if self.log.recovery_point > offset:
            flushed(None)
            return
        self._unflushed.append((offset, flushed))
        if not self._is_syncing:
            self._sync()

    def wake_all(self) -> None:
        """Let all who wait look again: the partition is going away, or the broker is."""
        for waiter in self.waiters:
            waiter.wake()

    def _read_config(self) -> None:
        durability = self.log.config.durability
        self.is_fsynced = durability == "fsync"
        self.acks_all_means_fsync = durability != "page-cache"

    def _tell(self, size_bytes: int) -> None:
        for waiter in self.waiters:
            waiter.appended(size_bytes)

    def _sync(self) -> None:
        """Ask for one sync, for all who have asked by now. Who asks later waits for the next."""
        self._is_syncing = True
        try:
            sync = self._flusher.flush(self.log)
        except RuntimeError as error:  # the broker is stopping
            self._give_up(LogOfflineError(str(error)))
            return
        sync.add_done_callback(self._synced_in_thread)

    def _synced_in_thread(self, sync: Future[int]) -> None:
        self._loop.call_soon_threadsafe(self._synced, sync)

    def _synced(self, sync: Future[int]) -> None:
        self._is_syncing = False
        error = sync.exception()
        if error is not None:
            self._give_up(error if isinstance(error, StorageError) else LogOfflineError(str(error)))
            return
        flushed_offset = sync.result()
        unflushed = self._unflushed
        while unflushed and unflushed[0][0] < flushed_offset:
            unflushed.popleft()[1](None)
        if unflushed:
            self._sync()

    def _give_up(self, error: StorageError) -> None:
        self._is_syncing = False
        waiting, self._unflushed = self._unflushed, deque()
        for _offset, flushed in waiting:
            flushed(error)
