"""The background tasks of a consumer, by name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class BackgroundTasks:
    """Runs tasks until they are stopped, and reports those that fail."""

    def __init__(self, on_failure: Callable[[str, BaseException], None]) -> None:
        self._on_failure = on_failure
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Start a task."""
        task = self._tasks[name] = asyncio.create_task(work, name=f"consumer {name}")
        task.add_done_callback(self._on_done)

    async def stop(self, *names: str) -> None:
        """Cancel these tasks, or all but the current one, and wait until they have ended."""
        tasks = [self._tasks[name] for name in names or self._tasks if name in self._tasks]
        tasks = [task for task in tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        self._on_failure(task.get_name(), error)
