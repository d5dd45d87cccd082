"""The brokers of a cluster with a metadata store: those that are registered in it.

A broker is alive while its registration exists and is not fenced. While the store is unreachable
nothing changes: nobody can be registered, and no lease ends.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from ottla.protocol.errors import ErrorCode

from ..net.listeners import Endpoint, parse_endpoint
from ..requests.errors import ApiError
from .membership import ClusterMembership, Node

if TYPE_CHECKING:
    from ottla.coord.metadata_image import MetadataImage

    from ..config.broker_config import BrokerConfig
    from ..requests.dispatch import RequestContext

#: The controller of a cluster that has none.
NO_CONTROLLER = -1
#: How often a wait looks for brokers that are no longer alive.
_CHECK_SECONDS = 0.1


class StoreMembership(ClusterMembership):
    """The registered brokers, as this broker has replayed them."""

    def __init__(self, config: BrokerConfig) -> None:
        super().__init__(config)
        self._image: MetadataImage | None = None
        # What other brokers have reported to this controller.
        self._revisions: dict[int, int] = {}
        self._heartbeat_received = asyncio.Event()

    def use_image(self, image: MetadataImage) -> None:
        """Take the brokers from an image from now on."""
        self._image = image

    @property
    def broker_ids(self) -> tuple[int, ...]:
        """The ids of all registered brokers, and of this one."""
        registered = () if self._image is None else self._image.registrations
        return tuple(sorted({*registered, self.broker_id}))

    @property
    def controller_id(self) -> int:
        """The id of the controller; NO_CONTROLLER while there is none."""
        controller = None if self._image is None else self._image.active_controller
        return NO_CONTROLLER if controller is None else controller.broker_id

    @property
    def is_controller(self) -> bool:
        """Whether this broker is the controller, as far as it knows: transactions check it."""
        return self.controller_id == self.broker_id

    @property
    def alive(self) -> frozenset[int]:
        """The brokers that are registered and not fenced, and this one."""
        registrations = {} if self._image is None else self._image.registrations
        up = (broker_id for broker_id, one in registrations.items() if one.state != "fenced")
        return frozenset((*up, self.broker_id))

    def endpoint_of(self, broker_id: int) -> Endpoint:
        """Return the address of a broker for other brokers. Raises ApiError if it is down."""
        try:
            return self._endpoint(broker_id, self._config.inter_broker_listener)
        except KeyError:
            reason = f"Broker {broker_id} is not registered"
            if broker_id == NO_CONTROLLER:
                reason = "The cluster has no controller at the moment"
            raise ApiError(ErrorCode.BROKER_NOT_AVAILABLE, reason) from None

    def nodes(self, context: RequestContext, *, with_fenced: bool = False) -> list[Node]:
        """Return the live brokers with their addresses for the client of a request.

        A broker without a listener of that name cannot be reached by the client.
        """
        return self.known_nodes(self.broker_ids if with_fenced else sorted(self.alive), context)

    def node(self, broker_id: int, context: RequestContext) -> Node:
        """Return a broker with its address on the listener that the client connected through."""
        if broker_id == self.broker_id:
            return Node(broker_id, *context.connection.advertised, self._config.broker_rack or None)
        endpoint = self._endpoint(broker_id, context.connection.listener.name)
        assert self._image is not None
        rack = self._image.registrations[broker_id].rack
        return Node(broker_id, endpoint.host, endpoint.port, rack)

    def record_heartbeat(self, broker_id: int, revision: int) -> None:
        """Record the revision up to which another broker has replayed the store."""
        self._revisions[broker_id] = revision
        self._heartbeat_received.set()

    def metadata_progress(self, broker_id: int) -> tuple[int, float | None]:
        """Return the revision up to which another broker has replayed the store."""
        return self._revisions.get(broker_id, -1), None

    async def wait_for_metadata(self, offset: int) -> None:
        """Wait until all live brokers have replayed a revision of the store, at most a session."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.session_seconds):
                while self._is_any_behind(offset):
                    self._heartbeat_received.clear()
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._heartbeat_received.wait(), _CHECK_SECONDS)

    def _is_any_behind(self, revision: int) -> bool:
        others = self.alive - {self.broker_id}
        return any(self._revisions.get(broker_id, -1) < revision for broker_id in others)

    def _endpoint(self, broker_id: int, listener: str) -> Endpoint:
        registrations = {} if self._image is None else self._image.registrations
        address = registrations[broker_id].listeners[listener]
        return parse_endpoint("registration", f"{listener}://{address}")
