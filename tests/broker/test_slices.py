"""Requests with many elements are handled in slices, between which others are served."""

import asyncio

import pytest

from harness.requests import create_topic
from harness.wire import connect, frame_of
from ottla.broker import Broker, BrokerConfig
from ottla.broker.requests.slices import SLICE_ELEMENTS
from ottla.protocol.api import (
    alter_configs,
    incremental_alter_configs,
    list_offsets,
    offset_commit,
    txn_offset_commit,
)
from ottla.protocol.errors import ErrorCode

SLICES = 8
COUNT = SLICES * SLICE_ELEMENTS


def list_offsets_request():
    partitions = [
        list_offsets.ListOffsetsPartition(partition_index=index, timestamp=-1)
        for index in range(COUNT)
    ]
    topic = list_offsets.ListOffsetsTopic(name="t", partitions=partitions)
    return list_offsets.ListOffsetsRequest(replica_id=-1, topics=[topic])


def offset_commit_request():
    partitions = [
        offset_commit.OffsetCommitRequestPartition(partition_index=index, committed_offset=5)
        for index in range(COUNT)
    ]
    topic = offset_commit.OffsetCommitRequestTopic(name="t", partitions=partitions)
    return offset_commit.OffsetCommitRequest(group_id="g", topics=[topic])


def txn_offset_commit_request():
    partitions = [
        txn_offset_commit.TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=5)
        for index in range(2, COUNT + 2)
    ]
    topic = txn_offset_commit.TxnOffsetCommitRequestTopic(name="t", partitions=partitions)
    return txn_offset_commit.TxnOffsetCommitRequest(
        transactional_id="x", group_id="g", producer_id=1, producer_epoch=0, topics=[topic]
    )


def alter_configs_request():
    """Many resources without configs, and one with many."""
    configs = [alter_configs.AlterableConfig(name=f"c{n}", value="1") for n in range(COUNT)]
    resources = [
        alter_configs.AlterConfigsResource(resource_type=2, resource_name=f"t{n}", configs=[])
        for n in range(COUNT - 1)
    ]
    resources.append(
        alter_configs.AlterConfigsResource(resource_type=2, resource_name="t", configs=configs)
    )
    return alter_configs.AlterConfigsRequest(resources=resources)


def incremental_alter_configs_request():
    configs = [
        incremental_alter_configs.AlterableConfig(name=f"c{n}", config_operation=0, value="1")
        for n in range(COUNT)
    ]
    resource = incremental_alter_configs.AlterConfigsResource(
        resource_type=2, resource_name="t", configs=configs
    )
    return incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource])


def codes_of_partitions(response):
    return [partition.error_code for partition in response.topics[0].partitions]


def codes_of_resources(response):
    return [resource.error_code for resource in response.responses]


UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    ("request_", "version", "passes", "codes", "expected"),
    [
        # Counted, and answered.
        (list_offsets_request, 7, 2, codes_of_partitions, [0, 0] + [UNKNOWN] * (COUNT - 2)),
        # Collected, and answered.
        (offset_commit_request, 8, 2, codes_of_partitions, [0, 0] + [UNKNOWN] * (COUNT - 2)),
        (txn_offset_commit_request, 3, 2, codes_of_partitions, [UNKNOWN] * COUNT),
        # Resources and configs are converted, and resources counted and altered.
        (
            alter_configs_request,
            1,
            4,
            codes_of_resources,
            [UNKNOWN] * (COUNT - 1) + [ErrorCode.INVALID_CONFIG],
        ),
        (incremental_alter_configs_request, 0, 1, codes_of_resources, [ErrorCode.INVALID_CONFIG]),
    ],
)
async def test_other_tasks_run_between_slices(tmp_path, request_, version, passes, codes, expected):
    config = BrokerConfig(log_dir=str(tmp_path), listeners="PLAINTEXT://127.0.0.1:0")
    async with Broker(config) as broker, connect(broker) as client:
        await create_topic(client, "t", partitions=2)
        await broker.groups.ensure_topic()
        dispatcher = broker.dispatcher
        frame = memoryview(frame_of(request_(), version))[4:]
        response = await client.request(request_(), version)
        while ErrorCode.COORDINATOR_LOAD_IN_PROGRESS in codes(response):
            await asyncio.sleep(0.01)
            response = await client.request(request_(), version)
        connection = next(iter(broker.server._connections))
        context, body = dispatcher.decode(frame, connection, 0.0)
        turns = 0

        async def count_turns():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counter = asyncio.create_task(count_turns())
        result = dispatcher.handle(context, body)
        response = await result if asyncio.isfuture(result) else result
        counter.cancel()

        assert codes(response) == expected
        assert turns >= passes * SLICES
