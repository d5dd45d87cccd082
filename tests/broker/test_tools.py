"""The APIs that only administrators' tools call, on a single broker."""

import logging

import pytest

from harness.brokers import broker_and_client
from harness.requests import create_topic
from ottla.protocol.api.describe_quorum import (
    DescribeQuorumPartition,
    DescribeQuorumRequest,
    DescribeQuorumTopic,
)
from ottla.protocol.api.list_config_resources import ListConfigResourcesRequest
from ottla.protocol.api.unregister_broker import UnregisterBrokerRequest
from ottla.protocol.api.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from ottla.protocol.errors import ErrorCode
from ottla.protocol.registry import DESCRIBE_QUORUM, UPDATE_FEATURES

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32


def quorum_request(*names):
    partitions = [DescribeQuorumPartition(partition_index=0)]
    return DescribeQuorumRequest(
        topics=[DescribeQuorumTopic(topic_name=name, partitions=partitions) for name in names]
    )


@pytest.mark.parametrize("version", [*DESCRIBE_QUORUM.versions])
async def test_the_controller_is_the_only_voter(tmp_path, version):
    async with broker_and_client(tmp_path, {"broker.id": "5"}) as (broker, client):
        response = await client.request(quorum_request("__cluster_metadata", "t"), version)

        [metadata], [other] = (topic.partitions for topic in response.topics)
        assert (metadata.error_code, metadata.leader_id) == (ErrorCode.NONE, 5)
        assert metadata.high_watermark == broker.topics.metadata_log.end_offset > 0
        [voter] = metadata.current_voters
        assert (voter.replica_id, voter.log_end_offset) == (5, metadata.high_watermark)
        assert list(metadata.observers) == []
        assert other.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if version >= 2:
            [node] = response.nodes
            [listener] = node.listeners
            assert f"{listener.host}:{listener.port}" == broker.address


@pytest.mark.parametrize("version", [*UPDATE_FEATURES.versions])
@pytest.mark.parametrize(
    ("name", "level", "code"),
    [
        ("transaction.version", 2, ErrorCode.NONE),
        ("transaction.version", 1, ErrorCode.INVALID_UPDATE_VERSION),
        ("teleportation", 1, ErrorCode.INVALID_UPDATE_VERSION),
    ],
)
async def test_features_keep_their_level(tmp_path, caplog, version, name, level, code):
    caplog.set_level(logging.INFO)
    async with broker_and_client(tmp_path) as (_broker, client):
        update = FeatureUpdateKey(feature=name, max_version_level=level)
        response = await client.request(UpdateFeaturesRequest(feature_updates=[update]), version)

        assert response.error_code == code
        assert (name in (response.error_message or "")) is (code != ErrorCode.NONE)
    is_logged = "Feature update refused" in caplog.text
    assert is_logged is (code != ErrorCode.NONE)


async def test_topics_and_brokers_have_configs(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t")

        async def listed(*types, version=1):
            request = ListConfigResourcesRequest(resource_types=types)
            response = await client.request(request, version)
            assert response.error_code == ErrorCode.NONE
            return {(one.resource_type, one.resource_name) for one in response.config_resources}

        everything = {(TOPIC, "t"), (BROKER, "0")}
        assert await listed() == everything
        assert await listed(TOPIC) == {(TOPIC, "t")}
        assert await listed(BROKER_LOGGER, CLIENT_METRICS, GROUP) == set()
        assert await listed(version=0) == set()
        response = await client.request(ListConfigResourcesRequest(resource_types=[7]))
        assert response.error_code == ErrorCode.UNSUPPORTED_VERSION


async def test_a_broker_is_not_unregistered(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        for broker_id, code in ((0, ErrorCode.INVALID_REQUEST), (7, 102)):
            response = await client.request(UnregisterBrokerRequest(broker_id=broker_id))
            assert response.error_code == code
            assert response.error_message
