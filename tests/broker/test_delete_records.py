"""DeleteRecords: advance the log start offset."""

import pytest

from harness.brokers import broker_and_client
from harness.requests import create_topic, offset_for_time, produce_batch
from ottla.protocol.api.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.registry import DELETE_RECORDS

EARLIEST = -2


async def delete(client, topic, *offsets, version=2):
    """Delete before an offset in each partition; return (low watermark, error code) of each."""
    partitions = [
        DeleteRecordsPartition(partition_index=index, offset=offset)
        for index, offset in enumerate(offsets)
    ]
    answer = await client.request(
        DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=partitions)]),
        version,
    )
    return [(part.low_watermark, part.error_code) for part in answer.topics[0].partitions]


@pytest.mark.parametrize("version", [*DELETE_RECORDS.versions])
async def test_the_log_start_offset_advances_in_every_version(tmp_path, version):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t")
        await produce_batch(client, "t", 10)

        assert await delete(client, "t", 4, version=version) == [(4, ErrorCode.NONE)]
        assert (await offset_for_time(client, "t", EARLIEST)).offset == 4
        assert await produce_batch(client, "t") == 10

    async with broker_and_client(tmp_path) as (_broker, client):
        assert (await offset_for_time(client, "t", EARLIEST)).offset == 4


async def test_offset_minus_one_deletes_up_to_the_high_watermark(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t")
        await produce_batch(client, "t", 10)

        assert await delete(client, "t", -1) == [(10, ErrorCode.NONE)]
        assert await delete(client, "t", -1) == [(10, ErrorCode.NONE)]
        assert await produce_batch(client, "t") == 10


async def test_an_offset_below_the_log_start_is_accepted_and_one_above_the_end_is_not(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t", 4)
        for partition in range(4):
            await produce_batch(client, "t", 10, partition=partition)
        await delete(client, "t", 5, 0, 0, 0)

        answer = await delete(client, "t", 3, 11, -2, 10, 0)

        assert answer == [
            (5, ErrorCode.NONE),
            (-1, ErrorCode.OFFSET_OUT_OF_RANGE),
            (-1, ErrorCode.OFFSET_OUT_OF_RANGE),
            (10, ErrorCode.NONE),
            (-1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),  # The topic has four partitions.
        ]
        missing = await delete(client, "missing", 1)
        assert missing == [(-1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]


async def test_a_topic_without_cleanup_policy_delete_is_a_policy_violation(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "compacted", cleanup_policy="compact")
        await create_topic(client, "both", cleanup_policy="compact,delete")
        for name in ("compacted", "both"):
            await produce_batch(client, name, 10)

        assert await delete(client, "compacted", 5) == [(-1, ErrorCode.POLICY_VIOLATION)]
        assert await delete(client, "both", 5) == [(5, ErrorCode.NONE)]


async def test_records_of_internal_topics_cannot_be_deleted(tmp_path):
    async with broker_and_client(tmp_path) as (broker, client):
        await broker.controller.create_topics(
            [broker.controller.plan_topic("__consumer_offsets", 1, {})]
        )

        answer = await delete(client, "__consumer_offsets", 0)

        assert answer == [(-1, ErrorCode.INVALID_TOPIC_EXCEPTION)]
