"""Connections from this broker to the others, opened on demand and reopened when they are lost.

For requests between brokers that are not for the controller: transaction markers, and the
verification of transactions. They go over the inter-broker listener, which is all that the receiver
checks.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from ottla.client.connection import BrokerConnection
from ottla.client.errors import ClientError
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.schema import Message

from ..requests.errors import ApiError
from .forwarding import client_config

if TYPE_CHECKING:
    from .membership import ClusterMembership

M = TypeVar("M", bound=Message)

#: A request between brokers takes an fsync at most. A broker that takes longer is asked again.
_REQUEST_SECONDS = 10.0


class BrokerChannels:
    """One connection per broker."""

    def __init__(self, cluster: ClusterMembership) -> None:
        self._cluster = cluster
        self._config = client_config(cluster.config)
        self._connections: dict[int, BrokerConnection] = {}
        self._locks: dict[int, asyncio.Lock] = {}

    async def send(self, broker_id: int, request: Message, response: type[M], version: int) -> M:
        """Send a request to a broker and return the response. Raises ApiError if it is down."""
        try:
            connection = await self._connected(broker_id)
            return await connection.send(
                request, response, version=version, timeout=_REQUEST_SECONDS
            )
        except (ClientError, KafkaError) as error:
            raise ApiError(
                ErrorCode.BROKER_NOT_AVAILABLE, f"Broker {broker_id} is not available: {error}"
            ) from error

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()

    async def _connected(self, broker_id: int) -> BrokerConnection:
        async with self._locks.setdefault(broker_id, asyncio.Lock()):
            connection = self._connections.get(broker_id)
            if connection is None or not connection.is_open:
                endpoint = self._cluster.endpoint_of(broker_id)
                connection = await BrokerConnection.open(endpoint.host, endpoint.port, self._config)
                self._connections[broker_id] = connection
            return connection
