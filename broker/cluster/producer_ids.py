"""Producer ids: each is given out once in the whole cluster.

They come from the controller in blocks. Each broker has one in stock, and asks for the next before
that is used up: so that producers can start while the controller is down.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from ..requests.errors import EXPECTED_ERRORS

logger = logging.getLogger(__name__)

#: With fewer than these left, more are asked for.
_FEW = 100


class ProducerIdManager:
    """A stock of ids, and how to get more. `reserve` raises what `take` may then raise."""

    def __init__(self, reserve: Callable[[], Awaitable[range]]) -> None:
        self._reserve = reserve
        self._stock: deque[int] = deque()
        self._getting: asyncio.Task[None] | None = None

    async def generate(self) -> int:
        """Give an id that nobody was ever given."""
        if len(self._stock) < _FEW:
            self.prefetch()
        while not self._stock:
            getting = self.prefetch()
            await asyncio.shield(getting)
        return self._stock.popleft()

    def prefetch(self) -> asyncio.Task[None]:
        """Begin to get more, unless that is under way."""
        if self._getting is None or self._getting.done():
            self._getting = asyncio.get_running_loop().create_task(self._get())
            self._getting.add_done_callback(_note)
        return self._getting

    async def stop(self) -> None:
        """End."""
        if self._getting is not None:
            self._getting.cancel()
            await asyncio.gather(self._getting, return_exceptions=True)

    async def _get(self) -> None:
        self._stock.extend(await self._reserve())


def _note(getting: asyncio.Task[None]) -> None:
    error = None if getting.cancelled() else getting.exception()
    if error is not None and not isinstance(error, EXPECTED_ERRORS):
        logger.error("producer ids cannot be had", exc_info=error)
