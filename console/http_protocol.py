"""uvicorn's HTTP protocol, with a time limit for the head of a request.

uvicorn waits for it for ever, and refuses new connections when it has many: whoever opens them and
sends a byte now and then would keep everybody else out.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from .config import Limits


def protocol_of(limits: Limits) -> type[H11Protocol]:
    """Return the protocol with the limits of a console."""

    class Limited(_Protocol):
        head_seconds = limits.head_seconds

    return Limited


class _Protocol(H11Protocol):
    """Closes connections that do not send a request in time."""

    head_seconds: float
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Wait for the first request."""
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        """Stop the time when the head is complete."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_timer()
        elif self._head_timer is None:
            self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the time."""
        self._stop_timer()
        super().connection_lost(exc)

    def _start_timer(self) -> None:
        self._head_timer = self.loop.call_later(self.head_seconds, self.transport.close)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
