"""The cluster itself: its brokers, and what they speak."""

from __future__ import annotations

from ottla.protocol.registry import APIS

from .requests import AdminRequests, no_such_broker
from .results import ApiVersion, BrokerDescription, ClusterDescription


class BrokersAdmin(AdminRequests):
    """What an admin can be told of brokers."""

    async def describe_cluster(self) -> ClusterDescription:
        """Give the brokers that there are."""

        async def attempt() -> ClusterDescription:
            known = await self._cluster.refresh([])
            return ClusterDescription(
                known.cluster_id,
                known.controller,
                tuple(
                    BrokerDescription(*node, is_controller=node.id == known.controller)
                    for _id, node in sorted(known.nodes.items())
                ),
            )

        return await self._cluster.retry(attempt, what="describing the cluster")

    async def api_versions(self, broker: int | None = None) -> list[ApiVersion]:
        """Give the apis that a broker serves, or any, and the versions that we would take."""

        async def attempt() -> list[ApiVersion]:
            if broker is not None and broker not in (known := await self._known_brokers()):
                raise no_such_broker(broker, known)
            connection = await self._cluster.connect(-1 if broker is None else broker)
            return [
                _api_version(key, first, last)
                for key, (first, last) in sorted(connection.versions.items())
            ]

        return await self._cluster.retry(attempt, what="asking for versions")


def _api_version(key: int, first: int, last: int) -> ApiVersion:
    api = APIS.get(key)
    if api is None:
        return ApiVersion(key, "", first, last, None)
    newest = min(last, api.versions.last)
    is_shared = newest >= max(first, api.versions.first)
    return ApiVersion(key, api.name, first, last, newest if is_shared else None)
