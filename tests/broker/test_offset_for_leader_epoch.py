"""OffsetForLeaderEpoch: end offsets of leader epochs."""

import pytest

from harness.brokers import broker_and_client
from harness.requests import create_topic, produce_batch
from ottla.protocol.api.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.registry import OFFSET_FOR_LEADER_EPOCH

NOTHING = (ErrorCode.NONE, -1, -1)


async def end_of(client, epoch, *, topic="t", partition=0, current=-1, version=4):
    requested = OffsetForLeaderPartition(
        partition=partition, leader_epoch=epoch, current_leader_epoch=current
    )
    response = await client.request(
        OffsetForLeaderEpochRequest(
            replica_id=-1, topics=[OffsetForLeaderTopic(topic=topic, partitions=[requested])]
        ),
        version,
    )
    [part] = response.topics[0].partitions
    assert part.partition == partition
    return part.error_code, part.leader_epoch, part.end_offset


@pytest.mark.parametrize("version", [*OFFSET_FOR_LEADER_EPOCH.versions])
async def test_the_current_epoch_ends_at_the_log_end_offset(tmp_path, version):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t")
        assert await end_of(client, 0, version=version) == (ErrorCode.NONE, 0, 0)

        await produce_batch(client, "t", 7)

        assert await end_of(client, 0, version=version) == (ErrorCode.NONE, 0, 7)
        assert await end_of(client, 1, version=version) == NOTHING
        assert await end_of(client, -1, version=version) == NOTHING


async def test_a_wrong_current_leader_epoch_is_fenced(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t")

        assert (await end_of(client, 0, current=0))[0] == ErrorCode.NONE
        assert (await end_of(client, 0, current=1))[0] == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert (await end_of(client, 0, current=-2))[0] == ErrorCode.FENCED_LEADER_EPOCH
        for where in ({"partition": 1}, {"topic": "missing"}):
            assert (await end_of(client, 0, **where))[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
