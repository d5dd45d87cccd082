"""Shards of the group coordinator: each is loaded and unloaded by itself."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from harness import group_requests
from harness.brokers import broker_and_client, partition_of
from harness.group_requests import enter
from harness.logs import NOW, a_batch
from harness.requests import create_topic
from harness.wire import connect
from ottla.broker.requests.errors import NotLeaderError
from ottla.coord.effects import Reply
from ottla.coord.group_shard import MemberIdentity
from ottla.coord.metadata_image import OFFSETS_TOPIC, TopicPartition
from ottla.coord.partition_state import PartitionState
from ottla.coord.placement import coordinator_partition
from ottla.coord.records import CommittedOffset
from ottla.protocol.errors import ErrorCode

SHARD_COUNT = 4
CONFIGS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": str(SHARD_COUNT),
}
T0 = ("t", 0)
NO_MEMBER = MemberIdentity("", None, -1)


def shard_index(group_id):
    return coordinator_partition(group_id, SHARD_COUNT)


#: Two groups of one shard, and one of another.
FIRST, SECOND = [name for name in map("g{}".format, range(40)) if shard_index(name) == 1][:2]
ELSEWHERE = next(name for name in map("g{}".format, range(40)) if shard_index(name) == 2)


@asynccontextmanager
async def a_coordinator(path, **configs):
    async with broker_and_client(path, CONFIGS | configs) as (broker, client):
        await create_topic(client, "t", 2)
        await group_requests.find(client, FIRST)
        yield broker, client


def commit(broker, group_id, offset):
    """Submit a commit; its response, or a future of it."""
    offsets = {TopicPartition(*T0): CommittedOffset(offset, -1, "", 0)}
    return broker.groups.submit(
        group_id,
        lambda shard, token, now: shard.commit(
            group_id,
            NO_MEMBER,
            offsets,
            lambda codes: Reply(token, codes[T0]),
            now,
            version=9,
        ),
        lambda code: code,
    )


def committed(broker, group_id):
    return {tp: offset.offset for tp, offset in broker.groups.committed(group_id).items()}


async def test_a_shard_that_is_unloaded_and_loaded_again_has_its_groups_and_offsets(tmp_path):
    async with a_coordinator(tmp_path) as (broker, client):
        member = await enter(client, FIRST)
        await group_requests.sync(client, member, {member.id: b"assigned"})
        await group_requests.commit(client, FIRST, {T0: 5}, member=member)
        await group_requests.commit(client, SECOND, {T0: 6})

        broker.groups.unload_shard(shard_index(FIRST))
        await broker.groups.load_shard(shard_index(FIRST))

        group = broker.groups.group(FIRST)
        assert group.state.value == "Stable"
        assert group.members[member.id].assignment == b"assigned"
        assert await group_requests.heartbeat(client, member) == ErrorCode.NONE
        assert await group_requests.committed(client, FIRST) == {T0: 5}
        assert await group_requests.committed(client, SECOND) == {T0: 6}


async def test_groups_of_other_shards_are_served_while_one_is_unloaded(tmp_path):
    async with a_coordinator(tmp_path) as (broker, client):
        await group_requests.commit(client, FIRST, {T0: 5})
        await group_requests.commit(client, ELSEWHERE, {T0: 7})

        broker.groups.unload_shard(shard_index(FIRST))

        fetched = await group_requests.fetch(client, FIRST, [T0])
        assert fetched.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await group_requests.committed(client, ELSEWHERE) == {T0: 7}
        assert list(await group_requests.list_groups(client)) == [ELSEWHERE]
        assert broker.groups.group(FIRST) is None


async def test_members_that_wait_when_their_shard_is_unloaded_get_not_coordinator(tmp_path):
    async with a_coordinator(tmp_path) as (broker, client), connect(broker.address) as other:
        first = await enter(client, FIRST)
        second = asyncio.create_task(group_requests.join(other, FIRST, version=3))
        while await group_requests.state_of(client, FIRST) != "PreparingRebalance":
            await asyncio.sleep(0)
        shard = broker.groups.shards[shard_index(FIRST)]

        broker.groups.unload_shard(shard_index(FIRST))

        assert (await second).error_code == ErrorCode.NOT_COORDINATOR
        assert await group_requests.heartbeat(client, first) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert shard._timer.cancelled()


async def test_a_commit_in_flight_when_its_shard_is_unloaded_gets_not_coordinator(tmp_path):
    async with a_coordinator(tmp_path) as (broker, _client):
        broker.topics.find(OFFSETS_TOPIC, shard_index(FIRST)).acks_all_waits = True
        response = commit(broker, FIRST, 5)
        assert not response.done()

        broker.groups.unload_shard(shard_index(FIRST))

        assert response.result() == ErrorCode.NOT_COORDINATOR
        # It is in the log all the same, and so it is committed for the next coordinator.
        await broker.groups.load_shard(shard_index(FIRST))
        assert committed(broker, FIRST) == {T0: 5}


async def test_groups_of_a_shard_that_is_loading_get_load_in_progress(tmp_path):
    async with a_coordinator(tmp_path) as (broker, client):
        await group_requests.commit(client, FIRST, {T0: 5})
        broker.groups.unload_shard(shard_index(FIRST))

        loading = asyncio.create_task(broker.groups.load_shard(shard_index(FIRST)))
        await asyncio.sleep(0)

        assert broker.groups.is_loading
        assert broker.groups.check(FIRST) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert broker.groups.check(ELSEWHERE) == ErrorCode.NONE
        await loading
        assert broker.groups.check(FIRST) == ErrorCode.NONE
        assert not broker.groups.is_loading


async def test_a_shard_that_is_unloaded_while_it_loads_is_not_served(tmp_path):
    async with a_coordinator(tmp_path) as (broker, client):
        await group_requests.commit(client, FIRST, {T0: 5})
        broker.groups.unload_shard(shard_index(FIRST))
        loading = asyncio.create_task(broker.groups.load_shard(shard_index(FIRST)))
        await asyncio.sleep(0)

        broker.groups.unload_shard(shard_index(FIRST))
        await loading

        assert broker.groups.check(FIRST) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        await broker.groups.load_shard(shard_index(FIRST))
        assert committed(broker, FIRST) == {T0: 5}


async def test_groups_of_several_shards_are_deleted_in_one_request(tmp_path):
    async with a_coordinator(tmp_path) as (broker, client):
        for group_id in (FIRST, SECOND, ELSEWHERE):
            await group_requests.commit(client, group_id, {T0: 5})

        codes = await group_requests.delete(client, FIRST, ELSEWHERE, "missing", FIRST)

        assert codes == {
            FIRST: ErrorCode.NONE,
            ELSEWHERE: ErrorCode.NONE,
            "missing": ErrorCode.GROUP_ID_NOT_FOUND,
        }
        assert [group.id for group in broker.groups.groups()] == [SECOND]


async def test_memory_counts_the_groups_of_all_shards(tmp_path):
    # Three quarters are for groups without members: enough for two.
    async with a_coordinator(tmp_path, **{"broker.memory.max.bytes": "8000"}) as (broker, _client):
        assert commit(broker, FIRST, 1) == ErrorCode.NONE
        assert commit(broker, ELSEWHERE, 1) == ErrorCode.NONE

        assert commit(broker, SECOND, 1) == ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_commits_complete_in_log_order_when_durability_is_lowered_meanwhile(tmp_path):
    async with a_coordinator(tmp_path) as (broker, _client):
        partition = broker.topics.find(OFFSETS_TOPIC, shard_index(FIRST))
        partition.acks_all_waits = True
        earlier = commit(broker, FIRST, 1)
        partition.acks_all_waits = False
        later = commit(broker, FIRST, 2)

        assert not earlier.done()
        assert not later.done()
        assert committed(broker, FIRST) == {}
        assert [await earlier, await later] == [ErrorCode.NONE] * 2
        assert committed(broker, FIRST) == {T0: 2}


async def test_a_leader_that_is_replaced_appends_nothing_more(tmp_path):
    """What waits behind an append that fails is tried at once, before the shard is unloaded."""
    async with a_coordinator(tmp_path) as (broker, _client):
        partition = partition_of(broker)
        partition.lead(PartitionState((0, 1, 2), 0, 1, (0, 1, 2)), broker.id, NOW)
        first = partition.append(a_batch(1), NOW)
        errors = []

        def append_another(error):
            errors.append(error)
            with pytest.raises(NotLeaderError):
                partition.append(a_batch(1), NOW)

        partition.when_committed(first.last_offset, append_another)
        partition.follow(PartitionState((0, 1, 2), 1, 2, (1, 2)), is_active=True)

        assert [type(error) for error in errors] == [NotLeaderError]
        assert partition.log.end_offset == first.last_offset + 1
        assert partition.high_watermark == first.base_offset
