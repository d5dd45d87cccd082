"""The connections that have not authenticated yet: TLS handshakes, and SASL before its end.

Their number and their time are limited. At the limit, the oldest makes room for a new one: clients
that authenticate within milliseconds get in, however many others stall.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .connection import Connection
    from .tls_listener import TlsHandshake


class Unauthenticated:
    """Unauthenticated connections with their deadlines, oldest first."""

    def __init__(self) -> None:
        self._deadlines: dict[Connection | TlsHandshake, float] = {}

    def __len__(self) -> int:
        return len(self._deadlines)

    def add(
        self, connection: Connection | TlsHandshake, deadline: float, max_count: int
    ) -> Connection | TlsHandshake | None:
        """Add a connection; return the one that has to be closed for it, if any."""
        evicted = None
        if len(self._deadlines) >= max_count:
            evicted = next(iter(self._deadlines))
            del self._deadlines[evicted]
        self._deadlines[connection] = deadline
        return evicted

    def discard(self, connection: Connection | TlsHandshake) -> None:
        """Remove a connection that has authenticated, or is closed."""
        self._deadlines.pop(connection, None)

    def expired(self, now: float) -> list[Connection | TlsHandshake]:
        """Return the connections whose time is over."""
        return [one for one, deadline in self._deadlines.items() if deadline < now]
