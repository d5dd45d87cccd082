"""An event loop in a thread, and the means for other threads to run something on it."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

from ..errors import ClosedError

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

# How long a coroutine that was interrupted may take to end, and the thread to stop.
_STOP_TIMEOUT_SECONDS = 10.0


class _Executor(ThreadPoolExecutor):
    """Threads for blocking work, also while the interpreter shuts down.

    The standard executor refuses work by then, and the last batches may still need compression.
    """

    def submit(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `work` in a thread."""
        try:
            return super().submit(work, *args, **kwargs)
        except RuntimeError:
            done: Future[T] = Future()

            def run() -> None:
                try:
                    done.set_result(work(*args, **kwargs))
                except BaseException as error:  # noqa: BLE001  # raised where the future is awaited
                    done.set_exception(error)

            threading.Thread(target=run, name="ottla-client-executor", daemon=True).start()
            return done


class LoopThread:
    """An event loop that runs in a thread of its own."""

    def __init__(self, name: str = "ottla-client") -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(_Executor(thread_name_prefix=f"{name}-executor"))
        self._process_id = os.getpid()
        # What threads wait for, with the coroutine until its task is created.
        self._pending: dict[Future[Any], Coroutine[Any, Any, Any] | None] = {}
        self._is_stopping = False
        self._stop_callbacks: list[Callable[[], None]] = []
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, and return its result. Raises ClosedError."""
        try:
            self.check()
        except BaseException:
            coroutine.close()
            raise
        done: Future[T] = Future()
        tasks: list[asyncio.Task[T]] = []

        def start() -> None:
            if self._is_stopping:
                return
            self._pending[done] = None
            task = self._loop.create_task(coroutine)
            tasks.append(task)
            task.add_done_callback(lambda ended: _copy_result(ended, done))

        self._pending[done] = coroutine
        try:
            self.call_soon(start)
            return done.result()
        except BaseException:
            if not done.done():
                # The wait was interrupted, by Ctrl-C: cancel what it waited for.
                self.call_soon(lambda: [task.cancel() for task in tasks])
                with suppress(BaseException):
                    done.result(_STOP_TIMEOUT_SECONDS)
            raise
        finally:
            self._pending.pop(done, None)

    def stop(self) -> None:
        """Stop the loop and the thread."""
        if self._process_id == os.getpid():
            self.call_soon(self._loop.stop)
            self._join()

    def stop_after(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Stop the loop and the thread after a last coroutine, and wait for that for a while.

        For a program that exits, or drops its client, without having closed it: buffered records
        are sent if possible. Any thread may call it.
        """
        tasks: list[asyncio.Task[None]] = []

        def start() -> None:
            task = self._loop.create_task(last())
            tasks.append(task)
            task.add_done_callback(lambda _: self._loop.stop())

        if self._process_id == os.getpid():
            self.call_soon(start)
            if not self._join():
                logger.warning(
                    "A client that was never closed did not stop within %g s: records that are"
                    " not sent are lost",
                    _STOP_TIMEOUT_SECONDS,
                )

    def on_stop(self, callback: Callable[[], None]) -> None:
        """Call `callback` in the thread once the loop is closed."""
        self._stop_callbacks.append(callback)

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Call `callback` on the loop. Does nothing if the loop is closed."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback)

    def check(self) -> None:
        """Raise ClosedError or RuntimeError if the calling thread cannot use the loop."""
        if self._process_id != os.getpid():
            raise ClosedError("The client was created before a fork: create one in this process")
        if self._loop.is_closed():
            raise ClosedError("The client is closed")
        if threading.get_ident() == self._thread.ident:
            raise RuntimeError(
                "A blocking client was called from its own thread, by a callback: it would wait for"
                " itself"
            )

    def _join(self) -> bool:
        if threading.current_thread() is self._thread:
            return True
        self._thread.join(_STOP_TIMEOUT_SECONDS)
        return not self._thread.is_alive()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._is_stopping = True
            while tasks := asyncio.all_tasks(self._loop):
                for task in tasks:
                    task.cancel()
                self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()
            for callback in self._stop_callbacks:
                callback()
            # Calls that came too late: nothing will start or finish them.
            for done, coroutine in tuple(self._pending.items()):
                if coroutine is not None:
                    coroutine.close()
                if not done.done():
                    done.set_exception(ClosedError("The client is closed"))


def _copy_result(task: asyncio.Future[T], done: Future[T]) -> None:
    if task.cancelled():
        done.set_exception(ClosedError("The client was closed during the call"))
    elif (error := task.exception()) is not None:
        done.set_exception(error)
    else:
        done.set_result(task.result())
