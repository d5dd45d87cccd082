"""Consumer groups over the wire: all versions of their APIs, validation, limits and restarts."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from harness import group_requests
from harness.brokers import broker_and_client
from harness.group_requests import assignment, enter, subscription
from harness.logs import a_batch
from harness.requests import create_topic, topic_metadata
from harness.waiting import eventually
from harness.wire import connect
from ottla.broker import Broker, BrokerConfig
from ottla.coord.deadlines import Now
from ottla.protocol.api import incremental_alter_configs as incremental
from ottla.protocol.api.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.protocol.api.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.api.list_groups import ListGroupsRequest
from ottla.protocol.api.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from ottla.protocol.api.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.errors import ErrorCode
from ottla.protocol.registry import (
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_GROUPS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    PRODUCE,
    SYNC_GROUP,
)

OFFSETS = "__consumer_offsets"
# No initial delay, and short session timeouts.
QUICK = {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "100"}
T0, T1 = ("t", 0), ("t", 1)


@asynccontextmanager
async def coordinating(path, **configs):
    """A broker with a topic `t` of two partitions, and a client that has found its coordinator."""
    named = {name.replace("_", "."): str(value) for name, value in configs.items()}
    async with broker_and_client(path, QUICK | named) as (broker, client):
        if "t" not in await topic_metadata(client):
            await create_topic(client, "t", 2)
        await group_requests.find(client, "g")
        yield broker, client


@asynccontextmanager
async def clients(broker, count):
    """Connections, one for each member."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(connect(broker.address)) for _ in range(count)]


async def gathered(members, group="g", **wishes):
    """Members of a stable group; the leader is assigned partition 0."""
    entered = await entering(members, group, [wishes] * len(members))
    await synced(members, entered)
    return entered


async def entering(members, group="g", wishes=({}, {})):
    """Members of a group that have joined, but not synced. The first one leads."""
    entered = [await enter(members[0], group, **wishes[0])]
    for count, new_client in enumerate(members[1:], start=1):
        joining = asyncio.create_task(enter(new_client, group, **wishes[count]))
        await until_state(members[0], group, "PreparingRebalance")
        # The other members learn of the new one, and join again.
        again = [enter(members[at], group, entered[at].id, **wishes[at]) for at in range(count)]
        entered = [*await asyncio.gather(*again), await joining]
    return entered


async def synced(members, entered):
    """Sync all members; return the responses."""
    given = {member.id: assignment(t=[at]) for at, member in enumerate(entered)}
    return await asyncio.gather(
        *(
            group_requests.sync(client, member, given if member.is_leader else None)
            for client, member in zip(members, entered, strict=True)
        )
    )


async def until_state(client, group, state):
    async with asyncio.timeout(10):
        while await group_requests.state_of(client, group) != state:
            await asyncio.sleep(0.005)


# FindCoordinator.


@pytest.mark.parametrize("version", [*FIND_COORDINATOR.versions])
async def test_every_version_of_find_coordinator_creates_the_offsets_topic(tmp_path, version):
    async with broker_and_client(tmp_path) as (broker, client):
        assert OFFSETS not in await topic_metadata(client)

        (found,) = await group_requests.find(client, "g", version=version)

        host, _, port = broker.address.rpartition(":")
        assert (found.error_code, found.node_id, found.host, found.port) == (0, 0, host, int(port))
        assert len((await topic_metadata(client))[OFFSETS].partitions) == 8
        assert broker.topics.find(OFFSETS, 0).log.config.cleanup_policy == "compact"


async def test_find_coordinator_of_several_groups_refuses_an_empty_group_id(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        found = await group_requests.find(client, "a", "", "b", version=4)

        assert [(one.key, one.node_id, one.error_code) for one in found] == [
            ("a", 0, ErrorCode.NONE),
            ("", -1, ErrorCode.INVALID_GROUP_ID),
            ("b", 0, ErrorCode.NONE),
        ]
        assert (found[1].host, found[1].port) == ("", -1)
        assert await group_requests.find(client, version=4) == []


@pytest.mark.parametrize("version", [1, 3, 4, 6])
@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (2, ErrorCode.INVALID_REQUEST),
        (-1, ErrorCode.INVALID_REQUEST),
    ],
)
async def test_find_coordinator_supports_no_other_key_types(tmp_path, version, kind, code):
    async with broker_and_client(tmp_path) as (_broker, client):
        (found,) = await group_requests.find(client, "some id", version=version, kind=kind)

        assert (found.error_code, found.node_id, found.host, found.port) == (code, -1, "", -1)
        assert found.error_message
        assert OFFSETS not in await topic_metadata(client)


async def test_concurrent_find_coordinator_requests_create_one_topic(tmp_path):
    async with (
        broker_and_client(tmp_path, {"offsets.topic.num.partitions": "3"}) as (broker, client),
        clients(broker, 10) as others,
    ):
        answers = await asyncio.gather(*(group_requests.find(other, "g") for other in others))

        assert {found.error_code for (found,) in answers} == {ErrorCode.NONE}
        assert len((await topic_metadata(client))[OFFSETS].partitions) == 3
        assert await group_requests.commit(client, "g", {}) == {}


