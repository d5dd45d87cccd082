"""How far the other brokers are with the metadata, as the controller hears from their fetches.

A fetch from an offset says that all before it was taken over. A broker that is up fetches all the
time, so one that has not for a while is down, or might as well be.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

#: How often it is looked whether somebody who is waited for has gone.
_LOOK_SECONDS = 0.1


class BrokerLiveness:
    """The other brokers. Right after the start they are taken to be up: they have a chance yet."""

    def __init__(
        self,
        ids: Iterable[int],
        session_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._session_seconds = session_seconds
        self._heard = dict.fromkeys(ids, clock())
        self._offsets = dict.fromkeys(self._heard, -1)
        self._changed = asyncio.Event()

    def __contains__(self, broker_id: int) -> bool:
        return broker_id in self._heard

    @property
    def alive(self) -> frozenset[int]:
        """Those that were heard of lately."""
        since = self._clock() - self._session_seconds
        return frozenset(broker_id for broker_id, at in self._heard.items() if at >= since)

    def record_heartbeat(self, broker_id: int, offset: int) -> None:
        """Take note that a broker has asked for what begins at an offset."""
        self._heard[broker_id] = self._clock()
        self._offsets[broker_id] = offset
        self._changed.set()

    async def wait_for_offset(self, offset: int) -> None:
        """Wait until all who are up are here; nobody is waited for longer than a session."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._session_seconds):
                while any(self._offsets[broker_id] < offset for broker_id in self.alive):
                    self._changed.clear()
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._changed.wait(), _LOOK_SECONDS)
