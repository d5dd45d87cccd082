"""Share groups over the wire: sessions, acquisition, acknowledgements, locks, offsets, restarts."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from harness.brokers import a_broker, partition_of
from harness.group_requests import delete, find, list_groups
from harness.logs import NOW, a_batch
from harness.share_members import ACCEPT, REJECT, RELEASE, RENEW, ShareMember
from harness.waiting import eventually
from harness.wire import connect
from ottla.protocol.api.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from ottla.protocol.api.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)
from ottla.protocol.api.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from ottla.protocol.api.share_group_describe import ShareGroupDescribeRequest
from ottla.protocol.batch import RecordBatch
from ottla.protocol.errors import ErrorCode

#: Short enough for a test, and configs that allow it.
LOCKS = {
    "group_share_record_lock_duration_ms": 400,
    "group_share_min_record_lock_duration_ms": 1,
}


def produce(broker, *counts, index=0):
    for count in counts:
        partition_of(broker, "t", index).append(a_batch(count), NOW)


def topic_id_of(broker):
    return broker.topics.image.topics["t"].id


@asynccontextmanager
async def a_group(path, *names, **configs):
    """A broker with a topic, and members of group g, which reads it from the start."""
    async with a_broker(path, {"t": 2}, **configs) as broker, connect(broker) as admin:
        await find(admin, "g")
        async with joined(broker, *names) as members:
            await alter(admin, 0)
            for member in members:
                assert not (await member.beat("t", epoch=0)).error_code
            yield broker, admin, *members


@asynccontextmanager
async def joined(broker, *names):
    members = []
    clients = [connect(broker) for _name in names]
    try:
        for name, client in zip(names, clients, strict=True):
            members.append(ShareMember(await client.__aenter__(), topic_id_of(broker), name))
        yield members
    finally:
        for client in clients:
            await client.__aexit__(None, None, None)


async def alter(client, *offsets, topic="t", group_id="g"):
    response = await client.request(
        AlterShareGroupOffsetsRequest(
            group_id=group_id,
            topics=[
                AlterShareGroupOffsetsRequestTopic(
                    topic_name=topic,
                    partitions=[
                        AlterShareGroupOffsetsRequestPartition(
                            partition_index=index, start_offset=offset
                        )
                        for index, offset in enumerate(offsets)
                    ],
                )
            ],
        )
    )
    if response.error_code:
        return ErrorCode.of(response.error_code).name
    return [
        ErrorCode.of(one.error_code).name
        for one_topic in response.responses
        for one in one_topic.partitions
    ]


async def offsets_of(client, *partitions, topic="t", group_id="g"):
    """The start offset and the lag of partitions of a group."""
    topics = [DescribeShareGroupOffsetsRequestTopic(topic_name=topic, partitions=partitions)]
    response = await client.request(
        DescribeShareGroupOffsetsRequest(
            groups=[
                DescribeShareGroupOffsetsRequestGroup(
                    group_id=group_id, topics=topics if partitions else None
                )
            ]
        )
    )
    (group,) = response.groups
    if group.error_code:
        return ErrorCode.of(group.error_code).name
    return [
        (one.start_offset, one.lag) if not one.error_code else ErrorCode.of(one.error_code).name
        for one_topic in group.topics
        for one in one_topic.partitions
    ]


async def test_members_share_a_partition(tmp_path):
    async with a_group(tmp_path, "anna", "bert") as (broker, admin, anna, bert):
        produce(broker, 3, 3, 4)
        assert await anna.acquire(max_records=5) == [(0, 5, 1)]
        assert await bert.acquire() == [(6, 9, 1)]
        assert (await bert.fetch(0)) == {}
        assert await bert.acknowledge((0, 0, 0, [ACCEPT])) == {0: "INVALID_RECORD_STATE"}
        assert await anna.acknowledge((0, 0, 5, [1, 1, 2, 3, 1, 1])) == {0: "NONE"}
        assert await offsets_of(admin, 0) == [(2, 5)]
        got = await bert.fetch(acks=[(0, 6, 9, [ACCEPT])], max_wait_ms=5000)
        assert (got[0].acquired, got[0].acknowledge_error) == ([(2, 2, 2)], "NONE")
        assert len(got[0].values) == 3, "the whole batch"
        assert await bert.acknowledge((0, 2, 2, [ACCEPT])) == {0: "NONE"}
        assert await offsets_of(admin) == [(10, 0)]
        counts = broker.shares.counts
        assert (counts.acquired, counts.redelivered) == (11, 1)
        assert counts.acknowledged == {"accept": 9, "release": 1, "reject": 1}


async def test_a_fetch_waits_for_records(tmp_path):
    async with a_group(tmp_path, "anna", "bert") as (broker, _admin, anna, bert):
        assert await anna.acquire(max_wait_ms=1) == []
        waiting = asyncio.create_task(anna.acquire(max_wait_ms=20_000))
        other = asyncio.create_task(bert.acquire(max_wait_ms=20_000))
        await eventually(lambda: len(partition_of(broker).waiters) == 2)
        produce(broker, 1)
        done, _ = await asyncio.wait([waiting, other], return_when=asyncio.FIRST_COMPLETED)
        (first,) = done
        assert first.result() == [(0, 0, 1)]
        holder = anna if first is waiting else bert
        assert await holder.acknowledge((0, 0, 0, [RELEASE])) == {0: "NONE"}
        assert await (other if first is waiting else waiting) == [(0, 0, 2)]


async def test_sessions(tmp_path):
    async with a_group(tmp_path, "anna", "bert") as (broker, admin, anna, bert):
        produce(broker, 2)
        assert await anna.acknowledge((0, 0, 0, [1])) == "INVALID_SHARE_SESSION_EPOCH"
        assert await anna.acknowledge((0, 0, 0, [1]), epoch=1) == "SHARE_SESSION_NOT_FOUND"
        assert await anna.fetch(0, epoch=1) == "SHARE_SESSION_NOT_FOUND"
        assert await anna.fetch(0, acks=[(0, 0, 0, [1])]) == "INVALID_REQUEST"
        first = await anna.fetch(0, 1, max_wait_ms=5000)
        assert sorted(first) == [0, 1], "the first response has every partition"
        assert await anna.fetch(epoch=7) == "INVALID_SHARE_SESSION_EPOCH"
        assert await anna.fetch() == {}
        produce(broker, 1, index=1)
        assert await anna.fetch(forgotten=[1]) == {}
        assert (await anna.fetch(1))[1].acquired == [(0, 0, 1)]
        stranger = ShareMember(admin, anna.topic_id, "anna", epoch=anna.epoch)
        assert await stranger.fetch() == "SHARE_SESSION_NOT_FOUND", "another connection"
        assert await bert.acquire(max_wait_ms=1) == []
        assert await anna.acknowledge((0, 0, 0, [ACCEPT]), epoch=-1) == {0: "NONE"}
        assert await bert.acquire() == [(1, 1, 2)]
        assert await bert.fetch(epoch=-1, acks=[(0, 1, 1, [REJECT])]) != {}
        assert await anna.fetch(epoch=-1) == "SHARE_SESSION_NOT_FOUND"
        assert len(broker.shares.sessions) == 0


async def test_limits(tmp_path):
    configs = {"group_share_max_share_sessions": 1, "group_share_partition_max_record_locks": 2}
    configs |= {"group_share_min_partition_max_record_locks": 1, "broker_max_partitions": 200}
    async with a_group(tmp_path, "anna", "bert", **configs) as (broker, _admin, anna, bert):
        produce(broker, 5)
        assert await anna.acquire() == [(0, 1, 1)]
        assert await bert.fetch(0) == "SHARE_SESSION_LIMIT_REACHED"
        assert await anna.fetch() == {}
        got = await anna.fetch(acks=[(0, 0, 0, [ACCEPT])], share_acquire_mode=1, max_records=1)
        assert got[0].acquired == [(2, 2, 1)]
        # A session that is too large is closed, and its records are available.
        too_many = range(broker.config.broker_max_partitions + 1)
        assert await anna.fetch(*too_many) == "SHARE_SESSION_LIMIT_REACHED"
        assert await bert.acquire() == [(1, 2, 2)]


@pytest.mark.parametrize(
    ("acks", "code"),
    [
        ((0, 1, 0, [1]), "INVALID_REQUEST"),
        ((0, 0, 9, [1]), "INVALID_REQUEST"),
        ((0, 0, 1, [1, 1, 1]), "INVALID_REQUEST"),
        ((0, 0, 1, [9]), "INVALID_REQUEST"),
        ((0, 0, 1, [RENEW]), "INVALID_REQUEST"),
        ((1, 0, 0, [1]), "INVALID_RECORD_STATE"),
        ((9, 0, 0, [1]), "UNKNOWN_TOPIC_OR_PARTITION"),
    ],
)
async def test_invalid_acknowledgements(tmp_path, acks, code):
    async with a_group(tmp_path, "anna") as (broker, _admin, anna):
        produce(broker, 2)
        await anna.acquire()
        assert await anna.acknowledge(acks) == {acks[0]: code}
        assert await anna.acknowledge((0, 0, 1, [1])) == {0: "NONE"}


async def test_many_partitions_are_acknowledged_in_slices(tmp_path):
    async with a_group(tmp_path, "anna") as (broker, admin, anna):
        produce(broker, 1)
        assert await anna.acquire() == [(0, 0, 1)]
        unknown = [(index, 0, 0, [ACCEPT]) for index in range(2, 600)]
        errors = await anna.acknowledge((0, 0, 0, [ACCEPT]), *unknown)
        assert errors.pop(0) == "NONE"
        assert set(errors.values()) == {"UNKNOWN_TOPIC_OR_PARTITION"}
        got = await anna.fetch(acks=[(0, 0, 0, [ACCEPT]), *unknown])
        assert (got.pop(0).acknowledge_error, len(got)) == ("NONE", 598)
        assert {one.acknowledge_error for one in got.values()} == {"UNKNOWN_TOPIC_OR_PARTITION"}
        assert await offsets_of(admin, 0) == [(1, 0)]


async def test_locks_expire_and_are_renewed(tmp_path):
    async with a_group(tmp_path, "anna", "bert", **LOCKS) as (broker, _admin, anna, bert):
        produce(broker, 2)
        assert await anna.acquire(share_acquire_mode=1) == [(0, 1, 1)]
        for _round in range(3):
            await asyncio.sleep(0.2)
            renewed = await anna.acknowledge((0, 1, 1, [RENEW]), is_renew_ack=True)
            assert renewed == {0: "NONE"}
        assert await bert.acquire() == [(0, 0, 2)]
        assert await anna.acknowledge((0, 0, 0, [ACCEPT])) == {0: "INVALID_RECORD_STATE"}
        assert await anna.acknowledge((0, 1, 1, [ACCEPT])) == {0: "NONE"}
        assert await bert.acknowledge((0, 0, 0, [ACCEPT])) == {0: "NONE"}
        assert broker.shares.counts.expired == 1


async def test_a_lost_connection_and_the_delivery_limit(tmp_path):
    async with a_group(tmp_path) as (broker, admin):
        produce(broker, 2)
        for count in range(1, 6):
            async with joined(broker, "anna") as (anna,):
                await anna.beat("t", epoch=0)
                assert await anna.acquire() == [(0, 1, count)]
        async with joined(broker, "anna") as (anna,):
            produce(broker, 1)
            assert await anna.acquire() == [(2, 2, 1)]
            await eventually(lambda: broker.shares.sessions)
        assert await offsets_of(admin, 0) == [(2, 1)]


async def test_locks_that_are_lost_end_the_session_of_their_member(tmp_path):
    async with a_group(tmp_path, "anna", "bert") as (broker, _admin, anna, bert):
        produce(broker, 2)
        assert await anna.acquire() == [(0, 1, 1)]
        assert await bert.fetch(0, max_wait_ms=1) != {}
        broker.shares.partition_opened(broker.topics.image.topics["t"], 0)
        # Else it would be about records that it may have got again meanwhile.
        assert await anna.acknowledge((0, 0, 1, [ACCEPT])) == "SHARE_SESSION_NOT_FOUND"
        assert await bert.acquire() == [(0, 1, 2)], "it had no locks"
        assert await bert.acknowledge((0, 0, 0, [RELEASE])) == {0: "NONE"}
        assert await anna.acquire(epoch=0) == [(0, 0, 3)]
        assert await anna.acknowledge((0, 0, 0, [ACCEPT])) == {0: "NONE"}


async def test_states_survive_a_restart(tmp_path):
    async with a_group(tmp_path, "anna") as (broker, _admin, anna):
        produce(broker, 6)
        await anna.acquire()
        assert await anna.acknowledge((0, 0, 3, [1, 2, 3, 1])) == {0: "NONE"}
    async with a_broker(tmp_path, {"u": 1}) as broker, connect(broker) as admin:
        await eventually(lambda: not broker.groups.is_loading)
        assert await offsets_of(admin, 0) == [(1, 3)]
        async with joined(broker, "anna") as (anna,):
            anna.member_epoch = 2
            assert await anna.acquire() == [(1, 1, 2), (4, 5, 2)]
            assert await anna.acknowledge((0, 1, 5, [1])) == {0: "INVALID_RECORD_STATE"}
            assert await anna.acknowledge((0, 1, 1, [1]), (0, 4, 5, [1])) == {0: "NONE"}
        assert await offsets_of(admin, 0) == [(6, 0)]


async def test_only_committed_records(tmp_path):
    def transactional(producer_id, count, commit):
        partition = partition_of(broker)
        fields = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0}
        data = a_batch(count, transactional=True, **fields)
        partition.append_produced(RecordBatch(memoryview(data)), NOW, is_validated=True)
        if commit is not None:
            partition.append_marker(
                producer_id=producer_id,
                producer_epoch=0,
                coordinator_epoch=0,
                is_commit=commit,
                transaction_version=1,
                now_ms=NOW,
            )

    async with a_group(tmp_path, "anna") as (broker, _admin, anna):
        await broker.controller.alter_group_configs(
            "g",
            lambda configs: {**configs, "share.isolation.level": "read_committed"},
            lambda _configs: None,
        )
        transactional(1, 2, commit=False)
        transactional(2, 2, commit=True)
        produce(broker, 1)
        transactional(3, 1, commit=None)
        produce(broker, 1)
        assert await anna.acquire() == [(3, 4, 1), (6, 6, 1)]
        assert await anna.fetch(acks=[(0, 3, 4, [1]), (0, 6, 6, [1])]) != {}
        assert await anna.acquire(max_wait_ms=1) == []


async def test_offsets_are_altered_described_and_deleted(tmp_path):
    async with a_group(tmp_path, "anna") as (broker, admin, anna):
        produce(broker, 9)
        assert await alter(admin, 4) == "NON_EMPTY_GROUP"
        await anna.acquire()
        await anna.beat(epoch=-1)
        assert await alter(admin, 4, 0, -1) == ["NONE", "NONE", "UNKNOWN_TOPIC_OR_PARTITION"]
        assert await alter(admin, -5) == ["INVALID_REQUEST"]
        assert await offsets_of(admin, 0, 1, 2) == [(4, 5), (0, 0), "UNKNOWN_TOPIC_OR_PARTITION"]
        assert await anna.acknowledge((0, 0, 3, [ACCEPT])) == {0: "FENCED_STATE_EPOCH"}
        await anna.beat("t", epoch=0)
        assert await anna.fetch() == "SHARE_SESSION_NOT_FOUND", "it had locks"
        assert await anna.acquire(epoch=0) == [(4, 8, 1)]
        topics = [DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in ("t", "u")]
        request = DeleteShareGroupOffsetsRequest(group_id="g", topics=topics)
        assert (await admin.request(request)).error_code == ErrorCode.NON_EMPTY_GROUP
        await anna.beat(epoch=-1)
        codes = [one.error_code for one in (await admin.request(request)).responses]
        assert codes == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert await offsets_of(admin) == []
        assert await offsets_of(admin, 0) == [(-1, -1)]
        assert await offsets_of(admin, group_id="no") == "GROUP_ID_NOT_FOUND"
        await anna.beat("t", epoch=0)
        assert await anna.acquire(epoch=0, max_wait_ms=200) == []
        assert await anna.acquire(epoch=0, max_wait_ms=200) == []
        produce(broker, 1)
        assert await anna.acquire() == [(9, 9, 1)], "latest, the default"
        assert await anna.acknowledge((0, 9, 9, [ACCEPT])) == {0: "NONE"}
        await anna.beat(epoch=-1)
        assert await alter(admin, 7) == ["NONE"]
        await anna.beat("t", epoch=0)
        assert await anna.acquire(epoch=0) == [(7, 9, 1)], "a new session notices"
        await anna.beat(epoch=-1)
        assert await delete(admin, "g") == {"g": 0}
        assert await anna.fetch(0, epoch=0, max_wait_ms=5000) == "GROUP_ID_NOT_FOUND"


async def test_groups_are_listed_and_described(tmp_path):
    async with a_group(tmp_path, "anna") as (broker, admin, _anna):
        listed = (await list_groups(admin))["g"]
        assert (listed.group_type, listed.group_state) == ("share", "Stable")
        assert listed.protocol_type == "share"
        response = await admin.request(ShareGroupDescribeRequest(group_ids=["g", "no"]))
        group, missing = response.groups
        assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        (member,) = group.members
        assert (group.group_state, group.assignor_name, member.member_id) == (
            "Stable",
            "simple",
            "anna",
        )
        (assigned,) = member.assignment.topic_partitions
        assert (assigned.topic_name, list(assigned.partitions)) == ("t", [0, 1])
        assert broker.shares.size_bytes() == 0


@pytest.mark.parametrize(
    ("reset", "expected"),
    [("earliest", 0), ("latest", 2), ("by_duration:PT1H", 2), ("by_duration:P9999D", 0)],
)
async def test_where_a_group_starts(tmp_path, reset, expected):
    async with a_broker(tmp_path, {"t": 1}) as broker, connect(broker) as admin:
        await find(admin, "g")
        await broker.controller.alter_group_configs(
            "g", lambda _configs: {"share.auto.offset.reset": reset}, lambda _configs: None
        )
        produce(broker, 2)
        async with joined(broker, "anna") as (anna,):
            await anna.beat("t", epoch=0)
            await anna.acquire(max_wait_ms=100)
            produce(broker, 1)
            await anna.fetch(max_wait_ms=5000)
            (led,) = broker.shares._led.values()
            assert led.records.start_offset == expected
