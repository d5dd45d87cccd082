"""Which process has which broker id, as this broker of a static cluster knows from announcements.

Each start of a broker is an incarnation, with a random id. The process announces itself to the
other brokers on open connections, again and again. Two processes with one broker id would lead the
same partitions:

- an incarnation is refused while another one of its broker has an open connection, and was heard
  within the session timeout;
- an incarnation that was replaced by another one, because it was not heard for a session, is
  refused for good: it was paused or unreachable, and has to exit.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol
from uuid import UUID

from ottla.protocol.errors import ErrorCode

from ..requests.errors import ApiError

#: How many of the replaced incarnations of a broker are remembered.
_MAX_REPLACED = 64


class AnnouncingConnection(Protocol):
    """The connection that a process announced itself on."""

    @property
    def is_open(self) -> bool:
        """Whether the process may still be there."""


class _Incarnation(NamedTuple):
    id: UUID
    address: str
    connection: AnnouncingConnection
    heard_at: float


class BrokerIncarnations:
    """The latest incarnation of each of the other brokers."""

    def __init__(self, session_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._session_seconds = session_seconds
        self._clock = clock
        self._latest: dict[int, _Incarnation] = {}
        self._replaced: dict[int, deque[UUID]] = {}

    def check(self, broker_id: int, incarnation: UUID) -> None:
        """Raise ApiError if a process must not act as a broker."""
        if incarnation in self._replaced.get(broker_id, ()):
            raise ApiError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"Broker id {broker_id} was taken by another process, at"
                f" {self._latest[broker_id].address}, while this one was paused or unreachable",
            )
        latest = self._latest.get(broker_id)
        if latest is None or latest.id == incarnation:
            return
        is_recent = self._clock() - latest.heard_at <= self._session_seconds
        if is_recent and latest.connection.is_open:
            raise process_exists(broker_id, latest.address)

    def record(
        self, broker_id: int, incarnation: UUID, address: str, connection: AnnouncingConnection
    ) -> None:
        """Record that a process acts as a broker. Raises ApiError if it must not."""
        self.check(broker_id, incarnation)
        latest = self._latest.get(broker_id)
        if latest is not None and latest.id != incarnation:
            self._replaced.setdefault(broker_id, deque(maxlen=_MAX_REPLACED)).append(latest.id)
        self._latest[broker_id] = _Incarnation(incarnation, address, connection, self._clock())


def process_exists(broker_id: int, address: str) -> ApiError:
    """Return the error for a second process with a broker id."""
    return ApiError(
        ErrorCode.DUPLICATE_BROKER_REGISTRATION,
        f"Broker id {broker_id} is in use by another process, at {address}",
    )
