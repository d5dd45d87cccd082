"""The cluster: its brokers, and the API versions that they support."""

from __future__ import annotations

from collections.abc import Mapping

from ottla.protocol.api.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from ottla.protocol.api.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from ottla.protocol.registry import APIS, DESCRIBE_CLUSTER

from ..types import TopicPartition
from .requests import AdminRequests, Outcome, no_such_broker, outcome
from .results import ApiVersion, BrokerDescription, ClusterDescription, ReplicaLogDir

_WITH_FENCED_BROKERS = 2
_Found = tuple[TopicPartition, ReplicaLogDir]


class BrokersAdmin(AdminRequests):
    """Admin requests about brokers."""

    async def describe_cluster(self) -> ClusterDescription:
        """Return the brokers of the cluster, and which of them is the controller.

        Brokers that are down are included if the cluster lists them (DescribeCluster version 2).
        """

        async def attempt() -> ClusterDescription:
            metadata = await self._cluster.refresh([])
            controller = metadata.controller
            brokers = {
                node.id: BrokerDescription(*node, is_controller=node.id == controller)
                for node in metadata.nodes.values()
            }
            connection = await self._cluster.connect(-1)
            if connection.versions.get(DESCRIBE_CLUSTER.key, (0, 0))[1] >= _WITH_FENCED_BROKERS:
                response = await self._cluster.send_to_any(
                    DescribeClusterRequest(include_fenced_brokers=True), DescribeClusterResponse
                )
                for one in response.brokers:
                    if one.is_fenced:
                        brokers[one.broker_id] = BrokerDescription(
                            one.broker_id,
                            one.host,
                            one.port,
                            one.rack,
                            is_controller=one.broker_id == controller,
                            is_alive=False,
                        )
            ordered = tuple(brokers[broker_id] for broker_id in sorted(brokers))
            return ClusterDescription(metadata.cluster_id, controller, ordered)

        return await self._cluster.retry(attempt, what="describing the cluster")

    async def describe_log_dirs(self, *topics: str) -> dict[TopicPartition, list[ReplicaLogDir]]:
        """Return the directory and size of each replica, from all live brokers.

        Without topics, of all of them.
        """

        async def send(node_id: int, _: list[int]) -> Mapping[int, Outcome[list[_Found]]]:
            response = await self._cluster.send(
                node_id, DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse
            )
            found = [
                (
                    TopicPartition(topic.name, partition.partition_index),
                    ReplicaLogDir(node_id, result.log_dir, partition.partition_size),
                )
                for result in response.results
                for topic in result.topics
                if not topics or topic.name in topics
                for partition in topic.partitions
            ]
            return {node_id: outcome(response.error_code, None, found)}

        async def attempt(pending: list[int]) -> Mapping[int, Outcome[list[_Found]]]:
            return await self._by_node({node_id: node_id for node_id in pending}, send)

        brokers = [one.id for one in (await self.describe_cluster()).brokers if one.is_alive]
        replicas: dict[TopicPartition, list[ReplicaLogDir]] = {}
        for found in (await self._each(brokers, attempt, "describing log directories")).values():
            for tp, replica in found:
                replicas.setdefault(tp, []).append(replica)
        return replicas

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
