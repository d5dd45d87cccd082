"""One loop that plans whenever something has changed, and runs what is due."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

#: A task: a broker that is asked, or a lookup.
TaskKey = int | str
NEVER = float("inf")


class Planner:
    """Runs planned tasks until it is cancelled."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._running: set[TaskKey] = set()

    def wake(self) -> None:
        """Plan again: something has changed."""
        self._changed.set()

    async def run(self) -> None:
        """Plan, and run what was planned."""
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    self._changed.clear()
                    for key, work in self._plan():
                        self._running.add(key)
                        tasks.create_task(self._run_task(key, work))
                    await self._changed.wait()
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _plan(self) -> Iterable[tuple[TaskKey, Coroutine[Any, Any, None]]]:
        """Yield what is to be done now, and set a timer for what is to be done later."""
        raise NotImplementedError

    async def _run_task(self, key: TaskKey, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        finally:
            self._running.discard(key)
            self.wake()

    def _wake_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if when != NEVER:
            self._timer = asyncio.get_running_loop().call_at(when, self.wake)
