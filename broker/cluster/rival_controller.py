"""A second process with the controller's id: asks the other brokers before the controller starts.

The other brokers follow one process. If they say that the controller is alive before this one
serves, that is another process, with another data directory: both would lead the same partitions.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ottla.client.connection import BrokerConnection
from ottla.client.errors import ClientError
from ottla.protocol.api.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from ottla.protocol.errors import KafkaError
from ottla.storage.errors import DataDirectoryError

from .forwarding import client_config

if TYPE_CHECKING:
    from .membership import ClusterMembership

logger = logging.getLogger(__name__)

#: Maximum time that an unreachable broker delays the start.
_TIMEOUT_SECONDS = 1.0
_RETRY_SECONDS = 0.1


async def check_no_rival(cluster: ClusterMembership, cluster_id: str) -> None:
    """Wait until no other process is the controller. Raises DataDirectoryError after a while.

    Brokers may take a session to notice that an earlier process has ended.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 2 * cluster.session_seconds
    has_warned = False
    while (rival := await _find_rival(cluster, cluster_id)) is not None:
        reason = (
            f"Broker id {cluster.broker_id} is in use by another process: the other brokers follow"
            f" it as the controller, at {rival}. Stop that process, or give this one an id of its"
            " own"
        )
        if loop.time() > deadline:
            raise DataDirectoryError(reason)
        if not has_warned:
            has_warned = True
            logger.warning("waiting for the session of another process to end: %s", reason)
        await asyncio.sleep(_RETRY_SECONDS)


async def _find_rival(cluster: ClusterMembership, cluster_id: str) -> str | None:
    """Return the address at which another broker follows a controller, if any does."""
    others = [broker_id for broker_id in cluster.broker_ids if broker_id != cluster.broker_id]
    addresses = await asyncio.gather(*(_ask(cluster, other, cluster_id) for other in others))
    return next((address for address in addresses if address is not None), None)


async def _ask(cluster: ClusterMembership, broker_id: int, cluster_id: str) -> str | None:
    endpoint = cluster.endpoint_of(broker_id)
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            connection = await BrokerConnection.open(
                endpoint.host, endpoint.port, client_config(cluster.config)
            )
            try:
                response = await connection.send(DescribeClusterRequest(), DescribeClusterResponse)
            finally:
                connection.close()
    except (ClientError, KafkaError, TimeoutError):
        return None
    if response.cluster_id != cluster_id:
        return None
    for node in response.brokers:
        if node.broker_id == cluster.broker_id:
            return f"{node.host}:{node.port}"
    return None
