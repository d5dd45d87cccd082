"""Every API in every version: without each right that it needs, and with all of them.

A client that lacks a right is told so with the documented error code, nothing changes, and the
response is the same whether what it names exists or not.
"""

from contextlib import asynccontextmanager

import pytest

from harness.acls import allow, an_authorized_broker, binding, connect_as, revoke_all
from harness.authorization_rows import (
    CODES,
    KNOWN,
    NEEDS_NOTHING,
    UNKNOWN,
    World,
    codes_of,
    grant,
    with_unknown,
)
from harness.authorization_rows import ROWS as BASIC_ROWS
from harness.authorization_rows_cluster import CLUSTER_ROWS
from harness.authorization_rows_share import SHARE_ROWS
from harness.logs import a_batch
from harness.requests import create_topics_request
from harness.transaction_requests import TransactionalProducer
from harness.wire import produce_request, produce_results
from ottla.broker.requests.dispatch import SUPPORTED_APIS
from ottla.protocol.acls import AclOperation, PatternType, ResourceType
from ottla.protocol.api.describe_cluster import DescribeClusterRequest
from ottla.protocol.api.describe_groups import DescribeGroupsRequest
from ottla.protocol.api.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
)
from ottla.protocol.api.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.errors import ErrorCode

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
CLIENT = "User:client"
ROWS = (*BASIC_ROWS, *CLUSTER_ROWS, *SHARE_ROWS)
DENIED = set(CODES.values())


@asynccontextmanager
async def a_world(tmp_path):
    """Run a broker; yield what exists there, and a client without rights."""
    configs = {"offsets_topic_num_partitions": 1, "transaction_state_log_num_partitions": 1}
    async with (
        an_authorized_broker(tmp_path, **configs) as broker,
        connect_as(broker, "admin") as admin,
        connect_as(broker, "client") as client,
    ):
        yield World(broker, admin), client


def scrubbed(response):
    """Return a response as text, without the names."""
    text = repr(response)
    for known, unknown in zip(KNOWN, UNKNOWN, strict=True):
        text = text.replace(unknown, known)
    return text


def test_every_api_has_a_row():
    assert SUPPORTED_APIS.keys() - {row.api.key for row in ROWS} - NEEDS_NOTHING == set()


def test_every_version_has_a_row():
    for api in {row.api for row in ROWS}:
        versions = {version for row in ROWS if row.api is api for version in row.versions}
        assert versions == set(api.versions), api.name


@pytest.mark.parametrize("row", ROWS, ids=str)
async def test_a_client_without_a_right_is_denied_and_learns_nothing(tmp_path, row):
    async with a_world(tmp_path) as (world, client):
        await world.prepare(with_transaction=row.uses_transaction)
        for missing in row.needs:
            await grant(world, [one for one in row.needs if one is not missing])
            before = world.fingerprint()
            for version in row.versions:
                response = await client.request(row.build(world, KNOWN, version), version)
                context = f"{row} v{version} without {missing}: {response}"

                if missing.code is not None:
                    assert missing.code in codes_of(response), context
                    assert ErrorCode.NONE not in codes_of(response) or "error_code" in (
                        response.fields
                    ), context
                else:
                    assert not codes_of(response) & DENIED, context
                    for name in KNOWN.of(missing.resource_type):
                        assert name not in repr(response), context
                if version < row.first_by_id:
                    names = with_unknown(missing.resource_type)
                    other = await client.request(row.build(world, names, version), version)
                    assert scrubbed(other) == scrubbed(response), context
            assert world.fingerprint() == before, row


@pytest.mark.parametrize("row", ROWS, ids=str)
async def test_a_client_with_all_rights_is_served(tmp_path, row):
    ways = [row.needs, *((one, *row.needs[1:]) for one in row.instead)]
    async with a_world(tmp_path) as (world, client):
        for rights in ways:
            await grant(world, rights)
            for version in row.versions:
                await world.prepare(with_transaction=row.uses_transaction)
                request = row.build(world, row.granted, version)
                response = await client.request(request, version)
                context = f"{row} v{version} with {rights}: {response}"

                assert codes_of(response) <= {ErrorCode.NONE, *row.tolerated}, context
                for right in row.needs:
                    if right.code is None:
                        for name in KNOWN.of(right.resource_type):
                            assert name in repr(response), context


async def test_topics_that_a_client_may_not_see_have_no_id_and_no_name(tmp_path):
    async with a_world(tmp_path) as (world, client):
        await world.prepare()
        topic_id = world.topic_id(KNOWN)
        requested = [
            MetadataRequestTopic(name=KNOWN.topic),
            MetadataRequestTopic(name=None, topic_id=topic_id),
        ]
        by_name, by_id = (await client.request(MetadataRequest(topics=requested), 12)).topics

        assert (by_name.name, by_name.topic_id.int) == (KNOWN.topic, 0)
        assert (by_id.name, by_id.topic_id) == (None, topic_id)
        assert {by_name.error_code, by_id.error_code} == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
        assert world.broker.authorizer.denials == {("DESCRIBE", "TOPIC"): 2}

        absent = MetadataRequest(topics=[MetadataRequestTopic(name=UNKNOWN.topic)])
        await client.request(absent, 12)
        assert world.broker.authorizer.denials == {("DESCRIBE", "TOPIC"): 3}


