"""Three brokers: whoever is asked, each partition is its owner's, and all say the same."""

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
from harness.wire import connect
from ottla.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from ottla.protocol.api.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.protocol.api.describe_cluster import DescribeClusterRequest
from ottla.protocol.api.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol.api.find_coordinator import FindCoordinatorRequest
from ottla.protocol.api.init_producer_id import InitProducerIdRequest
from ottla.protocol.api.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from ottla.protocol.errors import ErrorCode

BROKERS = [0, 1, 2]
NOT_OWNER = ErrorCode.NOT_LEADER_OR_FOLLOWER


@with_every_client("produce", "consume", "create_topic")
def test_clients_find_the_owner_of_each_partition(client, cluster, name):
    client.create_topic(name, 6)

    for index in range(6):
        rows = [Record(None, b"%d-%d" % (index, number), ()) for number in range(5)]
        client.produce(name, rows, partition=index)
    found = client.consume({(name, index): 0 for index in range(6)}, 30)

    for index in range(6):
        values = [row.value for row in found[name, index]]
        assert values == [b"%d-%d" % (index, number) for number in range(5)]
    spread = [partitions_on_disk(broker, name) for broker in cluster]
    assert sorted(map(len, spread)) == [2, 2, 2]
    assert set.union(*spread) == set(range(6))


@pytest.mark.parametrize("number", BROKERS)
async def test_a_topic_made_through_one_broker_is_there_on_all_at_once(cluster, number, name):
    assert await try_create_topic(cluster[number], name) == OK

    seen = [await leaders_of(broker, name) for broker in cluster]
    assert seen[0] == seen[1] == seen[2]
    assert Counter(seen[0]) == {0: 2, 1: 2, 2: 2}
    for index, owner in enumerate(seen[0]):
        assert await produce_code(cluster[owner], name, index) == ErrorCode.NONE


@pytest.mark.parametrize("number", BROKERS)
async def test_changes_through_one_broker_count_on_all(cluster, number, name):
    broker = cluster[number]
    assert await try_create_topic(broker, name, 2) == OK

    assert await try_create_partitions(broker, name, 5) == OK
    assert await try_alter_configs(broker, 2, name, {"retention.ms": "12345"}) == OK

    for other in cluster:
        found = await leaders_of(other, name)
        assert found is not None
        assert len(found) == 5
        assert await config_of(other, 2, name, "retention.ms") == "12345"
    assert [len(partitions_on_disk(other, name)) for other in cluster] == [
        found.count(other) for other in BROKERS
    ]

    assert await try_delete_topic(broker, name) == OK

    for other in cluster:
        assert await leaders_of(other, name) is None
        assert partitions_on_disk(other, name) == set()


async def config_of(broker, kind, resource, key):
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(
                resource_type=kind, resource_name=resource, configuration_keys=[key]
            )
        ]
    )
    [result] = (await send_request(broker, request)).results
    return {entry.name: entry.value for entry in result.configs}[key]


@pytest.mark.parametrize("number", BROKERS)
async def test_settings_of_a_broker_are_changed_through_any(cluster, number):
    other = (number + 1) % 3
    value = str(600_000 + number)

    changed = await try_alter_configs(
        cluster[other], 4, str(number), {"log.retention.check.interval.ms": value}
    )

    assert changed == OK
    found = await config_of(cluster[number], 4, str(number), "log.retention.check.interval.ms")
    assert found == value


async def test_what_cannot_be_is_refused_the_same_way_everywhere(cluster, name):
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


async def test_partitions_are_where_they_were_assigned(cluster, name):
    assert await try_create_topic(cluster[2], name, leaders=[2, 2, 0]) == OK

    assert await leaders_of(cluster[1], name) == [2, 2, 0]
    assert [partitions_on_disk(broker, name) for broker in cluster] == [{2}, set(), {0, 1}]


async def test_turns_go_on_from_topic_to_topic(cluster, name):
    for number in range(12):
        assert await try_create_topic(cluster[number % 3], f"{name}-{number}", 1) == OK

    found = [await leaders_of(cluster[0], f"{name}-{number}") for number in range(12)]

    assert Counter(owner for [owner] in found) == {0: 4, 1: 4, 2: 4}


