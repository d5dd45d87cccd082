"""DescribeCluster of a single broker, which is also the controller."""

import pytest

from harness.brokers import broker_and_client
from ottla.protocol.api.describe_cluster import DescribeClusterRequest
from ottla.protocol.errors import ErrorCode
from ottla.protocol.registry import DESCRIBE_CLUSTER

BROKERS, CONTROLLERS = 1, 2


@pytest.mark.parametrize("version", [*DESCRIBE_CLUSTER.versions])
async def test_brokers_and_controller_in_every_version(tmp_path, version):
    async with broker_and_client(tmp_path, {"broker.id": "5"}) as (broker, client):
        response = await client.request(DescribeClusterRequest(), version)

        assert (response.error_code, response.error_message) == (ErrorCode.NONE, None)
        assert (response.cluster_id, response.controller_id) == (broker.cluster_id, 5)
        assert response.endpoint_type == BROKERS
        [node] = response.brokers
        assert (node.broker_id, f"{node.host}:{node.port}") == (5, broker.address)
        assert response.cluster_authorized_operations == -(2**31)


async def test_authorized_operations_are_complete_on_request(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        response = await client.request(
            DescribeClusterRequest(include_cluster_authorized_operations=True)
        )

        allowed = response.cluster_authorized_operations
        assert allowed == sum(1 << bit for bit in (5, 7, 8, 9, 10, 11, 12))


async def test_only_endpoint_type_brokers_is_supported(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        for endpoint_type, code in (
            (CONTROLLERS, ErrorCode.MISMATCHED_ENDPOINT_TYPE),
            (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
        ):
            response = await client.request(DescribeClusterRequest(endpoint_type=endpoint_type))
            assert response.error_code == code
            assert response.error_message
