"""Broker sessions on the controller: which process may act as which broker.

A broker registers on each connection to the controller, with an incarnation id: a random id of its
process. Requests between brokers are accepted only on connections that registered, over the
inter-broker listener. A second process with the same broker id is refused while the first one has
an open connection and sends heartbeats: both would lead the same partitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

if TYPE_CHECKING:
    from ..net.connection import Connection
    from .liveness import BrokerLiveness


class BrokerSession(NamedTuple):
    """One process of a broker, and the connections on which it registered."""

    incarnation: UUID
    connections: set[Connection]


class BrokerSessions:
    """The sessions of the other brokers, by broker id."""

    def __init__(self, liveness: BrokerLiveness) -> None:
        self._liveness = liveness
        self._sessions: dict[int, BrokerSession] = {}

    def rival_of(self, broker_id: int, incarnation: UUID) -> str | None:
        """Return the address of another live process of a broker; None if there is none."""
        session = self._sessions.get(broker_id)
        if session is None or session.incarnation == incarnation:
            return None
        if broker_id not in self._liveness.alive:
            return None
        return next((one.peer for one in session.connections if one.is_open), None)

    def register(self, broker_id: int, incarnation: UUID, connection: Connection) -> None:
        """Let a connection act as a broker, and no longer those of another process."""
        session = self._sessions.get(broker_id)
        if session is None or session.incarnation != incarnation:
            session = self._sessions[broker_id] = BrokerSession(incarnation, set())
        closed = {one for one in session.connections if not one.is_open}
        session.connections.difference_update(closed)
        session.connections.add(connection)

    def is_registered(self, broker_id: int, connection: Connection) -> bool:
        """Whether a connection may act as a broker."""
        session = self._sessions.get(broker_id)
        return session is not None and connection in session.connections