async def test_an_item_that_is_denied_does_not_affect_the_others(tmp_path):
    async with a_world(tmp_path) as (world, client):
        await allow(world.broker, binding(CLIENT, AclOperation.CREATE, TOPIC, "mine"))
        await allow(world.broker, binding(CLIENT, AclOperation.WRITE, TOPIC, "mine"))
        request = create_topics_request("mine")
        request.topics = [*request.topics, *create_topics_request("other").topics]
        mine, other = (await client.request(request, 7)).topics
        assert (mine.error_code, other.error_code) == (0, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        # Configs are another right.
        assert mine.topic_config_error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert not mine.configs
        assert mine.num_partitions == -1
        assert "other" not in world.broker.topics.image.topics

        request = produce_request(a_batch(), topic="mine")
        request.topic_data = [
            *request.topic_data,
            *produce_request(a_batch(), topic="other").topic_data,
        ]
        results = produce_results(await client.request(request, 9))
        assert [one.error_code for one in results] == [0, ErrorCode.TOPIC_AUTHORIZATION_FAILED]


async def test_a_denied_transactional_producer_adds_no_partition(tmp_path):
    """Produce adds partitions to transactions since version 12: only those that it may write."""
    async with a_world(tmp_path) as (world, client):
        await world.prepare()
        await world.producer.end(commit=False)
        right = binding(CLIENT, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, "*")
        await allow(world.broker, right)
        producer = TransactionalProducer(client, "mine")
        await producer.init()

        assert await producer.produce(KNOWN.topic, 0, version=12) == CODES[TOPIC]

        transaction = world.broker.transactions.transaction("mine")
        assert transaction.metadata.state.label == "Empty"


async def test_a_produce_without_acks_that_is_denied_closes_the_connection(tmp_path):
    async with a_world(tmp_path) as (world, client):
        await world.prepare()
        client.send(produce_request(a_batch(), topic=KNOWN.topic, acks=0), 9)

        assert await client.is_closed()


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ((), None),
        ((AclOperation.READ,), 0b100001000),
        ((AclOperation.ALL,), 3576),
        ((AclOperation.ALTER_CONFIGS, AclOperation.DESCRIBE), 0b110100000000),
    ],
)
async def test_authorized_operations_are_those_of_the_client(tmp_path, operations, expected):
    async with a_world(tmp_path) as (world, client):
        await world.prepare()
        for operation in operations:
            await allow(world.broker, binding(CLIENT, operation, TOPIC, KNOWN.topic))
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=KNOWN.topic)],
            include_topic_authorized_operations=True,
        )
        (topic,) = (await client.request(request, 12)).topics
        assert topic.topic_authorized_operations == (-(2**31) if expected is None else expected)
        request = DescribeTopicPartitionsRequest()
        topics = (await client.request(request, 0)).topics
        found = [one.topic_authorized_operations for one in topics]
        assert found == ([] if expected is None else [expected])


async def test_authorized_operations_of_groups_and_the_cluster(tmp_path):
    async with a_world(tmp_path) as (world, client):
        await world.prepare()
        groups = DescribeGroupsRequest(groups=[KNOWN.group], include_authorized_operations=True)
        cluster = DescribeClusterRequest(include_cluster_authorized_operations=True)

        assert (await client.request(cluster, 1)).cluster_authorized_operations == 0
        (group,) = (await client.request(groups, 5)).groups
        assert group.authorized_operations == -(2**31)

        for resource_type, name in ((GROUP, KNOWN.group), (CLUSTER, "kafka-cluster")):
            await allow(world.broker, binding(CLIENT, AclOperation.ALL, resource_type, name))
        assert (await client.request(cluster, 1)).cluster_authorized_operations == 8096
        (group,) = (await client.request(groups, 5)).groups
        assert group.authorized_operations == 3400


async def test_a_cursor_shows_no_topic_that_the_client_may_not_see(tmp_path):
    async with a_world(tmp_path) as (world, client):
        for name in ("a", "b", "c", "d"):
            topic = world.broker.controller.plan_topic(name, 2, {})
            await world.broker.controller.create_topics([topic])
        for name in ("a", "d"):
            await allow(world.broker, binding(CLIENT, AclOperation.DESCRIBE, TOPIC, name))
        request = DescribeTopicPartitionsRequest(response_partition_limit=2)
        page = await client.request(request, 0)
        assert [topic.name for topic in page.topics] == ["a"]
        assert page.next_cursor == Cursor(topic_name="d", partition_index=0)


async def test_a_right_that_is_revoked_ends_at_once(tmp_path):
    async with a_world(tmp_path) as (world, client):
        await world.prepare()
        request = produce_request(a_batch(), topic=KNOWN.topic)
        await allow(
            world.broker,
            binding(CLIENT, AclOperation.WRITE, TOPIC, "topic-", pattern_type=PatternType.PREFIXED),
        )
        assert codes_of(await client.request(request, 9)) == {0}

        await revoke_all(world.broker)

        assert codes_of(await client.request(request, 9)) == {CODES[TOPIC]}
