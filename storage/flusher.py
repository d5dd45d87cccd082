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

from .log import Log

_THREADS = 4


class Flusher:
    """The threads, and those who wait for them."""

    def __init__(self, threads: int = _THREADS) -> None:
        self._waiting: dict[Log, list[Future[int]]] = {}
        self._syncing: set[Log] = set()
        self._changed = threading.Condition()
        self._stopping = False
        self.syncs = 0
        self._threads = [
            threading.Thread(target=self._run, name="flusher", daemon=True) for _ in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def sync(self, log: Log) -> Future[int]:
        """Ask that all that is in the log now be on the device.

        The future gives the offset up to which it is, or raises what `Log.sync` does. It is
        resolved in a thread of the flusher.
        """
        future: Future[int] = Future()
        with self._changed:
            if self._stopping:
                raise RuntimeError("the flusher has been stopped")
            self._waiting.setdefault(log, []).append(future)
            self._changed.notify()
        return future

    def stop(self) -> None:
        """Serve all that wait, then end the threads."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while (log := self._next()) is None:
                    if self._stopping and not self._waiting:
                        return
                    self._changed.wait()
                futures = self._waiting.pop(log)
                self._syncing.add(log)
                self.syncs += 1
            _settle(futures, log.sync)
            with self._changed:
                self._syncing.discard(log)
                if self._waiting or self._stopping:
                    self._changed.notify_all()

    def _next(self) -> Log | None:
        """Give a log that somebody waits for, and no other thread is at."""
        return next((log for log in self._waiting if log not in self._syncing), None)


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
