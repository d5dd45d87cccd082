"""Rows of APIs that administer clusters, and of the consumer protocol; see authorization_rows."""

from __future__ import annotations

from harness.authorization_rows import (
    ALTER,
    CLUSTER,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    Names,
    Row,
    World,
    right,
)
from ottla.protocol import registry
from ottla.protocol.api.describe_quorum import (
    DescribeQuorumPartition,
    DescribeQuorumRequest,
    DescribeQuorumTopic,
)
from ottla.protocol.api.list_config_resources import ListConfigResourcesRequest
from ottla.protocol.api.unregister_broker import UnregisterBrokerRequest
from ottla.protocol.api.update_features import UpdateFeaturesRequest
from ottla.protocol.errors import ErrorCode


def _describe_quorum(_world: World, _names: Names, _version: int) -> DescribeQuorumRequest:
    partitions = [DescribeQuorumPartition(partition_index=0)]
    topic = DescribeQuorumTopic(topic_name="__cluster_metadata", partitions=partitions)
    return DescribeQuorumRequest(topics=[topic])


CLUSTER_ROWS: tuple[Row, ...] = (
    Row(registry.DESCRIBE_QUORUM, _describe_quorum, (right(DESCRIBE, CLUSTER),)),
    Row(
        registry.UPDATE_FEATURES,
        lambda _world, _names, _version: UpdateFeaturesRequest(),
        (right(ALTER, CLUSTER),),
    ),
    Row(
        registry.UNREGISTER_BROKER,
        lambda _world, _names, _version: UnregisterBrokerRequest(broker_id=99),
        (right(ALTER, CLUSTER),),
        tolerated=frozenset({ErrorCode.BROKER_ID_NOT_REGISTERED}),
    ),
    Row(
        registry.LIST_CONFIG_RESOURCES,
        lambda _world, _names, _version: ListConfigResourcesRequest(),
        (right(DESCRIBE_CONFIGS, CLUSTER),),
    ),
)
