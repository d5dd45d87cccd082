"""Group commit: threads that sync logs, and everybody who waits for one sync is served by it.

An append that must be on the device asks for its log to be synced, and gets a future. A thread
takes all that have asked for a log, syncs it once, and resolves the futures: while a sync is under
way the next ones gather, so that the more wait, the fewer syncs each of them costs. A log is synced
by one thread at a time; several logs are by several, which a file system's journal takes together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue

from .log import Log

_THREADS = 4


class Flusher:
    """The threads, and those who wait for them."""

    def __init__(self, threads: int = _THREADS) -> None:
        #: Who waits for a log that is queued, or being synced.
        self._waiting: dict[Log, list[Future[int]]] = {}
        #: Logs that a thread is to sync; None ends a thread. It wakes one with a single call.
        self._queue: SimpleQueue[Log | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._stopping = False
        self.syncs = 0
        self._threads = [
            threading.Thread(target=self._run, name="flusher", daemon=True) for _ in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def flush(self, log: Log) -> Future[int]:
        """Ask that all that is in the log now be on the device.

        The future gives the offset up to which it is, or raises what `Log.flush` does. It is
        resolved in a thread of the flusher.
        """
        future: Future[int] = Future()
        with self._lock:
            if self._stopping:
                raise RuntimeError("the flusher has been stopped")
            waiting = self._waiting.get(log)
            if waiting is not None:
                waiting.append(future)
                return future
            self._waiting[log] = [future]
        self._queue.put(log)
        return future

    def stop(self) -> None:
        """Serve all that wait, then end the threads."""
        with self._lock:
            self._stopping = True
        self._end_if_done()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (log := self._queue.get()) is not None:
            with self._lock:
                futures, self._waiting[log] = self._waiting[log], []
                self.syncs += 1
            _settle(futures, log.flush)
            with self._lock:
                # Others may have come meanwhile: they wait for the next sync.
                is_wanted = bool(self._waiting[log])
                if not is_wanted:
                    del self._waiting[log]
            if is_wanted:
                self._queue.put(log)
            elif self._stopping:
                self._end_if_done()

    def _end_if_done(self) -> None:
        if not self._waiting:
            for _ in self._threads:
                self._queue.put(None)


def _settle(futures: list[Future[int]], sync: Callable[[], int]) -> None:
    # Whoever has given up waiting is told nothing; the sync is for the others.
    waiting = [future for future in futures if future.set_running_or_notify_cancel()]
    try:
        offset = sync()
    except Exception as error:  # noqa: BLE001  # the thread must outlive it; the waiters get it
        for future in waiting:
            future.set_exception(error)
    else:
        for future in waiting:
            future.set_result(offset)
