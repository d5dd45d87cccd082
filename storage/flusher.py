"""Group commit: threads that flush logs, and one flush serves everyone who waits for it.

An append that must be durable asks for a flush of its log, and gets a future. A thread takes all
futures of a log, flushes it once, and resolves them. While a flush is under way the next requests
gather, so the more of them wait, the fewer flushes each of them costs. A log is flushed by one
thread at a time; several logs are flushed in parallel, which a file system's journal combines.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue

from .log import Log

_THREADS = 4


class Flusher:
    """A pool of threads that flush logs."""

    def __init__(self, threads: int = _THREADS) -> None:
        #: Called with the seconds that each flush took, in its thread, one at a time.
        self.on_flush: Callable[[float], None] = _ignore
        #: Futures by log, for each log that is queued or being flushed.
        self._waiting: dict[Log, list[Future[int]]] = {}
        #: What the threads do; None ends one of them. A put wakes a thread with a single call.
        self._queue: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._stopping = False
        self._threads = [
            threading.Thread(target=self._run, name="flusher", daemon=True) for _ in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def flush(self, log: Log) -> Future[int]:
        """Ask for everything that is in the log now to become durable.

        The future returns the recovery point, or raises what `Log.flush` raises. It is resolved in
        a thread of the flusher. Raises RuntimeError after `stop`.
        """
        future: Future[int] = Future()
        with self._lock:
            if self._stopping:
                raise RuntimeError("The flusher is stopped")
            waiting = self._waiting.get(log)
            if waiting is not None:
                waiting.append(future)
                return future
            self._waiting[log] = [future]
        self._queue.put(partial(self._flush, log))
        return future

    def submit(self, job: Callable[[], object]) -> None:
        """Call a function soon, in a thread, unless `stop` was called. It must not raise."""
        if not self._stopping:
            self._queue.put(job)

    def stop(self) -> None:
        """Finish all requested flushes, then end the threads."""
        with self._lock:
            self._stopping = True
        self._end_threads_if_idle()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            job()

    def _flush(self, log: Log) -> None:
        with self._lock:
            futures, self._waiting[log] = self._waiting[log], []
        started = time.perf_counter()
        _resolve(futures, log.flush)
        with self._lock:
            self.on_flush(time.perf_counter() - started)
            # Requests that came during the flush wait for the next one.
            must_flush_again = bool(self._waiting[log])
            if not must_flush_again:
                del self._waiting[log]
        if must_flush_again:
            self._queue.put(partial(self._flush, log))
        elif self._stopping:
            self._end_threads_if_idle()

    def _end_threads_if_idle(self) -> None:
        if not self._waiting:
            for _ in self._threads:
                self._queue.put(None)


def _ignore(_seconds: float) -> None:
    """Count nothing."""


def _resolve(futures: list[Future[int]], flush: Callable[[], int]) -> None:
    # Cancelled futures are skipped; the flush is for the others.
    waiting = [future for future in futures if future.set_running_or_notify_cancel()]
    try:
        recovery_point = flush()
    except Exception as error:  # noqa: BLE001  # The thread must survive; the callers get the error.
        for future in waiting:
            future.set_exception(error)
    else:
        for future in waiting:
            future.set_result(recovery_point)
