"""Rows of APIs that administer clusters, and of the consumer protocol; see authorization_rows."""

from __future__ import annotations

from harness.authorization_rows import (
    ALTER,
    CLUSTER,
    CLUSTER_ACTION,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    GROUP,
    READ,
    TOPIC,
    Names,
    Row,
    World,
    right,
)
from ottla.protocol import registry
from ottla.protocol.api.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.protocol.api.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from ottla.protocol.api.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from ottla.protocol.api.consumer_group_describe import ConsumerGroupDescribeRequest
from ottla.protocol.api.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from ottla.protocol.api.describe_quorum import (
    DescribeQuorumPartition,
    DescribeQuorumRequest,
    DescribeQuorumTopic,
)
from ottla.protocol.api.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
)
from ottla.protocol.api.elect_leaders import ElectLeadersRequest
from ottla.protocol.api.elect_leaders import TopicPartitions as ElectedPartitions
from ottla.protocol.api.envelope import EnvelopeRequest
from ottla.protocol.api.list_config_resources import ListConfigResourcesRequest
from ottla.protocol.api.list_partition_reassignments import ListPartitionReassignmentsRequest
from ottla.protocol.api.unregister_broker import UnregisterBrokerRequest
from ottla.protocol.api.update_features import UpdateFeaturesRequest
from ottla.protocol.errors import ErrorCode


def _alter_scram_credentials(
    _world: World, _names: Names, _version: int
) -> AlterUserScramCredentialsRequest:
    upsertion = ScramCredentialUpsertion(
        name="somebody", mechanism=1, iterations=4096, salt=bytes(16), salted_password=bytes(32)
    )
    return AlterUserScramCredentialsRequest(upsertions=[upsertion])


def _alter_replica_log_dirs(
    world: World, names: Names, _version: int
) -> AlterReplicaLogDirsRequest:
    topics = [AlterReplicaLogDirTopic(name=names.topic, partitions=[0])]
    path = str(world.broker.logs.path.absolute())
    return AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=topics)])


def _elect_leaders(_world: World, names: Names, _version: int) -> ElectLeadersRequest:
    partitions = [ElectedPartitions(topic=names.topic, partitions=[0])]
    return ElectLeadersRequest(topic_partitions=partitions)


def _alter_reassignments(
    _world: World, names: Names, _version: int
) -> AlterPartitionReassignmentsRequest:
    partition = ReassignablePartition(partition_index=0, replicas=[0])
    topics = [ReassignableTopic(name=names.topic, partitions=[partition])]
    return AlterPartitionReassignmentsRequest(topics=topics)


def _describe_quorum(_world: World, _names: Names, _version: int) -> DescribeQuorumRequest:
    partitions = [DescribeQuorumPartition(partition_index=0)]
    topic = DescribeQuorumTopic(topic_name="__cluster_metadata", partitions=partitions)
    return DescribeQuorumRequest(topics=[topic])


def _consumer_group_heartbeat(
    _world: World, names: Names, _version: int
) -> ConsumerGroupHeartbeatRequest:
    # Of no member: nobody joins.
    return ConsumerGroupHeartbeatRequest(
        group_id=names.group,
        member_id="m",
        member_epoch=5,
        subscribed_topic_names=[names.topic],
    )


CLUSTER_ROWS: tuple[Row, ...] = (
    Row(
        registry.ENVELOPE,
        lambda _world, _names, _version: EnvelopeRequest(request_data=b"", client_host_address=b""),
        (right(CLUSTER_ACTION, CLUSTER),),
        # A broker on its own has no inter-broker listener.
        tolerated=frozenset({ErrorCode.CLUSTER_AUTHORIZATION_FAILED}),
    ),
    Row(
        registry.DESCRIBE_USER_SCRAM_CREDENTIALS,
        lambda _world, _names, _version: DescribeUserScramCredentialsRequest(users=None),
        (right(DESCRIBE, CLUSTER),),
    ),
    Row(registry.ALTER_USER_SCRAM_CREDENTIALS, _alter_scram_credentials, (right(ALTER, CLUSTER),)),
    Row(
        registry.ELECT_LEADERS,
        _elect_leaders,
        (right(ALTER, CLUSTER),),
        tolerated=frozenset({ErrorCode.ELECTION_NOT_NEEDED}),
    ),
    Row(registry.ALTER_PARTITION_REASSIGNMENTS, _alter_reassignments, (right(ALTER, CLUSTER),)),
    Row(
        registry.LIST_PARTITION_REASSIGNMENTS,
        lambda _world, _names, _version: ListPartitionReassignmentsRequest(topics=None),
        (right(DESCRIBE, CLUSTER),),
    ),
    Row(registry.ALTER_REPLICA_LOG_DIRS, _alter_replica_log_dirs, (right(ALTER, CLUSTER),)),
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
    Row(
        registry.CONSUMER_GROUP_HEARTBEAT,
        _consumer_group_heartbeat,
        (right(READ, GROUP), right(DESCRIBE, TOPIC)),
        tolerated=frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND}),
    ),
    Row(
        registry.CONSUMER_GROUP_DESCRIBE,
        lambda _world, names, _version: ConsumerGroupDescribeRequest(group_ids=[names.group]),
        (right(DESCRIBE, GROUP),),
        # It is a classic one.
        tolerated=frozenset({ErrorCode.GROUP_ID_NOT_FOUND}),
    ),
)
