"""Pipelined requests: one that changes something has taken effect before the next is started.

Every changing API is sent in one TCP segment with every reading API that can observe it. The
response of the reader has to be the one that it gets when it is sent after the response of the
change.
"""

import asyncio
import re
from itertools import count

import pytest

from harness.brokers import add_topic, broker_and_client
from harness.group_requests import commit_request, enter, join_request, sync
from harness.logs import a_batch
from harness.requests import create_topic, create_topics_request, produce_batch, try_alter_configs
from harness.waiting import eventually
from harness.wire import connect, error_codes, fetch_request, fetched_partitions, produce_request
from ottla.broker.requests.dispatch import OVERLAPPING, SUPPORTED_APIS
from ottla.protocol.api import (
    alter_configs,
    create_partitions,
    delete_groups,
    delete_records,
    delete_topics,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    find_coordinator,
    incremental_alter_configs,
    leave_group,
    list_groups,
    list_offsets,
    metadata,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    sync_group,
)
from ottla.protocol.codec import encode_request
from ottla.protocol.errors import ErrorCode

REPETITIONS = 2
#: The last versions that identify topics by their names.
_BY_NAME = {"Fetch": 12, "OffsetFetch": 9, "OffsetCommit": 9, "Produce": 9, "Metadata": 12}
#: Differ from run to run.
_VOLATILE = re.compile(
    r"UUID\('[^']*'\)|<memory at \w+>|(total_bytes|usable_bytes|last_timestamp|timestamp)=\d+"
    r"|[\w-]*[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}"
)


# Changes: each prepares a topic or a group of this name, and returns the request.


async def create_topics(_client, name):
    return create_topics_request(name, 2)


async def auto_create(_client, name):
    topics = [metadata.MetadataRequestTopic(name=name)]
    return metadata.MetadataRequest(topics=topics, allow_auto_topic_creation=True)


async def produce(client, name):
    await create_topic(client, name, 2)
    batch = a_batch(3, producer_id=5, producer_epoch=0, base_sequence=0)
    return produce_request(batch, topic=name, acks=-1)


async def produce_without_acks(client, name):
    await create_topic(client, name, 2)
    return produce_request(a_batch(3), topic=name, acks=0)


async def add_partitions(client, name):
    await create_topic(client, name, 2)
    topic = create_partitions.CreatePartitionsTopic(name=name, count=4, assignments=None)
    return create_partitions.CreatePartitionsRequest(topics=[topic], timeout_ms=10_000)


async def remove_topic(client, name):
    await create_topic(client, name, 2)
    topic = delete_topics.DeleteTopicState(name=name)
    return delete_topics.DeleteTopicsRequest(topics=[topic], timeout_ms=10_000)


async def remove_topic_with_offsets(client, name):
    await create_topic(client, name, 2)
    await client.request(commit_request(name, {(name, 0): 2}), 9)
    topic = delete_topics.DeleteTopicState(name=name)
    return delete_topics.DeleteTopicsRequest(topics=[topic], timeout_ms=10_000)


async def remove_records(client, name):
    await create_topic(client, name, 2)
    await produce_batch(client, name, 3)
    partitions = [delete_records.DeleteRecordsPartition(partition_index=0, offset=2)]
    topic = delete_records.DeleteRecordsTopic(name=name, partitions=partitions)
    return delete_records.DeleteRecordsRequest(topics=[topic], timeout_ms=10_000)


async def alter(client, name):
    await create_topic(client, name, 2)
    config = alter_configs.AlterableConfig(name="retention.ms", value="12345")
    resource = alter_configs.AlterConfigsResource(
        resource_type=2, resource_name=name, configs=[config]
    )
    return alter_configs.AlterConfigsRequest(resources=[resource])


async def alter_incrementally(client, name):
    await create_topic(client, name, 2)
    config = incremental_alter_configs.AlterableConfig(
        name="retention.ms", config_operation=0, value="12345"
    )
    resource = incremental_alter_configs.AlterConfigsResource(
        resource_type=2, resource_name=name, configs=[config]
    )
    return incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource])


async def commit(client, name):
    await create_topic(client, name, 2)
    return commit_request(name, {(name, 0): 2})


async def remove_offsets(client, name):
    await create_topic(client, name, 2)
    await client.request(commit_request(name, {(name, 0): 2}), 9)
    partitions = [offset_delete.OffsetDeleteRequestPartition(partition_index=0)]
    topic = offset_delete.OffsetDeleteRequestTopic(name=name, partitions=partitions)
    return offset_delete.OffsetDeleteRequest(group_id=name, topics=[topic])


async def remove_group(client, name):
    await create_topic(client, name, 2)
    await client.request(commit_request(name, {(name, 0): 2}), 9)
    return delete_groups.DeleteGroupsRequest(groups_names=[name])


async def join(_client, name):
    return join_request(name, instance="member")


async def assign(client, name):
    member = await enter(client, name, instance="member")
    assignment = sync_group.SyncGroupRequestAssignment(member_id=member.id, assignment=b"all")
    return sync_group.SyncGroupRequest(
        group_id=name,
        generation_id=member.generation,
        member_id=member.id,
        group_instance_id="member",
        protocol_type="consumer",
        protocol_name="range",
        assignments=[assignment],
    )


