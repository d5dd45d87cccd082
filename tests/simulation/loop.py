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
import heapq
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

#: The process that runs now; None for the simulation itself.
CURRENT: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class Process:
    """A process of a simulated machine. `clock_offset` is how far its wall clock is off."""

    def __init__(self, machine: str) -> None:
        self.machine = machine
        self.is_alive = True
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
        self._tasks: list[asyncio.Task[Any]] = []
        self._is_finished = False
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

    def finish(self) -> None:
        """End the simulation: nothing that is freed from now on has an effect."""
        self._is_finished = True
        self._ready.clear()
        self._scheduled.clear()
        self._tasks.clear()
        self.close()

    # Called by asyncio.

    def _run_once(self) -> None:
        scheduled, ready = self._scheduled, self._ready
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False
        if not ready:
            assert scheduled, "nothing will ever happen"
            self._now = max(self._now, scheduled[0]._when)
        while scheduled and scheduled[0]._when <= self._now:
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            ready.append(handle)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            process = handle._context.get(CURRENT)
            if process is None or process.is_alive:
                self.steps += 1
                handle._run()

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        if self._is_finished:
            return asyncio.Handle(callback, args, self, context)
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        if self._is_finished:
            return asyncio.TimerHandle(when, callback, args, self, context)
        return super().call_at(when, callback, *args, context=context)

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
