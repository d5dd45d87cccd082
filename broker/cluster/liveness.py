"""Broker liveness on the controller: heartbeats and metadata offsets of the other brokers.

A broker's fetch of the metadata log is its heartbeat, and its fetch offset is the metadata offset
up to which it has replayed. A live broker fetches all the time; one that has not for a session is
considered down.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

#: How often a wait checks whether a broker's session has expired.
_CHECK_SECONDS = 0.1


class BrokerLiveness:
    """The sessions of the other brokers. All of them start alive, to give them time to connect."""

    def __init__(
        self,
        broker_ids: Iterable[int],
        session_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._session_seconds = session_seconds
        self._last_heartbeats = dict.fromkeys(broker_ids, clock())
        self._metadata_offsets = dict.fromkeys(self._last_heartbeats, -1)
        self._heartbeat_received = asyncio.Event()

    def __contains__(self, broker_id: int) -> bool:
        return broker_id in self._last_heartbeats

    @property
    def alive(self) -> frozenset[int]:
        """The brokers with a heartbeat within the session timeout."""
        since = self._clock() - self._session_seconds
        return frozenset(
            broker_id
            for broker_id, heartbeat_at in self._last_heartbeats.items()
            if heartbeat_at >= since
        )

    def record_heartbeat(self, broker_id: int, metadata_offset: int) -> None:
        """Record a broker's fetch of the metadata log from this offset."""
        self._last_heartbeats[broker_id] = self._clock()
        self._metadata_offsets[broker_id] = metadata_offset
        self._heartbeat_received.set()

    def metadata_offset(self, broker_id: int) -> int:
        """Return the offset up to which a broker has replayed the metadata log; -1 if unknown."""
        return self._metadata_offsets.get(broker_id, -1)

    def seconds_since_heartbeat(self, broker_id: int) -> float | None:
        """Return the time since the last heartbeat of a broker; None if there was none."""
        if self._metadata_offsets.get(broker_id, -1) < 0:
            return None
        return self._clock() - self._last_heartbeats[broker_id]

    async def wait_for_offset(self, metadata_offset: int) -> None:
        """Wait until all live brokers have replayed up to an offset, at most one session."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._session_seconds):
                while self._is_any_behind(metadata_offset):
                    self._heartbeat_received.clear()
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._heartbeat_received.wait(), _CHECK_SECONDS)

    def _is_any_behind(self, metadata_offset: int) -> bool:
        return any(self._metadata_offsets[broker_id] < metadata_offset for broker_id in self.alive)
