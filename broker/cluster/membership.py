"""The brokers of the cluster as this broker sees them: which are alive, which is the controller.

The controller is the broker with the lowest id. A single broker is its own controller.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from ..config.broker_config import BrokerConfig
from ..net.listeners import Endpoint
from .incarnations import BrokerIncarnations
from .liveness import BrokerLiveness
from .sessions import BrokerSessions

if TYPE_CHECKING:
    from ..requests.dispatch import RequestContext


class Node(NamedTuple):
    """A broker as clients see it."""

    id: int
    host: str
    port: int
    rack: str | None = None


class ClusterMembership:
    """The static list of brokers, and which of them are alive."""

    def __init__(self, config: BrokerConfig) -> None:
        self._cluster_file = config.cluster_file
        self.broker_id = config.broker_id
        self._static_ids = self._cluster_file.broker_ids or (self.broker_id,)
        is_controller = self.broker_id == min(self._static_ids)
        self._config = config
        #: After this time without a heartbeat a broker is considered down.
        self.session_seconds = config.session_timeout_ms / 1000
        other_ids = [broker_id for broker_id in self._static_ids if broker_id != self.broker_id]
        #: The sessions of the other brokers, on the controller; empty elsewhere.
        self.liveness = BrokerLiveness(other_ids if is_controller else (), self.session_seconds)
        #: The processes of the other brokers, on the controller.
        self.sessions = BrokerSessions(self.liveness)
        #: The processes of the other brokers, as announced to this one.
        self.incarnations = BrokerIncarnations(self.session_seconds)
        #: The id of this process.
        self.incarnation = uuid4()
        # The controller's latest answer, elsewhere.
        self._reported_alive = frozenset(self._static_ids)
        self._reported_at = time.monotonic()

    @property
    def config(self) -> BrokerConfig:
        """The configs that this broker was started with."""
        return self._config

    @property
    def broker_ids(self) -> tuple[int, ...]:
        """The ids of all brokers, alive or not, sorted."""
        return self._static_ids

    @property
    def controller_id(self) -> int:
        """The id of the controller."""
        return self._static_ids[0]

    @property
    def is_controller(self) -> bool:
        """Whether this broker is the controller."""
        return self.broker_id == self.controller_id

    @property
    def alive(self) -> frozenset[int]:
        """The brokers that are alive, as far as this broker knows."""
        if self.is_controller:
            return self.liveness.alive | {self.broker_id}
        if time.monotonic() - self._reported_at > self.session_seconds:
            # The controller is down, and it alone knows about the others.
            return frozenset(self.broker_ids) - {self.controller_id}
        return self._reported_alive

    @property
    def advertised_controller_id(self) -> int:
        """The controller that clients are referred to.

        While the controller is down it is this broker, which answers that it is unavailable.
        """
        return self.controller_id if self.controller_id in self.alive else self.broker_id

    @property
    def controller_endpoint(self) -> Endpoint:
        """The controller's address for other brokers."""
        return self.endpoint_of(self.controller_id)

    def endpoint_of(self, broker_id: int) -> Endpoint:
        """Return the address of a broker for other brokers."""
        return self._cluster_file.brokers[broker_id][self._config.inter_broker_listener]

    def nodes(self, context: RequestContext, *, with_fenced: bool = False) -> list[Node]:
        """Return the live brokers, or all, with their addresses for the client of a request."""
        alive = self.alive
        return [
            self.node(broker_id, context)
            for broker_id in self.broker_ids
            if with_fenced or broker_id in alive
        ]

    def node(self, broker_id: int, context: RequestContext) -> Node:
        """Return a broker with its address on the listener that the client connected through."""
        if broker_id == self.broker_id:
            return Node(broker_id, *context.connection.advertised)
        endpoint = self._cluster_file.brokers[broker_id][context.connection.listener.name]
        return Node(broker_id, endpoint.host, endpoint.port)

    def known_nodes(self, broker_ids: Iterable[int], context: RequestContext) -> list[Node]:
        """Return those of some brokers whose addresses are known: a registration may have gone."""
        nodes = []
        for broker_id in broker_ids:
            with suppress(KeyError):
                nodes.append(self.node(broker_id, context))
        return nodes

    def update_alive(self, broker_ids: Collection[int]) -> None:
        """Record which brokers the controller reports as alive."""
        self._reported_alive = frozenset(broker_ids) | {self.broker_id, self.controller_id}
        self._reported_at = time.monotonic()

    def controller_unreachable(self) -> None:
        """Record that the controller does not answer."""
        self._reported_at = -math.inf

    def metadata_progress(self, broker_id: int) -> tuple[int, float | None]:
        """Return how far another broker has replayed the metadata, and how long ago it said so.

        Only the controller knows; -1 and None elsewhere.
        """
        liveness = self.liveness
        return liveness.metadata_offset(broker_id), liveness.seconds_since_heartbeat(broker_id)

    async def wait_for_metadata(self, offset: int) -> None:
        """Wait until all live brokers have replayed the metadata log up to an offset."""
        await self.liveness.wait_for_offset(offset)