async def test_without_an_offsets_topic_requests_get_coordinator_not_available(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        await create_topic(client, "t", 2)
        nobody = group_requests.Member("g", "m", 1)
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE

        assert (await group_requests.join(client, "g")).error_code == code
        assert (await group_requests.sync(client, nobody)).error_code == code
        assert await group_requests.heartbeat(client, nobody) == code
        assert await group_requests.leave(client, "g", ("m", None)) == (code, [])
        assert await group_requests.leave(client, "g", ("m", None), version=0) == (code, [])
        assert await group_requests.commit(client, "g", {T0: 1}) == {T0: code}
        assert (await group_requests.fetch(client, "g", [T0])).error_code == code
        assert await group_requests.delete_offsets(client, "g", [T0]) == (code, {})
        # Without the topic no group can exist.
        assert await group_requests.delete(client, "g") == {"g": ErrorCode.GROUP_ID_NOT_FOUND}
        assert await group_requests.list_groups(client) == {}
        assert await group_requests.state_of(client, "g") == "Dead"


# Membership.


@pytest.mark.parametrize("version", [*JOIN_GROUP.versions])
async def test_every_version_of_join_group_adds_a_member(tmp_path, version):
    async with coordinating(tmp_path) as (_broker, client):
        first = await group_requests.join(client, "g", version=version)
        if version >= 4:
            # A new member gets its id first, and is not a member yet.
            assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
            assert (first.generation_id, first.members) == (-1, [])
            assert (await group_requests.describe(client, "g")).members == []
            first = await group_requests.join(client, "g", first.member_id, version=version)

        assert (first.error_code, first.generation_id) == (ErrorCode.NONE, 1)
        assert first.member_id.startswith("wire-")
        assert first.leader == first.member_id
        assert first.protocol_name == "range"
        assert first.protocol_type == ("consumer" if version >= 7 else None)
        assert first.skip_assignment is False
        (only,) = first.members
        assert only.member_id == first.member_id
        assert only.metadata == subscription("t")


@pytest.mark.parametrize("version", [*SYNC_GROUP.versions])
async def test_every_version_of_sync_group_returns_the_assignments(tmp_path, version):
    async with coordinating(tmp_path) as (broker, _client), clients(broker, 2) as pair:
        first, second = await entering(pair)
        assert (first.is_leader, second.is_leader) == (True, False)
        assert first.generation == second.generation == 2

        follower = asyncio.create_task(group_requests.sync(pair[1], second, version=version))
        await asyncio.sleep(0.02)
        assert not follower.done(), "a follower waits for the leader"
        shares = {first.id: b"left", second.id: b"right"}
        led = await group_requests.sync(pair[0], first, shares, version=version)
        followed = await follower

        assert (led.error_code, led.assignment) == (ErrorCode.NONE, b"left")
        assert (followed.error_code, followed.assignment) == (ErrorCode.NONE, b"right")
        named = ("consumer", "range") if version >= 5 else (None, None)
        assert (led.protocol_type, led.protocol_name) == named
        # A member whose response was lost may sync again.
        again = await group_requests.sync(pair[1], second, version=version)
        assert again.assignment == b"right"


async def test_a_member_missing_from_the_assignment_gets_an_empty_one(tmp_path):
    async with coordinating(tmp_path) as (broker, _client), clients(broker, 2) as pair:
        first, second = await entering(pair)

        _led, followed = await asyncio.gather(
            group_requests.sync(pair[0], first, {first.id: b"all"}),
            group_requests.sync(pair[1], second),
        )

        assert (followed.error_code, followed.assignment) == (ErrorCode.NONE, b"")


@pytest.mark.parametrize("version", [*HEARTBEAT.versions])
async def test_every_version_of_heartbeat_returns_the_state_of_the_member(tmp_path, version):
    async with coordinating(tmp_path) as (broker, _client), clients(broker, 2) as pair:
        (member,) = await gathered(pair[:1])

        assert await group_requests.heartbeat(pair[0], member, version=version) == ErrorCode.NONE
        stale = member._replace(generation=0)
        code = await group_requests.heartbeat(pair[0], stale, version=version)
        assert code == ErrorCode.ILLEGAL_GENERATION
        unknown = member._replace(id="somebody")
        code = await group_requests.heartbeat(pair[0], unknown, version=version)
        assert code == ErrorCode.UNKNOWN_MEMBER_ID

        joining = asyncio.create_task(enter(pair[1], "g"))
        await until_state(pair[0], "g", "PreparingRebalance")
        code = await group_requests.heartbeat(pair[0], member, version=version)
        assert code == ErrorCode.REBALANCE_IN_PROGRESS
        await group_requests.leave(pair[0], "g", (member.id, None))
        assert (await joining).is_leader


@pytest.mark.parametrize("version", [*LEAVE_GROUP.versions])
async def test_every_version_of_leave_group_removes_a_member(tmp_path, version):
    async with coordinating(tmp_path) as (broker, client), clients(broker, 2) as pair:
        first, second = await gathered(pair)

        gone = await group_requests.leave(client, "g", (first.id, None), version=version)
        unknown = await group_requests.leave(client, "g", ("nobody", None), version=version)

        # One member and one error before version 3; several, with one error each, since.
        if version < 3:
            assert gone == (ErrorCode.NONE, [])
            assert unknown == (ErrorCode.UNKNOWN_MEMBER_ID, [])
        else:
            assert gone == (ErrorCode.NONE, [ErrorCode.NONE])
            assert unknown == (ErrorCode.NONE, [ErrorCode.UNKNOWN_MEMBER_ID])
        assert await group_requests.heartbeat(client, second) == ErrorCode.REBALANCE_IN_PROGRESS
        again = await enter(pair[1], "g", second.id)
        assert (again.generation, again.is_leader) == (3, True)
        await group_requests.leave(client, "g", (second.id, None), version=version)
        assert await group_requests.state_of(client, "g") == "Empty"


async def test_leave_group_removes_several_members(tmp_path):
    async with coordinating(tmp_path) as (broker, client), clients(broker, 2) as pair:
        first, _second = await gathered(pair)
        static = asyncio.create_task(enter(client, "g", instance="machine"))
        await until_state(pair[0], "g", "PreparingRebalance")
        pending = await group_requests.join(pair[0], "g")
        assert pending.error_code == ErrorCode.MEMBER_ID_REQUIRED

        answer = await group_requests.leave(
            pair[0],
            "g",
            (first.id, None),
            ("", "machine"),
            ("", "unknown machine"),
            (pending.member_id, None),
            ("nobody", None),
        )

        unknown = ErrorCode.UNKNOWN_MEMBER_ID
        assert answer == (ErrorCode.NONE, [ErrorCode.NONE, ErrorCode.NONE, unknown, 0, unknown])
        with pytest.raises(AssertionError, match="UNKNOWN_MEMBER_ID"):
            await static  # Its join was waiting.


async def test_a_static_member_rejoins_in_the_same_generation_and_its_old_id_is_fenced(
    tmp_path,
):
    async with coordinating(tmp_path) as (broker, client), clients(broker, 2) as pair:
        static = [{"instance": "one"}, {"instance": "two"}]
        first, second = await entering(pair, wishes=static)
        await synced(pair, [first, second])

        back = await group_requests.join(client, "g", instance="two")

        assert (back.error_code, back.generation_id) == (ErrorCode.NONE, second.generation)
        assert back.member_id != second.id
        assert (back.leader, back.members) == (first.id, [])
        renewed = second._replace(id=back.member_id)
        assert (await group_requests.sync(client, renewed)).assignment == assignment(t=[1])
        assert await group_requests.heartbeat(client, first) == ErrorCode.NONE
        fenced = ErrorCode.FENCED_INSTANCE_ID
        assert await group_requests.heartbeat(pair[1], second) == fenced
        assert (await group_requests.sync(pair[1], second)).error_code == fenced
        assert (
            await group_requests.join(pair[1], "g", second.id, instance="two")
        ).error_code == fenced
        assert await group_requests.commit(pair[1], "g", {T0: 1}, member=second) == {T0: fenced}
        assert await group_requests.leave(pair[1], "g", (second.id, "two")) == (0, [fenced])


@pytest.mark.parametrize("version", [5, 8, 9])
async def test_a_static_leader_that_rejoins_does_not_assign_again(tmp_path, version):
    async with coordinating(tmp_path) as (broker, client), clients(broker, 2) as pair:
        static = [{"instance": "one"}, {"instance": "two"}]
        first, second = await entering(pair, wishes=static)
        await synced(pair, [first, second])

        back = await group_requests.join(client, "g", instance="one", version=version)

        assert back.generation_id == first.generation
        if version >= 9:
            assert (back.leader, back.skip_assignment) == (back.member_id, True)
            assert len(back.members) == 2
        else:
            # Without SkipAssignment, the client must believe that another member leads.
            assert back.leader == first.id
            assert back.members == []
        renewed = first._replace(id=back.member_id)
        assert (await group_requests.sync(client, renewed)).assignment == assignment(t=[0])
        assert await group_requests.heartbeat(pair[1], second) == ErrorCode.NONE


async def test_invalid_joins_are_refused(tmp_path):
    async with coordinating(tmp_path) as (broker, _client), clients(broker, 2) as pair:
        await gathered(pair[:1])

        async def code_of(**wishes):
            group = wishes.pop("group", "g")
            return (await group_requests.join(pair[1], group, **wishes)).error_code

        assert await code_of(group="") == ErrorCode.INVALID_GROUP_ID
        assert await code_of(session_ms=99) == ErrorCode.INVALID_SESSION_TIMEOUT
        assert await code_of(session_ms=1_800_001) == ErrorCode.INVALID_SESSION_TIMEOUT
        assert await code_of(member_id="nobody") == ErrorCode.UNKNOWN_MEMBER_ID
        assert await code_of(member_id="nobody", group="h") == ErrorCode.UNKNOWN_MEMBER_ID
        assert await code_of(instance="i", member_id="nobody") == ErrorCode.UNKNOWN_MEMBER_ID
        inconsistent = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert await code_of(protocols={"roundrobin": b""}) == inconsistent
        assert await code_of(protocol_type="connect") == inconsistent
        assert await code_of(protocols={}) == inconsistent
        assert await code_of(protocols={}, group="h") == inconsistent
        assert await code_of(protocol_type="", group="h") == inconsistent
        # None of them changed anything.
        assert list(await group_requests.list_groups(pair[1])) == ["g"]
        assert await group_requests.state_of(pair[1], "g") == "Stable"


async def test_invalid_syncs_are_refused(tmp_path):
    async with coordinating(tmp_path) as (_broker, client):
        (member,) = await gathered([client])

        async def code_of(member, **said):
            return (await group_requests.sync(client, member, **said)).error_code

        assert await code_of(member._replace(group="")) == ErrorCode.INVALID_GROUP_ID
        assert await code_of(member._replace(group="h")) == ErrorCode.UNKNOWN_MEMBER_ID
        assert await code_of(member._replace(id="nobody")) == ErrorCode.UNKNOWN_MEMBER_ID
        assert await code_of(member._replace(generation=9)) == ErrorCode.ILLEGAL_GENERATION
        inconsistent = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert await code_of(member, protocol=("consumer", "roundrobin")) == inconsistent
        assert await code_of(member, protocol=("connect", "range")) == inconsistent
        assert await code_of(member, protocol=(None, "range")) == inconsistent
        assert await code_of(member, protocol=("consumer", None)) == inconsistent
        assert await code_of(member) == ErrorCode.NONE


async def test_the_protocol_is_chosen_by_majority_of_those_that_all_support(tmp_path):
    async with coordinating(tmp_path) as (broker, _client), clients(broker, 3) as three:
        likes = [
            {"range": b"1", "sticky": b"one", "roundrobin": b""},
            {"sticky": b"two", "range": b"2"},
            {"sticky": b"three", "range": b"3"},
        ]
        entered = await entering(three, "g", [{"protocols": said} for said in likes])
        # Joins that are sent again get the same answers.
        answers = [
            await group_requests.join(client, "g", member.id, protocols=said)
            for client, member, said in zip(three, entered, likes, strict=True)
        ]

        assert {answer.protocol_name for answer in answers} == {"sticky"}
        (leader,) = [answer for answer in answers if answer.members]
        assert {bytes(member.metadata) for member in leader.members} == {b"one", b"two", b"three"}


async def test_the_first_member_does_not_wait_for_member_ids_that_nobody_uses(tmp_path):
    async with coordinating(tmp_path) as (broker, _client), clients(broker, 2) as (one, other):
        given = await group_requests.join(one, "g")
        assert given.error_code == ErrorCode.MEMBER_ID_REQUIRED

        entered = await group_requests.enter(other, "g")

        assert entered.is_leader


async def test_a_member_whose_session_expires_is_removed(tmp_path):
    async with coordinating(tmp_path) as (broker, client), clients(broker, 2) as pair:
        first, second = await entering(pair, wishes=[{"session_ms": 1000}, {}])
        await synced(pair, [first, second])

        async with asyncio.timeout(10):
            while (code := await group_requests.heartbeat(pair[1], second)) == ErrorCode.NONE:
                await asyncio.sleep(0.05)

        assert code == ErrorCode.REBALANCE_IN_PROGRESS
        alone = await enter(pair[1], "g", second.id)
        assert (alone.generation, alone.is_leader) == (3, True)
        assert await group_requests.heartbeat(pair[0], first) == ErrorCode.UNKNOWN_MEMBER_ID
        assert len((await group_requests.describe(client, "g")).members) == 1


async def test_a_member_that_does_not_join_again_in_time_is_removed(tmp_path):
    async with coordinating(tmp_path) as (broker, _client), clients(broker, 2) as pair:
        (first,) = await gathered(pair[:1], rebalance_ms=200)

        second = await enter(pair[1], "g", rebalance_ms=200)

        assert (second.generation, second.is_leader) == (2, True)
        assert await group_requests.heartbeat(pair[0], first) == ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_leader_that_never_syncs_is_replaced(tmp_path):
    async with coordinating(tmp_path) as (broker, _client), clients(broker, 2) as pair:
        first, second = await entering(pair, wishes=[{"rebalance_ms": 1500}] * 2)
        assert first.is_leader

        waited = await group_requests.sync(pair[1], second)

        assert waited.error_code == ErrorCode.REBALANCE_IN_PROGRESS
        again = await enter(pair[1], "g", second.id, rebalance_ms=1500)
        assert again.is_leader


async def test_a_connection_that_closes_while_its_join_waits_does_not_block_the_group(tmp_path):
    async with coordinating(tmp_path) as (broker, client), clients(broker, 1) as (stays,):
        (member,) = await gathered([stays])
        async with connect(broker.address) as leaves:
            joining = asyncio.create_task(enter(leaves, "g", session_ms=1500))
            await until_state(client, "g", "PreparingRebalance")
            joining.cancel()

        member = await enter(stays, "g", member.id)
        assert member.generation == 2
        await group_requests.sync(stays, member, {member.id: b"mine"})
        # It is a member until its session expires: a closed connection says nothing about it.
        assert len((await group_requests.describe(client, "g")).members) == 2
        async with asyncio.timeout(10):
            while await group_requests.heartbeat(stays, member) == ErrorCode.NONE:
                await asyncio.sleep(0.02)
        assert (await enter(stays, "g", member.id)).generation == 3
        assert len((await group_requests.describe(client, "g")).members) == 1


async def test_a_broker_that_stops_does_not_wait_for_members_to_join(tmp_path):
    async with AsyncExitStack() as clients_stack:
        async with coordinating(tmp_path) as (broker, client):
            four = await clients_stack.enter_async_context(clients(broker, 4))
            await gathered(four[:1], "joining")
            joining = asyncio.create_task(group_requests.join(four[1], "joining", version=0))
            _leader, follower = await entering(four[2:], "syncing")
            syncing = asyncio.create_task(group_requests.sync(four[3], follower))
            await until_state(client, "joining", "PreparingRebalance")
            assert await group_requests.state_of(client, "syncing") == "CompletingRebalance"
            started = time.monotonic()

        assert time.monotonic() - started < 8  # Their rebalance timeout is ten seconds.
        # A retriable error, which does not end their membership.
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert [(await joining).error_code, (await syncing).error_code] == [code, code]


# Offsets.


@pytest.mark.parametrize("version", [*OFFSET_COMMIT.versions])
async def test_every_version_of_offset_commit_stores_offset_metadata_and_epoch(tmp_path, version):
    async with coordinating(tmp_path) as (_broker, client):
        epoch = 3 if version >= 6 else -1

        codes = await group_requests.commit(
            client, "g", {T0: 7, T1: 8}, metadata="é", epoch=epoch, version=version
        )

        assert codes == {T0: ErrorCode.NONE, T1: ErrorCode.NONE}
        found = await group_requests.fetch(client, "g", [T0])
        (part,) = found.topics[0].partitions
        assert (part.committed_offset, part.metadata) == (7, "é")
        assert part.committed_leader_epoch == epoch
        # Null metadata is stored as empty.
        await group_requests.commit(client, "g", {T0: 9}, metadata=None, version=version)
        (part,) = (await group_requests.fetch(client, "g", [T0])).topics[0].partitions
        assert (part.committed_offset, part.metadata, part.committed_leader_epoch) == (9, "", -1)


@pytest.mark.parametrize("version", [*OFFSET_FETCH.versions])
async def test_every_version_of_offset_fetch_returns_the_requested_partitions(tmp_path, version):
    async with coordinating(tmp_path) as (_broker, client):
        await group_requests.commit(client, "g", {T1: 8}, metadata="here", epoch=2)

        found = await group_requests.fetch(
            client, "g", [T0, T1, ("t", 9), ("u", 0)], version=version
        )

        assert found.error_code == ErrorCode.NONE
        rows = [
            (topic.name, part.partition_index, part.committed_offset, part.metadata)
            for topic in found.topics
            for part in topic.partitions
        ]
        # Partitions without a commit, or that do not exist, are not errors.
        assert rows == [("t", 0, -1, ""), ("t", 1, 8, "here"), ("t", 9, -1, ""), ("u", 0, -1, "")]
        unknown = ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else ErrorCode.NONE
        assert found.topics[-1].partitions[0].error_code == unknown
        epoch = found.topics[0].partitions[1].committed_leader_epoch
        assert epoch == (2 if version >= 5 else -1)
        assert await group_requests.committed(client, "other", [T0], version=version) == {T0: -1}
        if version >= 2:
            assert await group_requests.committed(client, "g", version=version) == {T1: 8}
            assert await group_requests.committed(client, "other", version=version) == {}
        assert await group_requests.committed(client, "g", [], version=version) == {}


@pytest.mark.parametrize("version", [7, 9])
async def test_offset_fetch_returns_all_partitions_of_a_topic_named_twice(tmp_path, version):
    async with coordinating(tmp_path) as (_broker, client):
        await group_requests.commit(client, "g", {T0: 3, T1: 8})
        kind = OffsetFetchRequestTopics if version >= 8 else OffsetFetchRequestTopic
        topics = [kind(name="t", partition_indexes=[index]) for index in (0, 1)]
        if version >= 8:
            group = OffsetFetchRequestGroup(group_id="g", topics=topics)
            response = await client.request(OffsetFetchRequest(groups=[group]), version)
            (response,) = response.groups
        else:
            response = await client.request(OffsetFetchRequest(group_id="g", topics=topics), 7)

        (topic,) = response.topics
        assert [part.committed_offset for part in topic.partitions] == [3, 8]


async def test_offset_fetch_returns_the_offsets_of_several_groups(tmp_path):
    async with coordinating(tmp_path) as (_broker, client):
        await group_requests.commit(client, "a", {T0: 1})
        await group_requests.commit(client, "b", {T0: 2, T1: 3})
        some = [OffsetFetchRequestTopics(name="t", partition_indexes=[0])]

        answer = await client.request(
            OffsetFetchRequest(
                groups=[
                    OffsetFetchRequestGroup(group_id="b", topics=some),
                    OffsetFetchRequestGroup(group_id="a", topics=None),
                    OffsetFetchRequestGroup(group_id="", topics=some),
                    OffsetFetchRequestGroup(group_id="c", topics=None),
                ],
                require_stable=True,
            ),
            8,
        )

        assert [
            (
                group.group_id,
                group.error_code,
                [part.committed_offset for topic in group.topics for part in topic.partitions],
            )
            for group in answer.groups
        ] == [("b", 0, [2]), ("a", 0, [1]), ("", ErrorCode.INVALID_GROUP_ID, [-1]), ("c", 0, [])]


async def test_offset_fetch_version_1_returns_the_error_in_each_partition(tmp_path):
    async with coordinating(tmp_path) as (_broker, client):
        found = await group_requests.fetch(client, "", [T0], version=1)

        (part,) = found.topics[0].partitions
        assert part.error_code == ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize("version", [9, 10])
async def test_commits_of_missing_partitions_fail_and_the_others_succeed(tmp_path, version):
    async with coordinating(tmp_path) as (_broker, client):
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        no_topic = ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else unknown

        codes = await group_requests.commit(
            client, "g", {T0: 1, ("t", 2): 1, ("t", -1): 1, ("u", 0): 1, T1: 2}, version=version
        )

        assert codes == {T0: 0, ("t", 2): unknown, ("t", -1): unknown, ("u", 0): no_topic, T1: 0}
        assert await group_requests.committed(client, "g") == {T0: 1, T1: 2}
        # With nothing else to commit, no group is created.
        await group_requests.commit(client, "h", {("u", 0): 1})
        assert list(await group_requests.list_groups(client)) == ["g"]


async def test_commit_metadata_that_is_too_large_is_refused(tmp_path):
    async with coordinating(tmp_path) as (_broker, client):
        too_large = ErrorCode.OFFSET_METADATA_TOO_LARGE

        assert await group_requests.commit(client, "g", {T0: 1}, metadata="x" * 4096) == {T0: 0}
        assert await group_requests.commit(client, "g", {T0: 2}, metadata="x" * 4097) == {
            T0: too_large
        }
        # The limit is in bytes.
        assert await group_requests.commit(client, "g", {T0: 3}, metadata="é" * 2049) == {
            T0: too_large
        }
        assert await group_requests.committed(client, "g") == {T0: 1}
        assert await group_requests.commit(client, "h", {T0: 1}, metadata="x" * 4097) == {
            T0: too_large
        }
        assert list(await group_requests.list_groups(client)) == ["g"]


async def test_a_commit_larger_than_max_message_bytes_is_refused(tmp_path):
    async with coordinating(tmp_path) as (_broker, client):
        await create_topic(client, "wide", 600)
        tps = [("wide", at) for at in range(600)]
        texts = {tp: os.urandom(2000).hex() for tp in tps}

        codes = await group_requests.commit(client, "g", dict.fromkeys(tps, 1), metadata=texts)

        assert set(codes.values()) == {ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
        assert await group_requests.committed(client, "g") == {}


@pytest.mark.parametrize("version", [*OFFSET_COMMIT.versions])
async def test_a_commit_with_a_generation_to_a_missing_group_is_refused(tmp_path, version):
    async with coordinating(tmp_path) as (_broker, client):
        member = group_requests.Member("g", "m", 1)

        codes = await group_requests.commit(client, "g", {T0: 1}, member=member, version=version)

        missing = ErrorCode.GROUP_ID_NOT_FOUND if version >= 9 else ErrorCode.ILLEGAL_GENERATION
        assert codes == {T0: missing}
        codes = await group_requests.commit(client, "", {T0: 1}, version=version)
        assert codes == {T0: ErrorCode.INVALID_GROUP_ID}
        assert await group_requests.list_groups(client) == {}


async def test_commits_are_accepted_only_from_members_of_the_current_generation(tmp_path):
    async with coordinating(tmp_path) as (broker, client), clients(broker, 2) as pair:
        first, second = await gathered(pair)

        async def code_of(member):
            (code,) = (await group_requests.commit(client, "g", {T0: 5}, member=member)).values()
            return code

        assert await code_of(first) == ErrorCode.NONE
        assert await code_of(second) == ErrorCode.NONE
        assert await code_of(None) == ErrorCode.UNKNOWN_MEMBER_ID
        assert await code_of(first._replace(id="nobody")) == ErrorCode.UNKNOWN_MEMBER_ID
        assert await code_of(first._replace(generation=1)) == ErrorCode.ILLEGAL_GENERATION
        assert await code_of(first._replace(instance="i")) == ErrorCode.UNKNOWN_MEMBER_ID
        # Members may commit when a rebalance starts, but not once they have joined.
        joining = asyncio.create_task(group_requests.join(client, "g", version=0))
        await until_state(pair[0], "g", "PreparingRebalance")
        assert (await group_requests.commit(pair[0], "g", {T0: 6}, member=first)) == {
            T0: ErrorCode.NONE
        }
        first, second = await asyncio.gather(
            enter(pair[0], "g", first.id), enter(pair[1], "g", second.id)
        )
        await joining
        assert await code_of(first) == ErrorCode.REBALANCE_IN_PROGRESS
        assert await group_requests.committed(client, "g") == {T0: 6}


async def test_a_commit_without_membership_creates_an_empty_group(tmp_path):
    async with coordinating(tmp_path) as (_broker, client):
        await group_requests.commit(client, "simple", {T0: 1})
        (member,) = await gathered([client])
        await group_requests.commit(client, "g", {T0: 2}, member=member)
        await group_requests.leave(client, "g", (member.id, None))

        listed = await group_requests.list_groups(client)

        assert {name: (one.group_state, one.protocol_type) for name, one in listed.items()} == {
            "simple": ("Empty", ""),
            "g": ("Empty", "consumer"),
        }
        assert await group_requests.commit(client, "g", {T0: 3}) == {T0: ErrorCode.NONE}
        assert await group_requests.committed(client, "g") == {T0: 3}


async def test_deleting_a_topic_deletes_its_committed_offsets(tmp_path):
    async with coordinating(tmp_path) as (_broker, client):
        await create_topic(client, "u")
        await group_requests.commit(client, "g", {T0: 1, T1: 1, ("u", 0): 1})
        await group_requests.commit(client, "h", {T0: 1})

        await client.request(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")]))

        assert await group_requests.committed(client, "g") == {("u", 0): 1}
        assert await group_requests.committed(client, "h") == {}
        # A new topic of the same name has no committed offsets.
        await create_topic(client, "t")
        assert await group_requests.committed(client, "g", [T0]) == {T0: -1}

    async with coordinating(tmp_path) as (_broker, client):
        assert await group_requests.committed(client, "g") == {("u", 0): 1}
        assert await group_requests.committed(client, "h") == {}


async def test_offsets_of_a_topic_deleted_just_before_a_crash_are_deleted_at_start(tmp_path):
    async with coordinating(tmp_path) as (broker, client):
        await group_requests.commit(client, "g", {T0: 5})
        # The deletion is in the metadata log, but the broker stops before it is applied.
        image = broker.topics.image
        await broker.topics.metadata_log.append(image.deletion_records(image.topics["t"]))

    async with coordinating(tmp_path) as (_broker, client):
        await loaded(client, "g")
        assert await group_requests.committed(client, "g", [T0]) == {T0: -1}


async def loaded(client, *groups):
    """Wait until the shards of these groups are loaded."""
    async with asyncio.timeout(20):
        for group in groups:
            while (await group_requests.fetch(client, group, [])).error_code != ErrorCode.NONE:
                await asyncio.sleep(0.005)


# Admins.


@pytest.mark.parametrize("version", [*LIST_GROUPS.versions])
async def test_every_version_of_list_groups_returns_all_groups(tmp_path, version):
    async with coordinating(tmp_path) as (broker, client), clients(broker, 1) as alone:
        await group_requests.commit(client, "simple", {T0: 1})
        await gathered(alone)

        listed = await group_requests.list_groups(client, version=version)

        def said(entry):
            return entry.protocol_type, entry.group_state, entry.group_type

        kind = "classic" if version >= 5 else ""
        stable, empty = ("Stable", "Empty") if version >= 4 else ("", "")
        assert {name: said(entry) for name, entry in listed.items()} == {
            "simple": ("", empty, kind),
            "g": ("consumer", stable, kind),
        }


async def test_list_groups_filters_by_state_and_type(tmp_path):
    async with coordinating(tmp_path) as (broker, client), clients(broker, 1) as alone:
        await group_requests.commit(client, "simple", {T0: 1})
        await gathered(alone)

        async def names(**filters):
            return sorted(await group_requests.list_groups(client, **filters))

        assert await names(states=["Stable"]) == ["g"]
        assert await names(states=["empty", "Dead"]) == ["simple"]
        assert await names(states=["PreparingRebalance"]) == []
        assert await names(states=["no such state"]) == []
        assert await names(types=["Classic"]) == ["g", "simple"]
        assert await names(types=["consumer"]) == []
        assert await names(types=["consumer", "classic"], states=["Stable"]) == ["g"]


@pytest.mark.parametrize("version", [*DESCRIBE_GROUPS.versions])
async def test_every_version_of_describe_groups_returns_members_and_assignments(tmp_path, version):
    async with coordinating(tmp_path) as (broker, client), clients(broker, 2) as pair:
        static = [{"instance": "one"}, {"instance": "two"}]
        first, second = await entering(pair, wishes=static)
        await synced(pair, [first, second])
        await group_requests.commit(client, "simple", {T0: 1})

        group, simple, unknown, nameless = await group_requests.describe(
            client, "g", "simple", "unknown", "", version=version
        )

        assert (group.error_code, group.group_id, group.group_state) == (0, "g", "Stable")
        assert (group.protocol_type, group.protocol_data) == ("consumer", "range")
        assert [
            (m.member_id, m.client_id, m.client_host, m.member_metadata, m.member_assignment)
            for m in group.members
        ] == [
            (first.id, "wire", "/127.0.0.1", subscription("t"), assignment(t=[0])),
            (second.id, "wire", "/127.0.0.1", subscription("t"), assignment(t=[1])),
        ]
        named = ["one", "two"] if version >= 4 else [None, None]
        assert [m.group_instance_id for m in group.members] == named
        assert (simple.group_state, simple.protocol_type, simple.members) == ("Empty", "", [])
        code = ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.NONE
        assert (unknown.error_code, unknown.group_state) == (code, "Dead")
        assert unknown.error_message == ("Group unknown not found." if version >= 6 else None)
        assert nameless.error_code == ErrorCode.INVALID_GROUP_ID
        assert group.authorized_operations == -(2**31)
        if version >= 3:
            described = await group_requests.describe(client, "g", version=version, operations=True)
            assert described.authorized_operations == 3400


async def test_describe_groups_returns_no_assignments_during_a_rebalance(tmp_path):
    async with coordinating(tmp_path) as (broker, client), clients(broker, 2) as pair:
        (member,) = await gathered(pair[:1])
        joining = asyncio.create_task(enter(pair[1], "g"))
        await until_state(client, "g", "PreparingRebalance")

        group = await group_requests.describe(client, "g")

        assert (group.protocol_type, group.protocol_data) == ("consumer", "")
        assert {bytes(one.member_assignment) for one in group.members} == {b""}
        await enter(pair[0], "g", member.id)
        await joining


@pytest.mark.parametrize("version", [*DELETE_GROUPS.versions])
async def test_every_version_of_delete_groups_deletes_groups_without_members(tmp_path, version):
    async with coordinating(tmp_path) as (broker, client), clients(broker, 1) as alone:
        await gathered(alone)
        for name in ("simple", "kept"):
            await group_requests.commit(client, name, {T0: 1})

        codes = await group_requests.delete(client, "simple", "g", "unknown", "", version=version)

        assert codes == {
            "simple": ErrorCode.NONE,
            "g": ErrorCode.NON_EMPTY_GROUP,
            "unknown": ErrorCode.GROUP_ID_NOT_FOUND,
            "": ErrorCode.INVALID_GROUP_ID,
        }
        assert sorted(await group_requests.list_groups(client)) == ["g", "kept"]
        assert await group_requests.committed(client, "simple", [T0]) == {T0: -1}
        assert await group_requests.delete(client, "kept", "kept", version=version) == {"kept": 0}

    async with coordinating(tmp_path) as (_broker, client):
        await loaded(client, "simple", "kept", "g")
        assert await group_requests.committed(client, "simple", [T0]) == {T0: -1}
        assert list(await group_requests.list_groups(client)) == ["g"]


async def test_offset_delete_refuses_topics_that_members_subscribe_to(tmp_path):
    async with coordinating(tmp_path) as (broker, client), clients(broker, 1) as alone:
        await create_topic(client, "u")
        u = ("u", 0)
        await group_requests.commit(client, "g", {T0: 1, T1: 2, u: 3})
        (member,) = await gathered(alone)

        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        subscribed = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        code, codes = await group_requests.delete_offsets(client, "g", [T0, u, ("u", 7), ("v", 0)])
        assert code == ErrorCode.NONE
        assert codes == {T0: subscribed, u: 0, ("u", 7): unknown, ("v", 0): unknown}
        assert await group_requests.committed(client, "g") == {T0: 1, T1: 2}

        await group_requests.leave(client, "g", (member.id, None))
        assert await group_requests.delete_offsets(client, "g", [T0, u]) == (0, {T0: 0, u: 0})
        assert await group_requests.committed(client, "g") == {T1: 2}

        missing = ErrorCode.GROUP_ID_NOT_FOUND
        assert await group_requests.delete_offsets(client, "unknown", [T0]) == (missing, {})
        nameless = ErrorCode.INVALID_GROUP_ID
        assert await group_requests.delete_offsets(client, "", [T0]) == (nameless, {})

    async with coordinating(tmp_path) as (_broker, client):
        await loaded(client, "g")
        assert await group_requests.committed(client, "g") == {T1: 2}


async def test_offset_delete_refuses_groups_with_members_of_another_protocol_type(tmp_path):
    async with coordinating(tmp_path) as (_broker, client):
        await group_requests.commit(client, "g", {T0: 1})
        await enter(client, "g", protocol_type="connect", protocols={"range": b"?"})

        code, codes = await group_requests.delete_offsets(client, "g", [T0])

        assert (code, codes) == (ErrorCode.NON_EMPTY_GROUP, {})
        assert await group_requests.committed(client, "g") == {T0: 1}


# The offsets topic.


@pytest.mark.parametrize("version", [1, METADATA.versions.last])
async def test_the_offsets_topic_is_internal(tmp_path, version):
    async with coordinating(tmp_path) as (_broker, client):
        topics = await topic_metadata(client, version=version, create=True)

        assert {name: topic.is_internal for name, topic in topics.items()} == {
            OFFSETS: True,
            "t": False,
        }


@pytest.mark.parametrize("version", [*PRODUCE.versions])
async def test_produce_to_the_offsets_topic_is_refused(tmp_path, version):
    async with coordinating(tmp_path) as (broker, client):
        data = [PartitionProduceData(index=at, records=bytes(a_batch())) for at in range(8)]
        ids = {name: topic.id for name, topic in broker.topics.image.topics.items()}
        topics = [
            TopicProduceData(name=OFFSETS, topic_id=ids[OFFSETS], partition_data=data),
            TopicProduceData(name="t", topic_id=ids["t"], partition_data=data[:1]),
        ]

        answer = await client.request(
            ProduceRequest(acks=-1, timeout_ms=1000, topic_data=topics), version
        )

        own, other = answer.responses
        codes = {part.error_code for part in own.partition_responses}
        assert codes == {ErrorCode.INVALID_TOPIC_EXCEPTION}
        assert other.partition_responses[0].error_code == ErrorCode.NONE
        assert {broker.topics.find(OFFSETS, at).log.end_offset for at in range(8)} == {0}


async def test_the_offsets_topic_cannot_be_created_deleted_or_grown_by_clients(tmp_path):
    async with broker_and_client(tmp_path) as (_broker, client):
        with pytest.raises(AssertionError):
            await create_topic(client, OFFSETS)
        # Metadata does not auto-create it: it would have the wrong number of partitions.
        asked = await topic_metadata(client, OFFSETS, create=True)
        assert asked[OFFSETS].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await group_requests.find(client, "g")

        wanted = CreatePartitionsTopic(name=OFFSETS, count=9, assignments=None)
        grown = await client.request(CreatePartitionsRequest(topics=[wanted]))
        deleted = await client.request(DeleteTopicsRequest(topics=[DeleteTopicState(name=OFFSETS)]))

        assert grown.results[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert deleted.responses[0].error_code != ErrorCode.NONE
        assert len((await topic_metadata(client))[OFFSETS].partitions) == 8


async def test_commits_can_wait_for_an_fsync_without_blocking_other_requests(tmp_path):
    async with coordinating(tmp_path) as (broker, client), clients(broker, 2) as pair:
        (member,) = await gathered(pair[:1])
        await group_requests.commit(client, "simple", {T0: 1})
        await set_durability(client, "fsync")
        partitions = list(
            broker.topics.led_partitions(broker.topics.image.topics[OFFSETS]).values()
        )

        codes = await asyncio.gather(
            group_requests.commit(client, "simple", {T0: 2}),
            group_requests.commit(pair[0], "g", {T0: 3}, member=member),
        )

        assert codes == [{T0: ErrorCode.NONE}] * 2
        for partition in partitions:
            assert partition.log.recovery_point == partition.log.end_offset
        assert await group_requests.committed(client, "simple") == {T0: 2}
        assert await group_requests.committed(client, "g") == {T0: 3}
        # A rebalance appends, too.
        entered = asyncio.create_task(enter(pair[1], "g"))
        await until_state(client, "g", "PreparingRebalance")
        first, second = await enter(pair[0], "g", member.id), await entered
        answers = await synced(pair, [first, second])
        assert [answer.assignment for answer in answers] == [assignment(t=[0]), assignment(t=[1])]
        for at, one in enumerate([first, second]):
            assert await group_requests.leave(pair[at], "g", (one.id, None)) == (0, [0])
        assert await group_requests.delete(client, "g", "unknown", "simple") == {
            "g": ErrorCode.NONE,
            "simple": ErrorCode.NONE,
            "unknown": ErrorCode.GROUP_ID_NOT_FOUND,
        }
        await set_durability(client, "page-cache")
        assert await group_requests.commit(client, "simple", {T0: 4}) == {T0: ErrorCode.NONE}

    async with coordinating(tmp_path) as (_broker, client):
        await loaded(client, "g", "simple")
        assert await group_requests.committed(client, "simple") == {T0: 4}
        assert list(await group_requests.list_groups(client)) == ["simple"]


async def test_commits_that_wait_for_an_fsync_complete_in_order(tmp_path):
    async with coordinating(tmp_path) as (broker, client), clients(broker, 8) as eight:
        await set_durability(client, "fsync")

        async def commit_all(one, first):
            for offset in range(first, 200, 8):
                assert await group_requests.commit(one, f"g{first}", {T0: offset, T1: offset}) == {
                    T0: ErrorCode.NONE,
                    T1: ErrorCode.NONE,
                }

        await asyncio.gather(*(commit_all(one, at) for at, one in enumerate(eight)))

        for at in range(8):
            last = 192 + at
            assert await group_requests.committed(client, f"g{at}") == {T0: last, T1: last}


async def set_durability(client, value):
    config = incremental.AlterableConfig(name="durability", config_operation=0, value=value)
    resource = incremental.AlterConfigsResource(
        resource_type=2, resource_name=OFFSETS, configs=[config]
    )
    answer = await client.request(incremental.IncrementalAlterConfigsRequest(resources=[resource]))
    assert answer.responses[0].error_code == ErrorCode.NONE


# Limits.


async def test_a_full_group_refuses_new_members(tmp_path):
    async with (
        coordinating(tmp_path, group_max_size=2) as (broker, client),
        clients(broker, 2) as pair,
    ):
        first, second = await gathered(pair)

        refused = await group_requests.join(client, "g")
        assert refused.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
        static = await group_requests.join(client, "g", instance="i")
        assert static.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
        # Members may join again, and other groups are not affected.
        assert await group_requests.heartbeat(pair[0], first) == ErrorCode.NONE
        assert (await enter(client, "h")).generation == 1

        await group_requests.leave(pair[0], "g", (first.id, None))
        given = await group_requests.join(pair[0], "g")
        joining = asyncio.create_task(group_requests.join(pair[0], "g", given.member_id))
        assert (await enter(pair[1], "g", second.id)).generation == 3
        assert (await joining).generation_id == 3


async def test_a_pending_member_counts_until_it_joins_or_expires(tmp_path):
    async with coordinating(tmp_path, group_max_size=1) as (_broker, client):
        given = await group_requests.join(client, "g", session_ms=1500)
        assert given.error_code == ErrorCode.MEMBER_ID_REQUIRED

        full = await group_requests.join(client, "g")
        assert full.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED

        await asyncio.sleep(1.6)
        assert (await enter(client, "g")).generation == 1
        late = await group_requests.join(client, "g", given.member_id)
        assert late.error_code != ErrorCode.NONE


async def test_broker_max_groups_limits_the_groups_with_members(tmp_path):
    async with coordinating(tmp_path, broker_max_groups=1) as (_broker, client):
        await group_requests.commit(client, "a", {T0: 1})
        (member,) = await gathered([client], "b")

        full = ErrorCode.COORDINATOR_NOT_AVAILABLE  # Clients try it again.
        assert (await group_requests.join(client, "c")).error_code == full
        assert (await group_requests.join(client, "a")).error_code == full
        # Existing groups go on, and commits without members.
        assert await group_requests.commit(client, "a", {T0: 2}) == {T0: ErrorCode.NONE}
        assert await group_requests.commit(client, "c", {T0: 1}) == {T0: ErrorCode.NONE}
        assert await group_requests.heartbeat(client, member) == ErrorCode.NONE
        await group_requests.leave(client, "b", (member.id, None))
        assert (await enter(client, "c")).generation == 1


async def test_a_group_record_larger_than_max_message_bytes_is_compressed(tmp_path):
    # Similar metadata, as in real groups.
    said = {"range": subscription(*(f"some.department.topic-{at}" for at in range(800)))}
    async with (
        coordinating(tmp_path, group_initial_rebalance_delay_ms=1500) as (broker, client),
        clients(broker, 80) as many,
    ):
        wishes = {"protocols": said, "session_ms": 60_000}
        entered = await asyncio.gather(*(enter(one, "g", **wishes) for one in many))
        assert {member.generation for member in entered} == {1}
        answers = await synced(many, entered)
        assert {answer.error_code for answer in answers} == {ErrorCode.NONE}
        assert len(said["range"]) * len(many) > 2**20

    async with coordinating(tmp_path) as (_broker, client):
        await loaded(client, "g")
        group = await group_requests.describe(client, "g")
        assert (group.group_state, len(group.members)) == ("Stable", 80)
        assert {bytes(member.member_metadata) for member in group.members} == {said["range"]}


# Restarts.


async def test_a_group_survives_a_restart(tmp_path):
    async with coordinating(tmp_path) as (broker, client), clients(broker, 2) as pair:
        members = await gathered(pair)
        await group_requests.commit(
            client, "g", {T0: 5}, member=members[0], metadata="text", epoch=1
        )
        await group_requests.commit(client, "simple", {T1: 6})
        before = await group_requests.describe(client, "g"), await group_requests.fetch(client, "g")

    async with coordinating(tmp_path) as (broker, client), clients(broker, 2) as pair:
        await loaded(client, "g", "simple")
        assert (
            await group_requests.describe(client, "g"),
            await group_requests.fetch(client, "g"),
        ) == before
        assert await group_requests.committed(client, "simple") == {T1: 6}
        for one, member in zip(pair, members, strict=True):
            assert await group_requests.heartbeat(one, member) == ErrorCode.NONE
            assert await group_requests.commit(one, "g", {T0: 7}, member=member) == {
                T0: ErrorCode.NONE
            }
        assert (await group_requests.sync(pair[1], members[1])).assignment == assignment(t=[1])
        # Generations continue.
        joining = asyncio.create_task(enter(client, "g"))
        await until_state(pair[0], "g", "PreparingRebalance")
        again = await asyncio.gather(
            *(enter(one, "g", was.id) for one, was in zip(pair, members, strict=True))
        )
        assert {member.generation for member in [*again, await joining]} == {3}


async def test_members_that_are_silent_after_a_restart_expire(tmp_path):
    async with coordinating(tmp_path) as (_broker, client):
        await gathered([client], session_ms=1500)

    async with coordinating(tmp_path) as (_broker, client):
        await loaded(client, "g")
        assert await group_requests.state_of(client, "g") == "Stable"
        await until_state(client, "g", "Empty")

    async with coordinating(tmp_path) as (_broker, client):
        await loaded(client, "g")
        assert await group_requests.state_of(client, "g") == "Empty"


async def test_a_static_member_survives_a_restart(tmp_path):
    async with coordinating(tmp_path) as (_broker, client):
        (member,) = await gathered([client], instance="one")

    async with coordinating(tmp_path) as (_broker, client):
        await loaded(client, "g")
        back = await group_requests.join(client, "g", instance="one")

        assert (back.error_code, back.generation_id) == (ErrorCode.NONE, member.generation)
        assert (back.skip_assignment, back.member_id != member.id) == (True, True)
        assert await group_requests.heartbeat(client, member) == ErrorCode.FENCED_INSTANCE_ID
        renewed = member._replace(id=back.member_id)
        assert (await group_requests.sync(client, renewed)).assignment == assignment(t=[0])

    async with coordinating(tmp_path) as (_broker, client):
        await loaded(client, "g")
        assert await group_requests.heartbeat(client, renewed) == ErrorCode.NONE


async def test_groups_get_load_in_progress_until_their_shard_is_loaded(tmp_path):
    configs = {"offsets_topic_num_partitions": 2}
    big, small = "d", "c"  # In partition 0 and in partition 1.
    async with coordinating(tmp_path, **configs) as (broker, client):
        await create_topic(client, "wide", 200)
        for offset in range(60):
            await group_requests.commit(
                client, big, {("wide", at): offset for at in range(200)}, metadata="x" * 4000
            )
        (member,) = await gathered([client], small)
        await group_requests.commit(client, small, {T0: 1}, member=member)
        sizes = [broker.topics.find(OFFSETS, at).log.size for at in range(2)]
        assert sizes[0] > 40_000_000 > sizes[1]

    async with coordinating(tmp_path, **configs) as (_broker, client):
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        # FindCoordinator works meanwhile.
        (found,) = await group_requests.find(client, small)
        assert (found.error_code, found.node_id) == (ErrorCode.NONE, 0)
        assert await group_requests.heartbeat(client, member) == loading
        assert (await group_requests.join(client, small, member.id)).error_code == loading
        assert (await group_requests.sync(client, member)).error_code == loading
        gone = await group_requests.leave(client, small, (member.id, None))
        assert gone == (loading, [])
        code, _ = await group_requests.leave(client, small, (member.id, None), version=0)
        assert code == loading
        codes = await group_requests.commit(client, small, {T0: 2, ("u", 0): 3}, member=member)
        assert set(codes.values()) == {loading}
        fetched = await group_requests.fetch(client, small, [T0])
        assert (fetched.error_code, fetched.topics[0].partitions[0].error_code) == (loading,) * 2
        assert (await group_requests.fetch(client, small)).error_code == loading
        old = await group_requests.fetch(client, small, [T0], version=1)
        assert old.topics[0].partitions[0].error_code == loading
        described = await group_requests.describe(client, small)
        assert (described.error_code, described.members) == (loading, [])
        assert await group_requests.delete(client, small) == {small: loading}
        assert await group_requests.delete_offsets(client, small, [T0]) == (loading, {})
        listed = await client.request(ListGroupsRequest())
        assert listed.error_code == loading

        await loaded(client, small)

        assert await group_requests.heartbeat(client, member) == ErrorCode.NONE
        assert await group_requests.committed(client, small) == {T0: 1}
        assert sorted(await group_requests.list_groups(client)) == [small, big]
        assert set((await group_requests.committed(client, big)).values()) == {59}


async def test_a_broker_can_stop_while_it_loads_groups(tmp_path):
    configs = {"offsets_topic_num_partitions": 1}
    async with coordinating(tmp_path, **configs) as (_broker, client):
        await create_topic(client, "wide", 200)
        for offset in range(60):
            await group_requests.commit(
                client, "g", {("wide", at): offset for at in range(200)}, metadata="x" * 4000
            )

    config = BrokerConfig(log_dir=str(tmp_path), listeners="PLAINTEXT://127.0.0.1:0")
    broker = Broker(config)
    await broker.start()
    assert broker.groups.check("g") == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await broker.stop()
    assert broker.groups.check("g") == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    async with coordinating(tmp_path, **configs) as (_broker, client):
        await loaded(client, "g")
        assert set((await group_requests.committed(client, "g")).values()) == {59}


async def test_expired_offsets_do_not_come_back_after_a_restart(tmp_path):
    configs = {"offsets_retention_minutes": 1, "offsets_retention_check_interval_ms": 20}
    async with coordinating(tmp_path, **configs) as (broker, client):
        await group_requests.commit(client, "g", {T0: 1})
        await asyncio.sleep(0.05)
        assert await group_requests.committed(client, "g") == {T0: 1}
        # An hour later, by the shards' clock.
        now = int(time.time() * 1000) + 60 * 60_000
        for runtime in broker.groups.shards.values():
            runtime.run(runtime.shard.clean_up(Now(int(time.monotonic() * 1000), now)))
        assert await group_requests.committed(client, "g") == {}
        assert await group_requests.list_groups(client) == {}

    async with coordinating(tmp_path) as (_broker, client):
        await loaded(client, "g")
        assert await group_requests.list_groups(client) == {}


async def test_groups_whose_log_cannot_be_opened_get_coordinator_not_available(tmp_path):
    configs = {"offsets_topic_num_partitions": 1}
    async with coordinating(tmp_path, **configs) as (_broker, client):
        await group_requests.commit(client, "g", {T0: 1})
    log_file = tmp_path / f"{OFFSETS}-0" / f"{0:020d}.log"
    log_file.unlink()
    log_file.mkdir()

    async with coordinating(tmp_path, **configs) as (broker, client):
        await eventually(lambda: not broker.groups.is_loading)
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        described = await group_requests.describe(client, "g")

        assert (described.error_code, described.group_state) == (code, "")
        assert await group_requests.delete(client, "g") == {"g": code}
        assert (await group_requests.fetch(client, "g", [T0])).error_code == code
    log_file.rmdir()


async def test_repeated_commits_are_compacted_while_the_broker_runs(tmp_path):
    configs = {
        "offsets_topic_num_partitions": 1,
        "offsets_topic_segment_bytes": 16 * 1024,
        "log_cleaner_backoff_ms": 20,
    }
    async with coordinating(tmp_path, **configs) as (broker, client):
        partition = broker.topics.find(OFFSETS, 0)
        for offset in range(1000):
            await group_requests.commit(client, f"g{offset % 10}", {T0: offset, T1: offset})
        end_offset = partition.log.end_offset
        assert end_offset == 2000
        await eventually(lambda: partition.log.size < 3 * 16 * 1024)

    async with coordinating(tmp_path, **configs) as (broker, client):
        await loaded(client, "g0")
        for number in range(10):
            last = 990 + number
            assert await group_requests.committed(client, f"g{number}") == {T0: last, T1: last}
