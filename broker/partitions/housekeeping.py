"""What must happen now and then: retention, flushes, checkpoints, compaction, forgetting producers.

Each is a loop of its own, so that a long compaction does not delay a flush. Work on a log is done
in the event loop, one log at a time with turns for others in between; what waits for a disk for
long, syncing and rewriting, is done in threads. One that fails is logged and tried again.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from ottla.protocol.errors import BatchError
from ottla.storage import compaction
from ottla.storage.cleaner import CompactionStoppedError, rewrite
from ottla.storage.errors import StorageError

if TYPE_CHECKING:
    from ottla.storage.log import Log

    from ..broker import Broker

logger = logging.getLogger(__name__)

#: However often something is to happen, there is time for other things in between.
_SHORTEST_PAUSE_SECONDS = 0.01


class Housekeeping:
    """The loops, from `start` to `stop`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()
        self._stop_rewriting = threading.Event()
        # A thread keeps memory that it has used, and rewriting takes some: always the same thread.
        self._rewriter = ThreadPoolExecutor(1, thread_name_prefix="cleaner")

    def start(self) -> None:
        """Begin."""
        jobs: dict[Callable[[], Awaitable[None]], Callable[[], int]] = {
            self.apply_retention: lambda: self._broker.config.log_retention_check_interval_ms,
            self.flush: lambda: self._broker.config.log_flush_scheduler_interval_ms,
            self.checkpoint: lambda: self._broker.config.log_flush_offset_checkpoint_interval_ms,
            self.compact: lambda: self._broker.config.log_cleaner_backoff_ms,
            self.expire_producers: (
                lambda: self._broker.config.producer_id_expiration_check_interval_ms
            ),
            self.expire_offsets: lambda: self._broker.config.offsets_retention_check_interval_ms,
        }
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._repeat(*job)) for job in jobs.items()]

    async def stop(self) -> None:
        """End; what is being done, in a thread or not, comes to its end first."""
        self._stopping.set()
        self._stop_rewriting.set()
        await asyncio.gather(*self._tasks)
        self._rewriter.shutdown()

    async def apply_retention(self) -> None:
        """Delete segments that are too old or too many, and files that nobody reads any more."""
        for opened in self._logs():
            with _alone(opened):
                if opened.offline_reason is None and opened.config.deletes:
                    deleted = opened.apply_retention(self._broker.now_ms())
                    if deleted:
                        logger.info("%s: %d segments deleted", opened.directory.name, deleted)
                if opened.has_deleted_segments:
                    await asyncio.to_thread(opened.purge_deleted_segments)
            await asyncio.sleep(0)

    async def flush(self) -> None:
        """Sync logs of topics with flush.messages or flush.ms, when it is time."""
        for opened in self._logs():
            now_ms = self._broker.now_ms()
            if opened.offline_reason is None and opened.is_flush_due(now_ms):
                opened.last_flush_ms = now_ms
                with _alone(opened):
                    await asyncio.wrap_future(self._broker.logs.flusher.flush(opened))

    async def checkpoint(self) -> None:
        """Write down up to where a start after a crash need not look."""
        await asyncio.to_thread(self._broker.logs.checkpoint_recovery_points)

    async def compact(self) -> None:
        """Compact the logs that want it, one after the other."""
        if not self._broker.config.log_cleaner_enable:
            return
        for opened in self._logs():
            if opened.config.compacts:
                with _alone(opened):
                    await self._compact(opened)
            await asyncio.sleep(0)

    async def expire_producers(self) -> None:
        """Forget idempotent producers that have been silent for long."""
        for opened in self._logs():
            now_ms = self._broker.now_ms()
            opened.producer_states.expire(now_ms, self._broker.config.producer_id_expiration_ms)
            await asyncio.sleep(0)

    async def expire_offsets(self) -> None:
        """Forget what groups committed that have been gone for long."""
        self._broker.groups.clean_up()

    async def _compact(self, opened: Log) -> None:
        if (
            opened.offline_reason is None
            and opened.recovery_point < opened.active_segment.base_offset
        ):
            # What is sealed is left alone until the device has it, which may be long after.
            await asyncio.wrap_future(self._broker.logs.flusher.flush(opened))
        plan = compaction.plan(opened, self._broker.now_ms())
        if plan is None:
            return
        limit = self._broker.config.log_cleaner_io_max_bytes_per_second
        rewritten = await asyncio.get_running_loop().run_in_executor(
            self._rewriter,
            partial(
                rewrite,
                plan,
                bytes_per_second=int(limit) if 0 < limit < 2**63 else None,
                stop=self._stop_rewriting,
            ),
        )
        while compaction.commit_next_segment(opened, rewritten):
            await asyncio.sleep(0)
        if not rewritten.is_abandoned:
            logger.info("%s: compacted: %s", opened.directory.name, rewritten.stats)

    async def _repeat(
        self, job: Callable[[], Awaitable[None]], interval_ms: Callable[[], int]
    ) -> None:
        while not self._stopping.is_set():
            with suppress(TimeoutError):
                pause = max(interval_ms() / 1000, _SHORTEST_PAUSE_SECONDS)
                await asyncio.wait_for(self._stopping.wait(), pause)
                return
            try:
                await job()
            except CompactionStoppedError:
                return
            except Exception:
                logger.exception("housekeeping failed: %s", job.__name__)

    def _logs(self) -> list[Log]:
        return list(self._broker.logs.logs.values())


@contextmanager
def _alone(opened: Log) -> Iterator[None]:
    """Let what goes wrong with a log be that log's alone, so that the others have their turn.

    Of one that is offline it has been said, and one that was deleted meanwhile has nothing wrong.
    """
    try:
        yield
    except CompactionStoppedError:
        raise
    except (OSError, StorageError, BatchError):
        if opened.offline_reason is None:
            logger.exception("%s: housekeeping failed", opened.directory.name)
