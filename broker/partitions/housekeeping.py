"""Periodic maintenance: retention, flushes, checkpoints, compaction, scrubbing, expiration.

Each job has its own loop, so that a long compaction does not delay a flush. Work on a log is done
in the event loop, one log at a time, giving way to other tasks in between; fsync, renaming and
rewriting block on the disk and run in threads. A job that fails is logged and runs again.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from ottla.protocol.errors import BatchError
from ottla.storage import compaction
from ottla.storage.cleaner import rewrite
from ottla.storage.errors import CompactionStoppedError, StorageError

from .scrubber import Scrubber

if TYPE_CHECKING:
    from ottla.storage.log import Log

    from ..broker import Broker

logger = logging.getLogger(__name__)

#: How often a compaction looks whether a truncation has let go of the log.
_TRUNCATION_CHECK_SECONDS = 0.01
#: Pause between two runs of a job, however short its interval is.
_MIN_PAUSE_SECONDS = 0.01
#: How often the directories of deleted logs are looked at.
_PURGE_INTERVAL_MS = 1000
#: How often opening a log is tried again that had no space for its recovery.
_REOPEN_INTERVAL_MS = 1000
#: How often it is checked whether broker.memory.max.bytes is exhausted.
_EVICTION_INTERVAL_MS = 1000
#: How often it is checked whether a pass of the scrubber is due.
_SCRUB_CHECK_MS = 1000
#: How often it is checked whether certificates have changed on disk.
_CERTIFICATE_CHECK_MS = 2000
#: How often a full log directory is written to.
_SPACE_CHECK_INTERVAL_MS = 1000


class Housekeeping:
    """The maintenance loops of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()
        self._stop_cleaner = threading.Event()
        # One thread only: each thread keeps the memory that a rewrite allocated.
        self._cleaner = ThreadPoolExecutor(1, thread_name_prefix="cleaner")
        self.scrubber = Scrubber(broker, self._stop_cleaner)

    def start(self) -> None:
        """Start one task per job."""
        jobs: dict[Callable[[], Awaitable[None]], Callable[[], int]] = {
            self.apply_retention: lambda: self._broker.config.log_retention_check_interval_ms,
            self.purge_deleted_logs: lambda: _PURGE_INTERVAL_MS,
            self.open_logs_without_space: lambda: _REOPEN_INTERVAL_MS,
            self.check_space: lambda: _SPACE_CHECK_INTERVAL_MS,
            self.flush: lambda: self._broker.config.log_flush_scheduler_interval_ms,
            self.checkpoint: lambda: self._broker.config.log_flush_offset_checkpoint_interval_ms,
            self.compact: lambda: self._broker.config.log_cleaner_backoff_ms,
            self.scrubber.run_if_due: lambda: _SCRUB_CHECK_MS,
            self.expire_producers: (
                lambda: self._broker.config.producer_id_expiration_check_interval_ms
            ),
            self.expire_offsets: lambda: self._broker.config.offsets_retention_check_interval_ms,
            self.abort_timed_out_transactions: lambda: (
                self._broker.config.transaction_abort_timed_out_transaction_cleanup_interval_ms
            ),
            self.evict_transactional_ids: lambda: _EVICTION_INTERVAL_MS,
            self.expire_transactional_ids: lambda: (
                self._broker.config.transaction_remove_expired_transaction_cleanup_interval_ms
            ),
        }
        if self._broker.server.security is not None:
            jobs[self.reload_certificates] = lambda: _CERTIFICATE_CHECK_MS
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._repeat(*job)) for job in jobs.items()]

    async def stop(self) -> None:
        """Stop all loops; the job that runs completes first."""
        self._stopping.set()
        self._stop_cleaner.set()
        await asyncio.gather(*self._tasks)
        self._cleaner.shutdown()
        self.scrubber.close()

    async def apply_retention(self) -> None:
        """Delete segments by retention.ms and retention.bytes, and files no longer read."""
        has_deleted = False
        for log in self._logs():
            with _isolated(log):
                if log.offline_reason is None and log.config.deletes:
                    for segment in log.unverified_segments(self._broker.now_ms()):
                        verified = await asyncio.to_thread(segment.probe_max_timestamp)
                        segment.set_max_timestamp(*verified)
                    deleted = log.remove_expired_segments(self._broker.now_ms())
                    if deleted:
                        has_deleted = True
                        logger.info(
                            "deleted segments by retention",
                            extra={"log": log.directory.name, "segments": deleted},
                        )
                if log.has_deleted_segments:
                    await asyncio.to_thread(log.purge_deleted_segments)
            await asyncio.sleep(0)
        if has_deleted:  # Followers delete what their leaders have deleted.
            self._broker.fetch_sessions.followers_have_changed()

    async def purge_deleted_logs(self) -> None:
        """Remove the directories of deleted logs after file.delete.delay.ms."""
        if self._broker.logs.has_deleted:
            await asyncio.to_thread(self._broker.logs.purge_deleted)

    async def open_logs_without_space(self) -> None:
        """Open the logs whose recovery had no space, if there is space now."""
        await self._broker.topics.open_logs_without_space()

    async def check_space(self) -> None:
        """Find out whether a log directory that was full has space again."""
        if self._broker.disk_space.is_full:
            await asyncio.to_thread(self._broker.disk_space.probe)

    async def flush(self) -> None:
        """Flush the logs that are due by flush.messages or flush.ms."""
        for log in self._logs():
            now_ms = self._broker.now_ms()
            if log.offline_reason is None and log.is_flush_due(now_ms):
                log.last_flush_ms = now_ms
                with _isolated(log):
                    await asyncio.wrap_future(self._broker.logs.flusher.flush(log))

    async def checkpoint(self) -> None:
        """Write the recovery points, from which recovery after a crash starts."""
        await asyncio.to_thread(self._broker.logs.checkpoint_recovery_points)

    async def compact(self) -> None:
        """Compact the logs with cleanup.policy=compact, one after the other."""
        if not self._broker.config.log_cleaner_enable:
            return
        for log in self._logs():
            if log.config.compacts:
                with _isolated(log):
                    await self._compact(log)
            await asyncio.sleep(0)

    async def expire_producers(self) -> None:
        """Discard the state of idempotent producers after producer.id.expiration.ms."""
        for log in self._logs():
            now_ms = self._broker.now_ms()
            log.producer_states.expire(now_ms, self._broker.config.producer_id_expiration_ms)
            await asyncio.sleep(0)

    async def expire_offsets(self) -> None:
        """Discard the committed offsets of groups after offsets.retention.minutes."""
        self._broker.groups.clean_up()

    async def abort_timed_out_transactions(self) -> None:
        """Abort the transactions that are open for longer than their timeout."""
        self._broker.transactions.abort_timed_out()

    async def evict_transactional_ids(self) -> None:
        """Remove transactional ids that are not in use, if there is no memory for others."""
        self._broker.transactions.remove_idle()

    async def expire_transactional_ids(self) -> None:
        """Remove transactional ids after transactional.id.expiration.ms."""
        self._broker.transactions.remove_expired()

    async def reload_certificates(self) -> None:
        """Use the certificates that were renewed on disk."""
        if self._broker.server.security is not None:
            await self._broker.server.security.reload()

    async def _compact(self, log: Log) -> None:
        if log.offline_reason is None and log.recovery_point < log.active_segment.base_offset:
            # Only flushed segments are compacted, and a flush may be a long time away.
            await asyncio.wrap_future(self._broker.logs.flusher.flush(log))
        plan = compaction.plan(log, self._broker.now_ms())
        if plan is None:
            return
        limit = self._broker.config.log_cleaner_io_max_bytes_per_second
        rewritten = await asyncio.get_running_loop().run_in_executor(
            self._cleaner,
            partial(
                rewrite,
                plan,
                bytes_per_second=int(limit) if 0 < limit < 2**63 else None,
                stop=self._stop_cleaner,
            ),
        )
        while True:
            while log.is_truncating:
                await asyncio.sleep(_TRUNCATION_CHECK_SECONDS)
            commit = compaction.next_commit(log, rewritten)
            if commit is None:
                break
            log.is_committing = True
            try:
                await asyncio.to_thread(commit.write)
            finally:
                commit.finish()
                log.is_committing = False
        if not rewritten.is_abandoned:
            logger.info("compacted", extra={"log": log.directory.name, **asdict(rewritten.stats)})

    async def _repeat(
        self, job: Callable[[], Awaitable[None]], interval_ms: Callable[[], int]
    ) -> None:
        while not self._stopping.is_set():
            with suppress(TimeoutError):
                pause = max(interval_ms() / 1000, _MIN_PAUSE_SECONDS)
                await asyncio.wait_for(self._stopping.wait(), pause)
                return
            try:
                await job()
            except CompactionStoppedError:
                return
            except Exception:
                logger.exception("housekeeping failed", extra={"job": job.__name__})

    def _logs(self) -> list[Log]:
        return [log for log in self._broker.logs.logs.values() if not log.is_truncating]


@contextmanager
def _isolated(log: Log) -> Iterator[None]:
    """Log the errors of one log, so that the job continues with the others.

    Errors of an offline log are dropped: it was logged when it went offline, or it was deleted.
    """
    try:
        yield
    except CompactionStoppedError:
        raise
    except (OSError, StorageError, BatchError):
        if log.offline_reason is None:
            logger.exception("housekeeping failed", extra={"log": log.directory.name})
