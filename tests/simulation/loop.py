"""An event loop with a virtual clock, and the processes that run in it.

Time passes only when nothing is ready: the loop then jumps to the next timer. Callbacks that are
ready at the same time run in the order in which they were scheduled, as asyncio promises; what a
seed varies are the delays of the network, the disks and the threads.

A `Process` is all tasks and callbacks that run in its context. A killed one never runs again: its
callbacks are dropped, as after SIGKILL, without any cleanup.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any

#: The process that runs now; None for the simulation itself.
CURRENT: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class Process:
    """A process of a simulated machine. `clock_offset` is how far its wall clock is off."""

    def __init__(self, machine: str) -> None:
        self.machine = machine
        self.is_alive = True
        #: What a paused process will do when it goes on; None if it is not paused.
        self.paused: list[asyncio.Handle] | None = None
        self.clock_offset = 0.0
        self.context = contextvars.copy_context()
        self.context.run(CURRENT.set, self)

    def __repr__(self) -> str:
        return f"<Process of {self.machine}>"


class VirtualLoop(asyncio.BaseEventLoop):
    """An asyncio event loop without a selector, a real clock or threads."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.random = random
        self.network: Any = None
        #: Runs of callbacks, as a measure of work.
        self.steps = 0
        self._now = 1000.0
        #: Timers by time, and by the order in which they were set: tuples compare faster.
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timer_numbers = count()
        self._tasks: list[asyncio.Task[Any]] = []
        self._is_finished = False
        #: What callbacks raised: asyncio would log it, and go on.
        self.errors: list[BaseException] = []
        self.set_exception_handler(lambda _loop, _context: None)

    def time(self) -> float:
        return self._now

    def wall_time(self) -> float:
        """Return the time of day on the machine of the current process."""
        process = CURRENT.get()
        return 1.8e9 + self._now + (0.0 if process is None else process.clock_offset)

    def spawn(self, process: Process, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine in a process."""
        return self.create_task(coroutine, context=process.context)

    def create_task(self, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        task = super().create_task(coroutine, **options)
        # Tasks of killed processes must not be freed, and so run their cleanup, at random times.
        self._tasks.append(task)
        return task

    def resume(self, process: Process) -> None:
        """Let a paused process go on: timers that are overdue run at once."""
        handles, process.paused = process.paused or [], None
        self._ready.extend(handles)

    def finish(self) -> None:
        """End the simulation: nothing that is freed from now on has an effect."""
        self._is_finished = True
        self._ready.clear()
        self._timers.clear()
        self._tasks.clear()
        self.close()

    # Called by asyncio.

    def _run_once(self) -> None:
        """Run until the loop is stopped: more than asyncio asks for, to save its overhead."""
        timers, ready = self._timers, self._ready
        while not self._stopping:
            if not ready:
                while timers[0][2]._cancelled:
                    heappop(timers)
                self._now = max(self._now, timers[0][0])
            now = self._now
            while timers and timers[0][0] <= now:
                timer = heappop(timers)[2]
                if not timer._cancelled:
                    ready.append(timer)
            for _ in range(len(ready)):
                handle = ready.popleft()
                if handle._cancelled:
                    continue
                process = handle._context.get(CURRENT)
                if process is not None and process.paused is not None:
                    process.paused.append(handle)
                elif process is None or process.is_alive:
                    self.steps += 1
                    try:
                        handle._context.run(handle._callback, *handle._args)
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as error:  # noqa: BLE001
                        self.errors.append(error)

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if not self._is_finished:
            self._ready.append(handle)
        return handle

    def call_at(
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        if not self._is_finished:
            heappush(self._timers, (when, next(self._timer_numbers), timer))
        return timer

    def call_soon_threadsafe(
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def _process_events(self, _events: Any) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def _timer_handle_cancelled(self, _handle: Any) -> None:
        pass

    def run_in_executor(
        self, _executor: Any, function: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run a function as a thread would: later, and at once as seen by the event loop."""
        future = self.create_future()

        def run() -> None:
            try:
                result = function(*args)
            except Exception as error:  # noqa: BLE001  # The caller gets it.
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        self.call_later(self.random.random() * 0.002, run)
        return future

    async def create_connection(self, *args: Any, **_options: Any) -> Any:
        return await self.network.connect(*args)

    async def create_server(self, factory: Any, *, sock: Any, **_options: Any) -> Any:
        return self.network.listen(factory, sock)
