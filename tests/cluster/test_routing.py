"""Three brokers: requests are served by the leader or coordinator, and metadata is the same."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from golden.corpus import Record
from harness import group_requests
from harness.clients.registry import with_every_client
from harness.daemon import partitions_on_disk
from harness.requests import (
    OK,
    create_topics_request,
    fetch_partition,
    leaders_of,
    metadata,
    produce_code,
    produce_value,
    send_request,
    try_alter_configs,
    try_create_partitions,
    try_create_topic,
    try_delete_topic,
)
from harness.wire import connect, fetch_request, fetched_partitions
from ottla.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from ottla.protocol.api.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.protocol.api.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.api.describe_cluster import DescribeClusterRequest
from ottla.protocol.api.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol.api.find_coordinator import FindCoordinatorRequest
from ottla.protocol.api.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.api.init_producer_id import InitProducerIdRequest
from ottla.protocol.api.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from ottla.protocol.api.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.errors import ErrorCode

BROKERS = [0, 1, 2]
NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER


@with_every_client("produce", "consume", "create_topic")
def test_clients_find_the_leader_of_each_partition(client, cluster, name):
    client.create_topic(name, 6)

    for index in range(6):
        rows = [Record(None, b"%d-%d" % (index, number), ()) for number in range(5)]
        client.produce(name, rows, partition=index)
    consumed = client.consume({(name, index): 0 for index in range(6)}, 30)

    for index in range(6):
        values = [row.value for row in consumed[name, index]]
        assert values == [b"%d-%d" % (index, number) for number in range(5)]
    on_disk = [partitions_on_disk(broker, name) for broker in cluster]
    assert sorted(map(len, on_disk)) == [2, 2, 2]
    assert set.union(*on_disk) == set(range(6))


@pytest.mark.parametrize("number", BROKERS)
async def test_a_topic_created_through_one_broker_is_on_all_brokers_at_once(cluster, number, name):
    assert await try_create_topic(cluster[number], name) == OK

    leaders = [await leaders_of(broker, name) for broker in cluster]
    assert leaders[0] == leaders[1] == leaders[2]
    assert Counter(leaders[0]) == {0: 2, 1: 2, 2: 2}
    for index, leader in enumerate(leaders[0]):
        assert await produce_code(cluster[leader], name, index) == ErrorCode.NONE


@pytest.mark.parametrize("number", BROKERS)
async def test_changes_through_one_broker_apply_to_all_brokers(cluster, number, name):
    broker = cluster[number]
    assert await try_create_topic(broker, name, 2) == OK

    assert await try_create_partitions(broker, name, 5) == OK
    assert await try_alter_configs(broker, 2, name, {"retention.ms": "12345"}) == OK

    for other in cluster:
        leaders = await leaders_of(other, name)
        assert leaders is not None
        assert len(leaders) == 5
        assert await config_of(other, 2, name, "retention.ms") == "12345"
    assert [len(partitions_on_disk(other, name)) for other in cluster] == [
        leaders.count(other) for other in BROKERS
    ]

    assert await try_delete_topic(broker, name) == OK

    for other in cluster:
        assert await leaders_of(other, name) is None
        assert partitions_on_disk(other, name) == set()


async def config_of(broker, resource_type, resource, key):
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(
                resource_type=resource_type, resource_name=resource, configuration_keys=[key]
            )
        ]
    )
    [result] = (await send_request(broker, request)).results
    return {entry.name: entry.value for entry in result.configs}[key]


@pytest.mark.parametrize("number", BROKERS)
async def test_broker_configs_are_altered_through_any_broker(cluster, number):
    other = (number + 1) % 3
    value = str(600_000 + number)

    changed = await try_alter_configs(
        cluster[other], 4, str(number), {"log.retention.check.interval.ms": value}
    )

    assert changed == OK
    current = await config_of(cluster[number], 4, str(number), "log.retention.check.interval.ms")
    assert current == value


async def test_every_broker_returns_the_same_errors(cluster, name):
    for broker in cluster:
        assert (await try_create_topic(broker, "no/name", 1))[
            0
        ] == ErrorCode.INVALID_TOPIC_EXCEPTION
        code, message = await try_create_topic(broker, name, leaders=[0, 7])
        assert code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert message == "Invalid replicas [7]: expected one of the brokers 0, 1, 2"
        assert (await try_delete_topic(broker, "nowhere"))[
            0
        ] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await try_alter_configs(broker, 2, name, {}))[
            0
        ] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_partitions_are_created_on_their_assigned_brokers(cluster, name):
    assert await try_create_topic(cluster[2], name, leaders=[2, 2, 0]) == OK

    assert await leaders_of(cluster[1], name) == [2, 2, 0]
    assert [partitions_on_disk(broker, name) for broker in cluster] == [{2}, set(), {0, 1}]


async def test_leaders_are_assigned_round_robin_across_topics(cluster, name):
    for number in range(12):
        assert await try_create_topic(cluster[number % 3], f"{name}-{number}", 1) == OK

    leaders = [await leaders_of(cluster[0], f"{name}-{number}") for number in range(12)]

    assert Counter(leader for [leader] in leaders) == {0: 4, 1: 4, 2: 4}


@pytest.mark.parametrize("number", BROKERS)
async def test_any_broker_auto_creates_a_topic(cluster, number, name):
    [topic] = (await metadata(cluster[number], name, create=True)).topics

    assert topic.error_code == ErrorCode.NONE
    assert [await leaders_of(broker, name) for broker in cluster] == 3 * [
        [topic.partitions[0].leader_id]
    ]
    [refused] = (await metadata(cluster[number], "no/name", create=True)).topics
    assert refused.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_other_brokers_return_not_leader_and_the_leader(cluster, name):
    assert await try_create_topic(cluster[0], name, leaders=[1]) == OK

    for number in (0, 2):
        broker = cluster[number]
        for version in (3, 9, 10, 11, 13):
            answer = await produce_value(broker, name, 0, version=version)
            [result] = answer.responses[0].partition_responses
            assert result.error_code == NOT_LEADER
            if version >= 10:
                assert result.current_leader.leader_id == 1
                [node] = answer.node_endpoints
                assert (node.node_id, node.port) == (1, cluster[1].port)
        for version in (4, 11, 12, 13, 15, 16, 18):
            answer = await send_request(broker, fetch_request(0, topic=name), version)
            [data] = fetched_partitions(answer)
            assert data.error_code == NOT_LEADER
            assert data.current_leader.leader_id == (1 if version >= 12 else -1)
            nodes = [(node.node_id, node.port) for node in answer.node_endpoints]
            assert nodes == ([(1, cluster[1].port)] if version >= 16 else [])
        assert await list_offsets_code(broker, name) == NOT_LEADER
        assert await delete_records_code(broker, name) == NOT_LEADER
    assert await produce_code(cluster[1], name, 0) == ErrorCode.NONE
    assert (await fetch_partition(cluster[1], name, 0)).high_watermark == 1
    unknown = await fetch_partition(cluster[0], name, 1)
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def list_offsets_code(broker, name):
    partition = ListOffsetsPartition(partition_index=0, timestamp=-1)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=name, partitions=[partition])])
    return (await send_request(broker, request)).topics[0].partitions[0].error_code


async def delete_records_code(broker, name):
    partition = DeleteRecordsPartition(partition_index=0, offset=0)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=name, partitions=[partition])])
    return (await send_request(broker, request)).topics[0].partitions[0].error_code


async def test_every_broker_describes_the_same_cluster(cluster):
    responses = [await send_request(broker, DescribeClusterRequest()) for broker in cluster]

    assert len({response.cluster_id for response in responses}) == 1
    for response in responses:
        assert response.controller_id == 0
        ports = {broker.broker_id: broker.port for broker in response.brokers}
        assert ports == {number: broker.port for number, broker in enumerate(cluster)}


@pytest.mark.parametrize("number", BROKERS)
async def test_a_forwarded_change_has_taken_effect_before_the_next_request(cluster, name, number):
    """Pipelined on one connection: create, look, alter, look, delete, look."""
    resource = DescribeConfigsResource(
        resource_type=2, resource_name=name, configuration_keys=["retention.ms"]
    )
    config = AlterableConfig(name="retention.ms", value="12345")
    altered = AlterConfigsResource(resource_type=2, resource_name=name, configs=[config])
    look = MetadataRequest(
        topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False
    )
    requests = [
        create_topics_request(name, 3),
        look,
        IncrementalAlterConfigsRequest(resources=[altered]),
        DescribeConfigsRequest(resources=[resource]),
        DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=10_000),
        look,
    ]
    async with connect(cluster[number].address) as client:
        for _ in range(5):
            for request in requests:
                client.send(request)
            _created, there, _altered, described, _deleted, gone = [
                await client.response() for _ in requests
            ]
            assert [topic.error_code for topic in there.topics] == [ErrorCode.NONE]
            assert len(there.topics[0].partitions) == 3
            assert described.results[0].configs[0].value == "12345"
            assert [topic.error_code for topic in gone.topics] == [
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            ]


async def test_producer_ids_are_unique_over_the_cluster(cluster):
    async def generate(broker):
        async with connect(broker.address) as client:
            return [
                (await client.request(InitProducerIdRequest(transactional_id=None))).producer_id
                for _ in range(1200)
            ]

    by_broker = await asyncio.gather(*map(generate, cluster))

    producer_ids = [producer_id for ids in by_broker for producer_id in ids]
    assert len(set(producer_ids)) == len(producer_ids) == 3600
    assert min(producer_ids) > 0


async def test_group_coordinators_are_spread_over_the_brokers(cluster, name):
    groups = [f"{name}-{number}" for number in range(60)]
    coordinators = Counter()
    for number, group in enumerate(groups):
        broker = cluster[number % 3]
        request = FindCoordinatorRequest(coordinator_keys=[group])
        [coordinator] = (await send_request(broker, request)).coordinators
        assert coordinator.error_code == ErrorCode.NONE
        assert coordinator.port == cluster[coordinator.node_id].port
        coordinators[coordinator.node_id] += 1
        for other in BROKERS:
            async with connect(cluster[other].address) as client:
                response = await group_requests.fetch(client, group, [])
            is_coordinator = other == coordinator.node_id
            expected = ErrorCode.NONE if is_coordinator else ErrorCode.NOT_COORDINATOR
            assert response.error_code == expected

    assert set(coordinators) == {0, 1, 2}
    assert min(coordinators.values()) > 5


async def test_the_sdk_works_with_any_bootstrap_broker(cluster, name):
    for number, broker in enumerate(cluster):
        topic = f"{name}-{number}"
        async with Admin(broker.address) as admin:
            await admin.create_topics(NewTopic(topic, 6))
        async with Producer(broker.address) as producer:
            for index in range(60):
                await producer.send(topic, b"%d" % index, key=b"%d" % index)
        async with Consumer(broker.address, topic, group=topic) as consumer:
            values = [(await consumer.getone()).value for _ in range(60)]
            await consumer.commit()
        assert sorted(map(int, values)) == list(range(60))
        async with Admin(broker.address) as admin:
            committed = await admin.list_group_offsets(topic)
            ends = await admin.end_offsets(topic)
        assert {tp: offset.offset for tp, offset in committed.items()} == ends
        assert {tp.partition for tp in ends} == set(range(6))
        assert TopicPartition(topic, 0) in ends


async def test_all_coordinators_discard_the_offsets_of_a_deleted_topic(cluster, name):
    groups = [f"{name}-{number}" for number in range(6)]
    assert await try_create_topic(cluster[1], name, 1) == OK
    async with Admin(cluster.bootstrap) as admin:
        for group in groups:
            await admin.alter_group_offsets(group, {TopicPartition(name, 0): 0})
        assert all([await admin.list_group_offsets(group) for group in groups])

        assert await try_delete_topic(cluster[2], name) == OK

        for group in groups:
            assert not await admin.list_group_offsets(group)


async def test_list_groups_returns_the_groups_of_all_brokers(cluster, name):
    groups = {f"{name}-{number}" for number in range(9)}
    assert await try_create_topic(cluster[1], name, 1) == OK
    async with Admin(cluster[1].address) as admin:
        for group in groups:
            await admin.alter_group_offsets(group, {TopicPartition(name, 0): 0})

        listed = {group.group_id for group in await admin.list_groups()}

    assert groups <= listed
