"""ListOffsets: the ends of a log, and the record of a time."""

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
NOTHING = (ErrorCode.NONE, -1, -1, -1)


async def found(client, timestamp, **where):
    answer = await offset_for_time(client, "t", timestamp, **where)
    return answer.error_code, answer.offset, answer.timestamp, answer.leader_epoch


async def delete_before(client, offset):
    wanted = DeleteRecordsPartition(partition_index=0, offset=offset)
    topic = DeleteRecordsTopic(name="t", partitions=[wanted])
    await client.request(DeleteRecordsRequest(topics=[topic]))


async def ten_records(client):
    """Two batches, whose records are a millisecond apart, and a second between them."""
    await create_topic(client, "t")
    await produce_batch(client, "t", 5, time=NOW)
    await produce_batch(client, "t", 5, time=NOW + 1000)


@pytest.mark.parametrize("version", [*LIST_OFFSETS.versions])
async def test_every_version_knows_both_ends_and_times(tmp_path, version):
    async with broker_and_client(tmp_path) as (_broker, client):
        await ten_records(client)
        await delete_before(client, 2)
        epoch = 0 if version >= 4 else -1

        assert await found(client, LATEST, version=version) == (0, 10, -1, epoch)
        assert await found(client, EARLIEST, version=version) == (0, 2, -1, epoch)
        assert await found(client, NOW + 3, version=version) == (0, 3, NOW + 3, epoch)


async def test_a_time_gives_the_first_record_that_is_not_older(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await ten_records(client)

        assert await found(client, 0) == (0, 0, NOW, 0)
        assert await found(client, NOW + 500) == (0, 5, NOW + 1000, 0)
        assert await found(client, NOW + 1004) == (0, 9, NOW + 1004, 0)
        assert await found(client, NOW + 1005) == NOTHING
        await delete_before(client, 7)
        assert await found(client, 0) == (0, 7, NOW + 1002, 0)


async def test_the_youngest_record_need_not_be_the_last(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t")
        await produce_batch(client, "t", 3, time=NOW + 1000)
        await produce_batch(client, "t", 3, time=NOW)

        assert await found(client, MAX_TIMESTAMP) == (0, 2, NOW + 1002, 0)


async def test_an_empty_log_has_ends_and_nothing_between(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t")

        assert await found(client, LATEST) == (0, 0, -1, -1)
        assert await found(client, EARLIEST) == (0, 0, -1, -1)
        assert await found(client, EARLIEST_LOCAL) == (0, 0, -1, -1)
        assert await found(client, MAX_TIMESTAMP) == NOTHING
        assert await found(client, LATEST_TIERED) == NOTHING
        assert await found(client, NOW) == NOTHING


@pytest.mark.parametrize(
    ("place", "since", "offset"),
    [(MAX_TIMESTAMP, 7, 9), (EARLIEST_LOCAL, 8, 0), (LATEST_TIERED, 9, -1), (-6, 99, None)],
)
async def test_a_place_that_a_version_does_not_know_is_refused(tmp_path, place, since, offset):
    async with broker_and_client(tmp_path) as (_broker, client):
        await ten_records(client)

        for version in LIST_OFFSETS.versions:
            answer = await offset_for_time(client, "t", place, version=version)
            if version < since:
                assert (answer.error_code, answer.offset) == (ErrorCode.UNSUPPORTED_VERSION, -1)
            else:
                assert (answer.error_code, answer.offset) == (ErrorCode.NONE, offset)


async def test_errors_are_of_single_partitions(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t", 6)
        await create_topic(client, "u")
        asked = [
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
            ListOffsetsTopic(name="t", partitions=asked),
            ListOffsetsTopic(name="u", partitions=asked[:1]),
            ListOffsetsTopic(name="missing", partitions=asked[:1]),
            ListOffsetsTopic(name="__cluster_metadata", partitions=asked[:1]),
        ]

        answer = await client.request(ListOffsetsRequest(replica_id=-1, topics=topics))

        codes = {
            topic.name: [part.error_code for part in topic.partitions] for topic in answer.topics
        }
        assert codes == {
            "t": [
                ErrorCode.NONE,
                ErrorCode.NONE,
                ErrorCode.UNKNOWN_LEADER_EPOCH,
                ErrorCode.FENCED_LEADER_EPOCH,
                ErrorCode.INVALID_REQUEST,  # it is asked for twice
                ErrorCode.INVALID_REQUEST,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ],
            "u": [ErrorCode.NONE],
            "missing": [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
            "__cluster_metadata": [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        }


@pytest.mark.parametrize("isolation_level", [0, 1])
async def test_the_end_is_the_high_watermark_in_both_isolation_levels(tmp_path, isolation_level):
    async with broker_and_client(tmp_path) as (_broker, client):
        await ten_records(client)
        asked = ListOffsetsPartition(partition_index=0, timestamp=LATEST)

        answer = await client.request(
            ListOffsetsRequest(
                replica_id=-1,
                isolation_level=isolation_level,
                topics=[ListOffsetsTopic(name="t", partitions=[asked])],
            )
        )

        assert answer.topics[0].partitions[0].offset == 10


async def test_what_the_device_does_not_have_yet_is_not_found_in_an_fsynced_topic(tmp_path):
    async with broker_and_client(tmp_path) as (broker, client):
        await create_topic(client, "t", durability="fsync")
        await produce_batch(client, "t", 5, time=NOW)
        # As it is between an append and the end of its sync.
        broker.topics.find("t", 0).log.recovery_point = 3

        assert await found(client, LATEST) == (0, 3, -1, 0)
        assert await found(client, NOW + 2) == (0, 2, NOW + 2, 0)
        assert await found(client, NOW + 3) == NOTHING
        assert await found(client, MAX_TIMESTAMP) == NOTHING
