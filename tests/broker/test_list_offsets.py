"""ListOffsets: the start and end of a log, and offsets for timestamps."""

import pytest

from harness.brokers import broker_and_client
from harness.logs import NOW
from harness.requests import create_topic, offset_for_time, produce_batch
from ottla.protocol.api.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.protocol.api.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.registry import LIST_OFFSETS

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = range(-1, -6, -1)
NOT_FOUND = (ErrorCode.NONE, -1, -1, -1)


async def list_offset(client, timestamp, **options):
    response = await offset_for_time(client, "t", timestamp, **options)
    return response.error_code, response.offset, response.timestamp, response.leader_epoch


async def delete_before(client, offset):
    partition = DeleteRecordsPartition(partition_index=0, offset=offset)
    topic = DeleteRecordsTopic(name="t", partitions=[partition])
    await client.request(DeleteRecordsRequest(topics=[topic]))


async def ten_records(client):
    """Append two batches one second apart; their records are one millisecond apart."""
    await create_topic(client, "t")
    await produce_batch(client, "t", 5, time=NOW)
    await produce_batch(client, "t", 5, time=NOW + 1000)


@pytest.mark.parametrize("version", [*LIST_OFFSETS.versions])
async def test_earliest_latest_and_timestamp_in_every_version(tmp_path, version):
    async with broker_and_client(tmp_path) as (_broker, client):
        await ten_records(client)
        await delete_before(client, 2)
        epoch = 0 if version >= 4 else -1

        assert await list_offset(client, LATEST, version=version) == (0, 10, -1, epoch)
        assert await list_offset(client, EARLIEST, version=version) == (0, 2, -1, epoch)
        assert await list_offset(client, NOW + 3, version=version) == (0, 3, NOW + 3, epoch)


async def test_a_timestamp_returns_the_first_record_at_or_after_it(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await ten_records(client)

        assert await list_offset(client, 0) == (0, 0, NOW, 0)
        assert await list_offset(client, NOW + 500) == (0, 5, NOW + 1000, 0)
        assert await list_offset(client, NOW + 1004) == (0, 9, NOW + 1004, 0)
        assert await list_offset(client, NOW + 1005) == NOT_FOUND
        await delete_before(client, 7)
        assert await list_offset(client, 0) == (0, 7, NOW + 1002, 0)


async def test_the_max_timestamp_need_not_be_the_last_record(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t")
        await produce_batch(client, "t", 3, time=NOW + 1000)
        await produce_batch(client, "t", 3, time=NOW)

        assert await list_offset(client, MAX_TIMESTAMP) == (0, 2, NOW + 1002, 0)


async def test_offsets_of_an_empty_log(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t")

        # The leader epoch of the next record.
        assert await list_offset(client, LATEST) == (0, 0, -1, 0)
        assert await list_offset(client, EARLIEST) == (0, 0, -1, 0)
        assert await list_offset(client, EARLIEST_LOCAL) == (0, 0, -1, 0)
        assert await list_offset(client, MAX_TIMESTAMP) == NOT_FOUND
        assert await list_offset(client, LATEST_TIERED) == NOT_FOUND
        assert await list_offset(client, NOW) == NOT_FOUND


@pytest.mark.parametrize(
    ("timestamp", "first_version", "offset"),
    [
        (MAX_TIMESTAMP, 7, 9),
        (EARLIEST_LOCAL, 8, 0),
        (LATEST_TIERED, 9, -1),
        (-6, 11, -1),
        (-7, 99, None),
    ],
)
async def test_an_offset_spec_above_the_version_is_refused(
    tmp_path, timestamp, first_version, offset
):
    async with broker_and_client(tmp_path) as (_broker, client):
        await ten_records(client)

        for version in LIST_OFFSETS.versions:
            response = await offset_for_time(client, "t", timestamp, version=version)
            if version < first_version:
                assert (response.error_code, response.offset) == (ErrorCode.UNSUPPORTED_VERSION, -1)
            else:
                assert (response.error_code, response.offset) == (ErrorCode.NONE, offset)


async def test_errors_are_per_partition(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t", 6)
        await create_topic(client, "u")
        partitions = [
            ListOffsetsPartition(partition_index=0, timestamp=LATEST),
            ListOffsetsPartition(partition_index=1, timestamp=LATEST, current_leader_epoch=0),
            ListOffsetsPartition(partition_index=2, timestamp=LATEST, current_leader_epoch=1),
            ListOffsetsPartition(partition_index=3, timestamp=LATEST, current_leader_epoch=-2),
            ListOffsetsPartition(partition_index=4, timestamp=LATEST),
            ListOffsetsPartition(partition_index=4, timestamp=EARLIEST),
            ListOffsetsPartition(partition_index=6, timestamp=LATEST),
            ListOffsetsPartition(partition_index=-1, timestamp=LATEST),
        ]
        topics = [
            ListOffsetsTopic(name="t", partitions=partitions),
            ListOffsetsTopic(name="u", partitions=partitions[:1]),
            ListOffsetsTopic(name="missing", partitions=partitions[:1]),
            ListOffsetsTopic(name="__cluster_metadata", partitions=partitions[:1]),
        ]

        response = await client.request(ListOffsetsRequest(replica_id=-1, topics=topics))

        codes = {
            topic.name: [part.error_code for part in topic.partitions] for topic in response.topics
        }
        assert codes == {
            "t": [
                ErrorCode.NONE,
                ErrorCode.NONE,
                ErrorCode.UNKNOWN_LEADER_EPOCH,
                ErrorCode.FENCED_LEADER_EPOCH,
                ErrorCode.INVALID_REQUEST,  # A duplicate.
                ErrorCode.INVALID_REQUEST,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ],
            "u": [ErrorCode.NONE],
            "missing": [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
            "__cluster_metadata": [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        }


@pytest.mark.parametrize("isolation_level", [0, 1])
async def test_latest_is_the_high_watermark_in_both_isolation_levels(tmp_path, isolation_level):
    async with broker_and_client(tmp_path) as (_broker, client):
        await ten_records(client)
        partition = ListOffsetsPartition(partition_index=0, timestamp=LATEST)

        response = await client.request(
            ListOffsetsRequest(
                replica_id=-1,
                isolation_level=isolation_level,
                topics=[ListOffsetsTopic(name="t", partitions=[partition])],
            )
        )

        assert response.topics[0].partitions[0].offset == 10


async def test_unflushed_records_of_an_fsync_topic_are_not_returned(tmp_path):
    async with broker_and_client(tmp_path) as (broker, client):
        await create_topic(client, "t", durability="fsync")
        await produce_batch(client, "t", 5, time=NOW)
        # The state between an append and its fsync.
        broker.topics.find("t", 0).high_watermark = 3

        assert await list_offset(client, LATEST) == (0, 3, -1, 0)
        assert await list_offset(client, NOW + 2) == (0, 2, NOW + 2, 0)
        assert await list_offset(client, NOW + 3) == NOT_FOUND
        assert await list_offset(client, MAX_TIMESTAMP) == NOT_FOUND


async def test_an_unknown_negative_timestamp_is_unsupported_for_any_partition(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t")

        for partition in (0, 9):
            response = await offset_for_time(client, "t", -6, partition=partition)
            assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
