"""A group on three brokers whose coordinator moves, hangs or is down."""

import asyncio

import pytest

from harness.scripted_broker import ScriptedCluster
from harness.waiting import eventually
from ottla.client import (
    ClientConfig,
    Consumer,
    ErrorCode,
    FetchConfig,
    GroupConfig,
    RetryConfig,
    TopicPartition,
)
from ottla.client.config import TimeoutConfig
from ottla.client.consumer.consumer_protocol import encode_assignment
from ottla.protocol.api.fetch import FetchRequest, FetchResponse
from ottla.protocol.api.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.api.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.api.join_group import JoinGroupRequest, JoinGroupResponse
from ottla.protocol.api.leave_group import LeaveGroupRequest, LeaveGroupResponse
from ottla.protocol.api.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.protocol.api.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from ottla.protocol.api.sync_group import SyncGroupRequest, SyncGroupResponse

TP = TopicPartition("orders", 0)
APIS = (
    *("FindCoordinator", "JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup"),
    *("OffsetCommit", "OffsetFetch", "Fetch"),
)
CLIENT = ClientConfig(
    retry=RetryConfig(backoff=0.005, max_backoff=0.02),
    timeouts=TimeoutConfig(connect=1, request=2, operation=20),
)
MEMBERSHIP = GroupConfig(session_timeout=3.0, heartbeat_interval=0.02)


class Coordinators(ScriptedCluster):
    """Brokers, one of which coordinates a group with one member."""

    def __init__(self):
        super().__init__(nodes=3, topics={"orders": 1}, served=APIS)
        self.coordinator = 0
        self.hung = set()
        self.always(FindCoordinatorRequest, self._find)
        self.always(JoinGroupRequest, self._only_coordinator(self._join))
        self.always(SyncGroupRequest, self._only_coordinator(self._sync))
        self.always(HeartbeatRequest, self._only_coordinator(lambda _: HeartbeatResponse()))
        self.always(LeaveGroupRequest, self._only_coordinator(lambda _: LeaveGroupResponse()))
        self.always(OffsetFetchRequest, self._only_coordinator(self._committed))
        self.always(OffsetCommitRequest, self._commit)
        self.always(FetchRequest, self._fetch)

    def _find(self, call):
        if self.coordinator is None:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            return FindCoordinatorResponse(error_code=code, node_id=-1, host="", port=-1)
        node = self.nodes[self.coordinator]
        return FindCoordinatorResponse(node_id=node.id, host="127.0.0.1", port=node.port)

    def _only_coordinator(self, serve):
        async def script(call):
            if call.node.id in self.hung:
                await asyncio.sleep(3600)
            answer = serve(call)
            if call.node.id != self.coordinator:
                answer.error_code = ErrorCode.NOT_COORDINATOR
            return answer

        return script

    def _join(self, _call):
        return JoinGroupResponse(
            generation_id=1, protocol_name="range", leader="m", member_id="m", members=[]
        )

    def _sync(self, _call):
        return SyncGroupResponse(assignment=encode_assignment([TP]))

    def _committed(self, _call):
        one = OffsetFetchResponsePartition(
            partition_index=0, committed_offset=7, metadata="", error_code=0
        )
        return OffsetFetchResponse(
            topics=[OffsetFetchResponseTopic(name="orders", partitions=[one])]
        )

    def _commit(self, call):
        code = 0 if call.node.id == self.coordinator else ErrorCode.NOT_COORDINATOR
        one = OffsetCommitResponsePartition(partition_index=0, error_code=code)
        return OffsetCommitResponse(
            topics=[OffsetCommitResponseTopic(name="orders", partitions=[one])]
        )

    async def _fetch(self, _call):
        await asyncio.sleep(0.05)
        return FetchResponse()

    def nodes_of(self, kind):
        return [call.node.id for call in self.requests_of(kind)]


@pytest.fixture
async def stage():
    async with Coordinators() as started:
        yield started


def a_member(stage, calls):
    return Consumer(
        stage.nodes[1].address,
        "orders",
        group="g",
        auto_commit=None,
        on_assigned=lambda tps: calls.append(("assigned", tps)),
        on_lost=lambda tps: calls.append(("lost", tps)),
        client=CLIENT,
        group_config=MEMBERSHIP,
        fetch=FetchConfig(max_wait=0.05),
    )


async def test_a_coordinator_that_moves_is_followed_without_a_rebalance(stage):
    calls = []
    async with a_member(stage, calls) as consumer:
        await eventually(lambda: consumer.assignment)
        assert await consumer.position(TP) == 7
        stage.coordinator = 2
        await eventually(lambda: stage.nodes_of(HeartbeatRequest).count(2) > 3)
        stage.coordinator = 1
        # A commit or a heartbeat notices first; both continue.
        await consumer.commit({TP: 9})

    assert stage.nodes_of(OffsetCommitRequest)[-1] == 1
    assert stage.nodes_of(LeaveGroupRequest) == [1]
    assert len(stage.requests_of(JoinGroupRequest)) == 1
    assert calls == [("assigned", frozenset({TP}))]


async def test_a_hanging_coordinator_is_abandoned_before_the_session_times_out(stage):
    calls = []
    async with a_member(stage, calls) as consumer:
        await eventually(lambda: consumer.assignment)
        stage.hung.add(0)
        stage.coordinator = 1
        started = asyncio.get_running_loop().time()
        await eventually(lambda: 1 in stage.nodes_of(HeartbeatRequest))
        assert asyncio.get_running_loop().time() - started < MEMBERSHIP.session_timeout

    assert [what for what, _ in calls] == ["assigned"]


async def test_a_member_waits_for_a_coordinator_that_is_down(stage):
    calls = []
    async with a_member(stage, calls) as consumer:
        await eventually(lambda: consumer.assignment)
        stage.coordinator = None
        await stage.nodes[0].stop()
        committing = asyncio.create_task(consumer.commit({TP: 8}))
        await asyncio.sleep(0.1)
        assert not committing.done()

        stage.move("orders", 0, to=1)
        stage.coordinator = 1
        await committing
        await stage.nodes[0].start()

    assert stage.nodes_of(OffsetCommitRequest)[-1] == 1
    assert [what for what, _ in calls] == ["assigned"]


async def test_a_member_joins_once_there_is_a_coordinator(stage):
    calls = []
    stage.coordinator = None
    async with a_member(stage, calls) as consumer:
        assert await consumer.getone(0.1) is None
        assert calls == []
        stage.coordinator = 2
        await eventually(lambda: consumer.assignment)

    assert set(stage.nodes_of(JoinGroupRequest)) == {2}
