"""Producer ids, each of which is assigned once in the whole cluster.

The controller allocates them in blocks. Each broker requests the next block before its current one
is used up, so that producers can start while the controller is down.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from ..requests.errors import EXPECTED_ERRORS

logger = logging.getLogger(__name__)

#: The next block is requested when fewer ids than this remain.
_PREFETCH_BELOW = 100


class ProducerIdManager:
    """Assigns producer ids from blocks; `allocate` returns the next block.

    `generate` raises what `allocate` does.
    """

    def __init__(self, allocate: Callable[[], Awaitable[range]]) -> None:
        self._allocate = allocate
        self._available: deque[int] = deque()
        self._prefetching: asyncio.Task[None] | None = None

    async def generate(self) -> int:
        """Return a producer id that was never assigned before."""
        if len(self._available) < _PREFETCH_BELOW:
            self.prefetch()
        while not self._available:
            await asyncio.shield(self.prefetch())
        return self._available.popleft()

    def prefetch(self) -> asyncio.Task[None]:
        """Request the next block, unless a request is in flight."""
        if self._prefetching is None or self._prefetching.done():
            self._prefetching = asyncio.get_running_loop().create_task(self._allocate_block())
            self._prefetching.add_done_callback(_log_unexpected_error)
        return self._prefetching

    async def stop(self) -> None:
        """Cancel a request that is in flight."""
        if self._prefetching is not None:
            self._prefetching.cancel()
            await asyncio.gather(self._prefetching, return_exceptions=True)

    async def _allocate_block(self) -> None:
        self._available.extend(await self._allocate())


def _log_unexpected_error(prefetch: asyncio.Task[None]) -> None:
    error = None if prefetch.cancelled() else prefetch.exception()
    if error is not None and not isinstance(error, EXPECTED_ERRORS):
        logger.error("allocating producer ids failed", exc_info=error)
