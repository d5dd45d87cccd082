"""The admin client with several brokers: controller and coordinators move, or are down."""

import asyncio
import time

import pytest

from harness.scripted_broker import ScriptedCluster
from ottla.client import (
    Admin,
    ClientConfig,
    ErrorCode,
    PartialError,
    RetryConfig,
    TopicPartition,
)
from ottla.client.config import TimeoutConfig
from ottla.protocol.api.create_topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.api.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from ottla.protocol.api.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.api.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

APIS = ("CreateTopics", "FindCoordinator", "DescribeGroups", "ListOffsets")


@pytest.fixture
async def stage():
    async with ScriptedCluster(nodes=3, topics={"orders": 3}, served=APIS) as started:
        yield started


def an_admin(stage, operation=5.0):
    timeouts = TimeoutConfig(connect=1, request=1, operation=operation)
    client = ClientConfig(retry=RetryConfig(backoff=0.005, max_backoff=0.02), timeouts=timeouts)
    return Admin(stage.address, client=client)


def created(call):
    """Create topics on the controller only, as brokers do."""
    is_controller = call.node.id == call.cluster.true_controller
    return CreateTopicsResponse(
        topics=[
            CreatableTopicResult(
                name=topic.name,
                error_code=0 if is_controller else ErrorCode.NOT_CONTROLLER,
                error_message=None,
                num_partitions=1,
                replication_factor=1,
            )
            for topic in call.request.topics
        ]
    )


async def test_a_topic_is_created_by_the_new_controller(stage):
    stage.controller, stage.true_controller = 0, 2
    stage.always(CreateTopicsRequest, created)

    async with an_admin(stage) as admin:
        making = asyncio.create_task(admin.create_topic("new"))
        await asyncio.sleep(0.05)
        assert not making.done()
        stage.controller = 2  # the metadata catch up
        assert (await making).name == "new"

    asked = [call.node.id for call in stage.requests_of(CreateTopicsRequest)]
    assert set(asked) == {0, 2}
    assert asked.count(2) == 1


async def test_the_admin_waits_for_a_new_controller(stage):
    stage.controller = stage.true_controller = 1
    stage.always(CreateTopicsRequest, created)
    await stage.nodes[1].stop()

    async with an_admin(stage) as admin:
        making = asyncio.create_task(admin.create_topic("new"))
        await asyncio.sleep(0.05)
        assert not making.done()
        stage.controller = stage.true_controller = 2
        await making
    await stage.nodes[1].start()


def coordinated_by(coordinators):
    def answer(call):
        found = coordinators[call.request.key]
        if isinstance(found, ErrorCode):
            return FindCoordinatorResponse(error_code=found, node_id=-1, host="", port=-1)
        node = call.cluster.nodes[found]
        return FindCoordinatorResponse(node_id=node.id, host="127.0.0.1", port=node.port)

    return answer


def described_by(coordinators):
    def answer(call):
        return DescribeGroupsResponse(
            groups=[
                DescribedGroup(
                    group_id=group,
                    error_code=0
                    if coordinators[group] == call.node.id
                    else ErrorCode.NOT_COORDINATOR,
                    group_state="Empty",
                    protocol_type="consumer",
                )
                for group in call.request.groups
            ]
        )

    return answer


async def test_new_coordinators_are_found(stage):
    coordinators = {"a": 0, "b": 1, "c": 2}
    stage.always(FindCoordinatorRequest, coordinated_by(coordinators))
    stage.always(DescribeGroupsRequest, described_by(coordinators))

    async with an_admin(stage) as admin:
        before = await admin.describe_groups("a", "b", "c")
        coordinators.update(a=1, c=0)
        after = await admin.describe_groups("a", "b", "c")

    assert [one.coordinator for one in before.values()] == [0, 1, 2]
    assert [one.coordinator for one in after.values()] == [1, 1, 0]


async def test_a_group_without_a_coordinator_does_not_fail_the_others(stage):
    coordinators = {"a": 0, "b": ErrorCode.COORDINATOR_NOT_AVAILABLE}
    stage.always(FindCoordinatorRequest, coordinated_by(coordinators))
    stage.always(DescribeGroupsRequest, described_by(coordinators))

    async with an_admin(stage, operation=1.5) as admin:
        with pytest.raises(PartialError) as partial:
            await admin.describe_groups("a", "b")

        assert list(partial.value.done) == ["a"]
        (reason,) = partial.value.failed.values()
        assert reason.__cause__.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        # Successful results are not requested again.
        assert len(stage.requests_of(DescribeGroupsRequest)) == 1


def listed(call):
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    ListOffsetsPartitionResponse(
                        partition_index=one.partition_index, error_code=0, offset=7
                    )
                    for one in topic.partitions
                ],
            )
            for topic in call.request.topics
        ]
    )


async def test_offsets_are_returned_for_partitions_with_a_live_leader(stage):
    stage.always(ListOffsetsRequest, listed)
    await stage.nodes[2].stop()

    async with an_admin(stage, operation=1.5) as admin:
        started = time.monotonic()
        with pytest.raises(PartialError) as partial:
            await admin.end_offsets("orders")
        assert time.monotonic() - started < 10

    assert partial.value.done.keys() == {TopicPartition("orders", 0), TopicPartition("orders", 1)}
    assert partial.value.retriable
    await stage.nodes[2].start()
