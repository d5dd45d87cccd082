"""DescribeCluster: one broker, which is the controller too."""

import pytest

from harness.brokers import broker_and_client
from ottla.protocol.api.describe_cluster import DescribeClusterRequest
from ottla.protocol.errors import ErrorCode
from ottla.protocol.registry import DESCRIBE_CLUSTER

BROKERS, CONTROLLERS = 1, 2


@pytest.mark.parametrize("version", [*DESCRIBE_CLUSTER.versions])
async def test_every_version_says_who_is_there(tmp_path, version):
    async with broker_and_client(tmp_path, {"broker.id": "5"}) as (broker, client):
        answer = await client.request(DescribeClusterRequest(), version)

        assert (answer.error_code, answer.error_message) == (ErrorCode.NONE, None)
        assert (answer.cluster_id, answer.controller_id) == (broker.cluster_id, 5)
        assert answer.endpoint_type == BROKERS
        [node] = answer.brokers
        assert (node.broker_id, f"{node.host}:{node.port}") == (5, broker.address)
        assert answer.cluster_authorized_operations == -(2**31)


async def test_who_asks_what_is_allowed_is_told_that_all_is(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        answer = await client.request(
            DescribeClusterRequest(include_cluster_authorized_operations=True)
        )

        allowed = answer.cluster_authorized_operations
        assert allowed == sum(1 << bit for bit in (5, 7, 8, 9, 10, 11, 12))


async def test_controllers_have_no_addresses_of_their_own(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        for endpoint_type, code in (
            (CONTROLLERS, ErrorCode.MISMATCHED_ENDPOINT_TYPE),
            (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
        ):
            answer = await client.request(DescribeClusterRequest(endpoint_type=endpoint_type))
            assert answer.error_code == code
            assert answer.error_message
