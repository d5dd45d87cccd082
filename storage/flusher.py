"""Group commit: one thread that syncs logs, and everybody who waits for one sync is served by it.

An append that must be on the device asks for its log to be synced, and gets a future. The thread
takes all that have asked, syncs each log once, and resolves the futures: while a sync is under way
the next ones gather, so that the more wait, the fewer syncs each of them costs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from .log import Log


class Flusher:
    """The thread, and those who wait for it."""

    def __init__(self) -> None:
        self._waiting: dict[Log, list[Future[int]]] = {}
        self._changed = threading.Condition()
        self._stopping = False
        self.syncs = 0
        self._thread = threading.Thread(target=self._run, name="flusher", daemon=True)
        self._thread.start()

    def sync(self, log: Log) -> Future[int]:
        """Ask that all that is in the log now be on the device.

        The future gives the offset up to which it is, or raises LogOfflineError. It is resolved in
        the flusher's thread.
        """
        future: Future[int] = Future()
        with self._changed:
            if self._stopping:
                raise RuntimeError("the flusher has been stopped")
            self._waiting.setdefault(log, []).append(future)
            self._changed.notify()
        return future

    def stop(self) -> None:
        """Serve all that wait, then end the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._stopping:
                    self._changed.wait()
                if not self._waiting:
                    return
                waiting, self._waiting = self._waiting, {}
            for log, futures in waiting.items():
                self.syncs += 1
                _settle(futures, log.sync)


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
