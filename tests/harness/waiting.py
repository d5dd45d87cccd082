"""Waiting for conditions that another task, thread or process brings about."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

#: Longer than anything takes on a busy machine; a test that waits this long hangs.
TIMEOUT_SECONDS = 30.0


async def eventually(condition: Callable[[], Any], seconds: float = TIMEOUT_SECONDS) -> None:
    """Wait until a condition holds. The condition may be a coroutine function."""
    async with asyncio.timeout(seconds):
        while True:
            met = condition()
            if await met if inspect.isawaitable(met) else met:
                return
            await asyncio.sleep(0.005)


def wait_until(
    condition: Callable[[], bool], what: str = "condition", seconds: float = TIMEOUT_SECONDS
) -> None:
    """Block until a condition holds. Raises AssertionError after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"Not within {seconds} s: {what}"
        time.sleep(0.01)