async def leave(client, name):
    member = await enter(client, name, instance="member")
    await sync(client, member, {member.id: b"all"})
    members = [leave_group.MemberIdentity(member_id="", group_instance_id="member")]
    return leave_group.LeaveGroupRequest(group_id=name, members=members)


CHANGES = [
    create_topics,
    auto_create,
    produce,
    produce_without_acks,
    add_partitions,
    remove_topic,
    remove_topic_with_offsets,
    remove_records,
    alter,
    alter_incrementally,
    commit,
    remove_offsets,
    remove_group,
    join,
    assign,
    leave,
]


def readers(name):
    """Return the requests that read topics and groups."""
    start = [list_offsets.ListOffsetsPartition(partition_index=0, timestamp=-2)]
    end = [list_offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)]
    epochs = [offset_for_leader_epoch.OffsetForLeaderPartition(partition=0, leader_epoch=0)]
    return {
        "metadata": metadata.MetadataRequest(
            topics=[metadata.MetadataRequestTopic(name=name)], allow_auto_topic_creation=False
        ),
        "partitions": describe_topic_partitions.DescribeTopicPartitionsRequest(
            topics=[describe_topic_partitions.TopicRequest(name=name)]
        ),
        "start offset": list_offsets.ListOffsetsRequest(
            replica_id=-1, topics=[list_offsets.ListOffsetsTopic(name=name, partitions=start)]
        ),
        "end offset": list_offsets.ListOffsetsRequest(
            replica_id=-1, topics=[list_offsets.ListOffsetsTopic(name=name, partitions=end)]
        ),
        "fetch": fetch_request(0, topic=name),
        "epochs": offset_for_leader_epoch.OffsetForLeaderEpochRequest(
            topics=[offset_for_leader_epoch.OffsetForLeaderTopic(topic=name, partitions=epochs)]
        ),
        "configs": describe_configs.DescribeConfigsRequest(
            resources=[
                describe_configs.DescribeConfigsResource(
                    resource_type=2, resource_name=name, configuration_keys=["retention.ms"]
                )
            ]
        ),
        "log dirs": describe_log_dirs.DescribeLogDirsRequest(
            topics=[describe_log_dirs.DescribableLogDirTopic(topic=name, partitions=[0, 3])]
        ),
        "producers": describe_producers.DescribeProducersRequest(
            topics=[describe_producers.TopicRequest(name=name, partition_indexes=[0])]
        ),
        "committed": offset_fetch.OffsetFetchRequest(
            groups=[offset_fetch.OffsetFetchRequestGroup(group_id=name, topics=None)]
        ),
        "group": describe_groups.DescribeGroupsRequest(groups=[name]),
        "groups": list_groups.ListGroupsRequest(),
    }


READERS = list(readers(""))


def normalised(response, name):
    if isinstance(response, list_groups.ListGroupsResponse):
        response.groups = [group for group in response.groups if group.group_id == name]
    return _VOLATILE.sub("~", repr(response).replace(name, "NAME"))


def send_in_one_segment(client, *requests):
    """Send requests with one write; acks=0 has no response."""
    frames = b""
    for request in requests:
        # Later versions identify topics by their ids.
        version = _BY_NAME.get(request.api.name, request.api.versions.last)
        client._correlation_id += 1
        frames += b"".join(encode_request(request, version, client._correlation_id, "wire"))
        if getattr(request, "acks", None) != 0:
            client._in_flight.append((client._correlation_id, request.api.response, version))
    client.writer.write(frames)


async def ask(client, request):
    send_in_one_segment(client, request)
    return await client.response() if client._in_flight else None


@pytest.fixture
def configs():
    return {"group.initial.rebalance.delay.ms": "3", "num.partitions": "2"}


async def prepare(client):
    """Create the offsets topic, and have commits wait for an fsync."""
    await client.request(find_coordinator.FindCoordinatorRequest(coordinator_keys=["g"]), 6)
    code, message = await try_alter_configs(
        client, 2, "__consumer_offsets", {"durability": "fsync"}
    )
    assert code == 0, message


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.exhaustive
async def test_a_request_sees_the_change_of_the_request_before_it(tmp_path, configs, change):
    names = (f"name{number}" for number in count(10))
    async with broker_and_client(tmp_path, configs) as (_broker, client):
        await prepare(client)
        name = next(names)
        request = await change(client, name)
        before, expected = {}, {}
        for reader, read in readers(name).items():
            before[reader] = normalised(await ask(client, read), name)
        await ask(client, request)
        for reader, read in readers(name).items():
            expected[reader] = normalised(await ask(client, read), name)
        observers = [reader for reader in READERS if before[reader] != expected[reader]]
        assert observers, "No reader can observe the change"

        for reader in observers:
            for _ in range(REPETITIONS):
                name = next(names)
                request = await change(client, name)
                send_in_one_segment(client, request, readers(name)[reader])
                while len(client._in_flight) > 1:
                    await client.response()
                assert normalised(await client.response(), name) == expected[reader], reader


