"""The brokers of the cluster, as this one sees them: who is up, and who is the controller.

A broker that is alone is its own controller, and knows no other.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from ..config.broker_config import BrokerConfig
from ..net.listeners import Endpoint
from .liveness import BrokerLiveness

if TYPE_CHECKING:
    from ..requests.dispatch import RequestContext


class Node(NamedTuple):
    """A broker, as clients are told of it."""

    id: int
    host: str
    port: int
    rack: str | None = None


class ClusterMembership:
    """Who there is."""

    def __init__(self, config: BrokerConfig) -> None:
        roster = config.cluster_file
        self.broker_id = config.broker_id
        #: All brokers, up or down.
        self.broker_ids = roster.broker_ids or (self.broker_id,)
        #: The broker that changes the metadata.
        self.controller_id = min(self.broker_ids)
        self.is_controller = self.broker_id == self.controller_id
        self._roster = roster
        self._config = config
        self._session_seconds = config.broker_session_timeout_ms / 1000
        others = [broker_id for broker_id in self.broker_ids if broker_id != self.broker_id]
        self.liveness = BrokerLiveness(others if self.is_controller else (), self._session_seconds)
        # What a broker that follows was told by the controller, and when.
        self._told = frozenset(self.broker_ids)
        self._told_at = time.monotonic()

    @property
    def alive(self) -> frozenset[int]:
        """The brokers that are up, as far as is known."""
        if self.is_controller:
            return self.liveness.alive | {self.broker_id}
        if time.monotonic() - self._told_at > self._session_seconds:
            # Nobody says who else is down by now, or up again.
            return frozenset(self.broker_ids) - {self.controller_id}
        return self._told

    @property
    def advertised_controller_id(self) -> int:
        """Whom clients are told to ask for changes.

        While the controller is down it is this broker: it can say so, and nobody else would.
        """
        return self.controller_id if self.controller_id in self.alive else self.broker_id

    @property
    def controller_endpoint(self) -> Endpoint:
        """Where the controller is for other brokers."""
        listener = self._config.inter_broker_listener
        return self._roster.brokers[self.controller_id][listener]

    def nodes(self, context: RequestContext) -> list[Node]:
        """Give the brokers that are up, with the addresses for whoever asks."""
        alive = self.alive
        return [
            self.node(broker_id, context) for broker_id in self.broker_ids if broker_id in alive
        ]

    def node(self, broker_id: int, context: RequestContext) -> Node:
        """Give a broker, with its address for whoever asks: by the listener that he came by."""
        if broker_id == self.broker_id:
            return Node(broker_id, *context.connection.advertised)
        address = self._roster.brokers[broker_id][context.connection.listener.name]
        return Node(broker_id, address.host, address.port)

    def update_alive(self, alive: Collection[int]) -> None:
        """Take note of what the controller says of who is up."""
        self._told = frozenset(alive) | {self.broker_id, self.controller_id}
        self._told_at = time.monotonic()

    def controller_unreachable(self) -> None:
        """Take note that the controller does not answer."""
        self._told_at = -math.inf

    async def wait_for_metadata(self, offset: int) -> None:
        """Wait until all brokers that are up have the metadata up to an offset."""
        await self.liveness.wait_for_offset(offset)
