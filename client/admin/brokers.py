"""The cluster: its brokers, and the API versions that they support."""

from __future__ import annotations

from ottla.protocol.registry import APIS

from .requests import AdminRequests, no_such_broker
from .results import ApiVersion, BrokerDescription, ClusterDescription


class BrokersAdmin(AdminRequests):
    """Admin requests about brokers."""

    async def describe_cluster(self) -> ClusterDescription:
        """Return the brokers of the cluster, and which of them is the controller."""

        async def attempt() -> ClusterDescription:
            metadata = await self._cluster.refresh([])
            return ClusterDescription(
                metadata.cluster_id,
                metadata.controller,
                tuple(
                    BrokerDescription(*node, is_controller=node.id == metadata.controller)
                    for _id, node in sorted(metadata.nodes.items())
                ),
            )

        return await self._cluster.retry(attempt, what="describing the cluster")

    async def api_versions(self, broker: int | None = None) -> list[ApiVersion]:
        """Return the APIs of a broker, or of any, with their versions and the one we would use."""

        async def attempt() -> list[ApiVersion]:
            if broker is not None and broker not in (known := await self._known_brokers()):
                raise no_such_broker(broker, known)
            connection = await self._cluster.connect(-1 if broker is None else broker)
            return [
                _api_version(key, first, last)
                for key, (first, last) in sorted(connection.versions.items())
            ]

        return await self._cluster.retry(attempt, what="requesting API versions")


def _api_version(key: int, first: int, last: int) -> ApiVersion:
    api = APIS.get(key)
    if api is None:
        return ApiVersion(key, "", first, last, None)
    newest = min(last, api.versions.last)
    is_shared = newest >= max(first, api.versions.first)
    return ApiVersion(key, api.name, first, last, newest if is_shared else None)
