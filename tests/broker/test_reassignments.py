"""Reassignments and elections without a metadata store: what Kafka answers for one replica."""

from __future__ import annotations

import pytest

from harness.brokers import broker_and_client
from harness.requests import create_topics_request
from ottla.protocol.api.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.protocol.api.elect_leaders import ElectLeadersRequest, TopicPartitions
from ottla.protocol.api.list_partition_reassignments import ListPartitionReassignmentsRequest
from ottla.protocol.errors import ErrorCode
from ottla.protocol.registry import ALTER_PARTITION_REASSIGNMENTS, ELECT_LEADERS

TARGETS = {
    "nothing to do": ("t", 0, [5], ErrorCode.NONE, None),
    "another broker": (
        *("t", 1, [6], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        "Invalid replicas [6]: expected one of the brokers 5",
    ),
    "two replicas": (
        *("t", 0, [5, 5], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        "Invalid replicas [5, 5]: partitions cannot be moved without a metadata store: set"
        " cluster.store",
    ),
    "no replicas": (
        *("t", 0, [], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        "Invalid replicas []: expected one of the brokers 5",
    ),
    "a cancellation": (
        *("t", 0, None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        "t-0 is not being reassigned",
    ),
    "an unknown partition": ("t", 2, [5], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ...),
    "an unknown topic": ("u", 0, [5], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ...),
}


@pytest.mark.parametrize("version", [*ALTER_PARTITION_REASSIGNMENTS.versions])
async def test_reassignments_of_a_static_cluster(tmp_path, version):
    async with broker_and_client(tmp_path, {"broker.id": "5"}) as (_broker, client):
        await client.request(create_topics_request("t", 2))
        for name, index, replicas, code, message in TARGETS.values():
            response = await client.request(
                AlterPartitionReassignmentsRequest(
                    topics=[
                        ReassignableTopic(
                            name=name,
                            partitions=[
                                ReassignablePartition(partition_index=index, replicas=replicas)
                            ],
                        )
                    ]
                ),
                version,
            )
            assert response.error_code == ErrorCode.NONE
            [result] = response.responses[0].partitions
            assert (result.partition_index, result.error_code) == (index, code)
            if message is not ...:
                assert result.error_message == message
        response = await client.request(ListPartitionReassignmentsRequest())
        assert (response.error_code, list(response.topics)) == (ErrorCode.NONE, [])


@pytest.mark.parametrize("version", [*ELECT_LEADERS.versions])
async def test_elections_of_a_static_cluster(tmp_path, version):
    async with broker_and_client(tmp_path) as (_broker, client):
        await client.request(create_topics_request("t", 1))
        for kind in (0, 1)[: 1 if version == 0 else 2]:
            response = await client.request(
                ElectLeadersRequest(
                    election_type=kind,
                    topic_partitions=[TopicPartitions(topic="t", partitions=[0, 1])],
                ),
                version,
            )
            [topic] = response.replica_election_results
            assert [one.error_code for one in topic.partition_result] == [
                ErrorCode.ELECTION_NOT_NEEDED,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ]
            response = await client.request(
                ElectLeadersRequest(election_type=kind, topic_partitions=None), version
            )
            assert [list(one.partition_result) for one in response.replica_election_results] == [[]]