@pytest.mark.parametrize("number", BROKERS)
async def test_a_topic_that_is_asked_for_is_made_whoever_is_asked(cluster, number, name):
    [topic] = (await metadata(cluster[number], name, create=True)).topics

    assert topic.error_code == ErrorCode.NONE
    assert [await leaders_of(broker, name) for broker in cluster] == 3 * [
        [topic.partitions[0].leader_id]
    ]
    [refused] = (await metadata(cluster[number], "no/name", create=True)).topics
    assert refused.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_who_is_not_the_owner_says_who_is(cluster, name):
    assert await try_create_topic(cluster[0], name, leaders=[1]) == OK

    for stranger in (0, 2):
        broker = cluster[stranger]
        for version in (3, 9, 10, 11):
            answer = await produce_value(broker, name, 0, version=version)
            [result] = answer.responses[0].partition_responses
            assert result.error_code == NOT_OWNER
            if version >= 10:
                assert result.current_leader.leader_id == 1
                [node] = answer.node_endpoints
                assert (node.node_id, node.port) == (1, cluster[1].port)
        for version in (4, 11, 12):
            data = await fetch_partition(broker, name, 0, version=version)
            assert data.error_code == NOT_OWNER
            assert data.current_leader.leader_id == (1 if version >= 12 else -1)
        assert await listed(broker, name) == NOT_OWNER
        assert await emptied(broker, name) == NOT_OWNER
    assert await produce_code(cluster[1], name, 0) == ErrorCode.NONE
    assert (await fetch_partition(cluster[1], name, 0)).high_watermark == 1
    unknown = await fetch_partition(cluster[0], name, 1)
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def listed(broker, name):
    asked = ListOffsetsPartition(partition_index=0, timestamp=-1)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=name, partitions=[asked])])
    return (await send_request(broker, request)).topics[0].partitions[0].error_code


async def emptied(broker, name):
    asked = DeleteRecordsPartition(partition_index=0, offset=0)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=name, partitions=[asked])])
    return (await send_request(broker, request)).topics[0].partitions[0].error_code


async def test_all_know_the_cluster(cluster):
    answers = [await send_request(broker, DescribeClusterRequest()) for broker in cluster]

    assert len({answer.cluster_id for answer in answers}) == 1
    for answer in answers:
        assert answer.controller_id == 0
        known = {broker.broker_id: broker.port for broker in answer.brokers}
        assert known == {number: broker.port for number, broker in enumerate(cluster)}


async def test_producer_ids_are_unique_over_the_cluster(cluster):
    async def some(broker):
        async with connect(broker.address) as client:
            return [
                (await client.request(InitProducerIdRequest(transactional_id=None))).producer_id
                for _ in range(1200)
            ]

    found = await asyncio.gather(*map(some, cluster))

    every = [producer_id for ids in found for producer_id in ids]
    assert len(set(every)) == len(every) == 3600
    assert min(every) > 0


async def test_groups_are_spread_over_the_brokers(cluster, name):
    groups = [f"{name}-{number}" for number in range(60)]
    owners = Counter()
    for number, group in enumerate(groups):
        broker = cluster[number % 3]
        request = FindCoordinatorRequest(coordinator_keys=[group])
        [found] = (await send_request(broker, request)).coordinators
        assert found.error_code == ErrorCode.NONE
        assert found.port == cluster[found.node_id].port
        owners[found.node_id] += 1
        for other in BROKERS:
            async with connect(cluster[other].address) as client:
                answer = await group_requests.fetch(client, group, [])
            right = ErrorCode.NONE if other == found.node_id else ErrorCode.NOT_COORDINATOR
            assert answer.error_code == right

    assert set(owners) == {0, 1, 2}
    assert min(owners.values()) > 5


async def test_the_sdk_works_whichever_broker_it_is_told_of(cluster, name):
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
        assert {place: one.offset for place, one in committed.items()} == ends
        assert {place.partition for place in ends} == set(range(6))
        assert TopicPartition(topic, 0) in ends


async def test_offsets_of_a_topic_that_is_gone_are_forgotten_by_all_coordinators(cluster, name):
    groups = [f"{name}-{number}" for number in range(6)]
    assert await try_create_topic(cluster[1], name, 1) == OK
    async with Admin(cluster.bootstrap) as admin:
        for group in groups:
            await admin.alter_group_offsets(group, {TopicPartition(name, 0): 0})
        assert all([await admin.list_group_offsets(group) for group in groups])

        assert await try_delete_topic(cluster[2], name) == OK

        for group in groups:
            assert not await admin.list_group_offsets(group)


async def test_a_listing_shows_all_groups_of_all_brokers(cluster, name):
    groups = {f"{name}-{number}" for number in range(9)}
    assert await try_create_topic(cluster[1], name, 1) == OK
    async with Admin(cluster[1].address) as admin:
        for group in groups:
            await admin.alter_group_offsets(group, {TopicPartition(name, 0): 0})

        found = {one.group_id for one in await admin.list_groups()}

    assert groups <= found