async def test_changes_behind_a_long_poll_take_effect_in_order(tmp_path, configs):
    async with broker_and_client(tmp_path, configs) as (broker, client):
        await add_topic(broker, "polled")
        for number, change in enumerate((create_topics, remove_records, alter_incrementally)):
            name = f"name{number}"
            request = await change(client, name)
            send_in_one_segment(
                client,
                fetch_request(number, topic="polled", max_wait_ms=20_000),
                request,
                *readers(name).values(),
                produce_request(a_batch(), topic="polled"),
            )
            fetched, _changed, *responses, _produced = [
                await client.response() for _ in range(len(READERS) + 3)
            ]
            assert len(fetched_partitions(fetched)[0].records) > 0
            for (reader, read), response in zip(readers(name).items(), responses, strict=True):
                again = normalised(await ask(client, read), name)
                assert normalised(response, name) == again, reader


async def test_a_waiting_join_blocks_only_its_own_connection(tmp_path):
    configs = {"group.initial.rebalance.delay.ms": "600000"}
    async with broker_and_client(tmp_path, configs) as (broker, client), connect(broker) as other:
        await prepare(client)
        await add_topic(broker, "t")
        send_in_one_segment(client, join_request("g", instance="a"), produce_request(a_batch()))

        description = (await ask(other, readers("g")["group"])).groups[0]
        while not description.members:
            description = (await ask(other, readers("g")["group"])).groups[0]
        assert description.group_state == "PreparingRebalance"
        assert broker.topics.find("t", 0).high_watermark == 0

        members = [leave_group.MemberIdentity(member_id="", group_instance_id="a")]
        await ask(other, leave_group.LeaveGroupRequest(group_id="g", members=members))
        assert (await client.response()).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert error_codes(await client.response()) == [0]


async def test_a_disconnect_during_a_waiting_join_is_noticed(tmp_path):
    configs = {"group.initial.rebalance.delay.ms": "600000"}
    async with broker_and_client(tmp_path, configs) as (broker, client):
        await prepare(client)
        async with connect(broker) as joins:
            send_in_one_segment(joins, join_request("g", instance="a"))
            while broker.groups.group("g") is None:
                await asyncio.sleep(0.001)
        while broker.server.connection_count > 1:
            await asyncio.sleep(0.001)


def test_only_fetches_and_produce_may_overlap():
    names = {SUPPORTED_APIS[key].name for key in OVERLAPPING}
    assert names == {"Produce", "Fetch", "ShareFetch"}


# Large requests: decoded in a thread, and read in slices.


def delete_request(offset):
    partition = delete_records.DeleteRecordsPartition(partition_index=0, offset=offset)
    topic = delete_records.DeleteRecordsTopic(name="t", partitions=[partition])
    return delete_records.DeleteRecordsRequest(topics=[topic])


@pytest.mark.parametrize("count", [1000, 6000], ids=["small frame", "large frame"])
async def test_a_fetch_of_many_partitions_is_read_before_the_next_request(tmp_path, count):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t")
        await produce_batch(client, "t", 3)
        wanted = fetch_request(*[0] * count)
        for partition in wanted.topics[0].partitions:
            partition.partition = 0
        for request in (delete_request(1), wanted, delete_request(2)):
            client.send(request, 12 if request is wanted else None)

        deleted = await client.response()
        fetched = fetched_partitions(await client.response())
        assert deleted.topics[0].partitions[0].low_watermark == 1
        assert len(fetched) == count
        assert {(data.error_code, data.log_start_offset) for data in fetched} == {
            (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
        }
        assert (await client.response()).topics[0].partitions[0].low_watermark == 2


async def test_a_large_fetch_that_waits_lets_later_requests_pass(tmp_path):
    async with broker_and_client(tmp_path) as (broker, client), connect(broker) as other:
        await create_topic(client, "t")
        wanted = fetch_request(*[0] * 6000, max_wait_ms=600_000)
        for partition in wanted.topics[0].partitions:
            partition.partition = 0
        client.send(wanted, 12)
        client.send(produce_request(a_batch(3)), 9)

        fetched = fetched_partitions(await client.response())
        assert {data.high_watermark for data in fetched} == {3}
        assert error_codes(await client.response()) == [0]
        # A client that disconnects takes its waiting fetches along.
        wanted.topics[0].partitions[0].fetch_offset = 3
        for partition in wanted.topics[0].partitions:
            partition.fetch_offset = 3
        for _ in range(3):
            other.send(wanted, 12)
        await eventually(lambda: broker.memory.parked_bytes > 3 * 6000 * 200)
        await other.close()
        await eventually(lambda: broker.memory.parked_bytes == 0)


async def test_a_large_request_that_is_malformed_closes_its_connection(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t")
        client.send(metadata.MetadataRequest(topics=[]), 12)
        frame = bytearray(b"".join(encode_request(fetch_request(*[0] * 6000), 12, 9, "c")))
        frame[-1] = 0xFF
        client.writer.write(frame)

        assert not (await client.response()).topics
        assert await client.is_closed()
