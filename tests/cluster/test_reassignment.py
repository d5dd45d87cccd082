"""Reassignments and elections on request: brokers in one process, a metadata store in memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.test_replication import Replicas, log_bytes, produce, values
from harness.logs import NOW, a_batch
from harness.requests import produce_batch, send_request
from harness.waiting import eventually
from ottla.broker import Broker
from ottla.broker.partitions.partition import Role
from ottla.client import Admin
from ottla.coord.metadata_image import partition_record
from ottla.coord.partition_state import PartitionState
from ottla.protocol.api.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.protocol.api.elect_leaders import ElectLeadersRequest, TopicPartitions
from ottla.protocol.api.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from ottla.protocol.errors import ErrorCode, KafkaError

PREFERRED, UNCLEAN = 0, 1


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Replicas]:
    async with asyncio.timeout(60):
        replicas = Replicas(tmp_path, leader_imbalance_check_interval_seconds="3600")
        await replicas.start(0, 1, 2, 3)
        yield replicas
        await replicas.stop(*replicas.brokers)
        await asyncio.sleep(0.05)


async def reassign(
    broker: Broker,
    target: tuple[int, ...] | None,
    *,
    topic: str = "t",
    index: int = 0,
    allows_factor_change: bool = True,
) -> tuple[ErrorCode, str | None]:
    """Move a partition; return the error code and message of its result."""
    request = AlterPartitionReassignmentsRequest(
        allow_replication_factor_change=allows_factor_change,
        topics=[
            ReassignableTopic(
                name=topic,
                partitions=[ReassignablePartition(partition_index=index, replicas=target)],
            )
        ],
    )
    response = await send_request(broker, request)
    assert not response.error_code, response.error_message
    (result,) = response.responses[0].partitions
    return ErrorCode(result.error_code), result.error_message


async def reassigning(broker: Broker, topics: list[str] | None = None) -> dict[str, list[int]]:
    """Return the partitions that are being reassigned, by topic."""
    requested = None
    if topics is not None:
        requested = [
            ListPartitionReassignmentsTopics(name=name, partition_indexes=[0]) for name in topics
        ]
    response = await send_request(broker, ListPartitionReassignmentsRequest(topics=requested))
    return {
        topic.name: [partition.partition_index for partition in topic.partitions]
        for topic in response.topics
    }


async def elect(
    broker: Broker, kind: int, partitions: dict[str, list[int]] | None
) -> dict[tuple[str, int], ErrorCode]:
    request = ElectLeadersRequest(
        election_type=kind,
        topic_partitions=None
        if partitions is None
        else [TopicPartitions(topic=name, partitions=some) for name, some in partitions.items()],
    )
    response = await send_request(broker, request)
    assert not response.error_code
    return {
        (topic.topic, one.partition_id): ErrorCode(one.error_code)
        for topic in response.replica_election_results
        for one in topic.partition_result
    }


async def until_moved(cluster: Replicas, target: tuple[int, ...], topic: str = "t") -> None:
    def is_moved() -> bool:
        state = cluster.state(topic)
        return state.replicas == target and not state.is_reassigning

    await eventually(is_moved)
    await cluster.until_in_sync(topic, count=len(target))


def log_folder(cluster: Replicas, broker_id: int, topic: str = "t") -> Path:
    return cluster.folder / str(broker_id) / f"{topic}-0"


def others(state: PartitionState) -> list[int]:
    return [broker_id for broker_id in range(4) if broker_id not in state.replicas]


async def test_a_partition_moves_and_the_old_replicas_are_removed(cluster: Replicas) -> None:
    await cluster.create("t", factor=2)
    for _ in range(5):
        await produce(cluster, "t", 4)
    await cluster.until_in_sync("t", count=2)
    before = cluster.state("t")
    expected = log_bytes(cluster.replica(before.leader, "t"))
    target = tuple(others(before))
    follower = next(one for one in cluster.brokers.values() if not one.cluster.is_controller)

    assert await reassign(follower, target) == (ErrorCode.NONE, None)

    await until_moved(cluster, target)
    after = cluster.state("t")
    assert after.leader in target
    assert after.leader_epoch > before.leader_epoch
    for broker_id in target:
        assert log_bytes(cluster.replica(broker_id, "t")) == expected
    await eventually(lambda: not any(log_folder(cluster, one).exists() for one in before.replicas))
    for broker_id in before.replicas:
        assert cluster.brokers[broker_id].topics.followed("t", 0) is None
    await produce(cluster, "t", 4)
    assert len(await values(cluster, "t", 24)) == 24
    assert await reassigning(follower) == {}


async def test_a_factor_is_raised_and_lowered(cluster: Replicas) -> None:
    await cluster.create("t", factor=1)
    await produce(cluster, "t", 4)
    (first,) = cluster.state("t").replicas
    second, third, _ = (one for one in range(4) if one != first)
    assert await reassign(cluster.any, (first, second, third)) == (ErrorCode.NONE, None)
    await until_moved(cluster, (first, second, third))
    assert cluster.state("t").leader == first
    await produce(cluster, "t", 4)
    await cluster.until_in_sync("t")
    assert await reassign(cluster.any, (third,)) == (ErrorCode.NONE, None)
    await until_moved(cluster, (third,))
    await produce(cluster, "t", 4)
    assert len(await values(cluster, "t", 12)) == 12
    await eventually(lambda: not log_folder(cluster, first).exists())


async def test_acks_continue_while_partitions_move(cluster: Replicas) -> None:
    await cluster.create("t", factor=2)
    before = cluster.state("t")
    is_over = asyncio.Event()
    produced = 0

    async def produce_all_the_time() -> None:
        nonlocal produced
        while not is_over.is_set():
            leader = cluster.state("t").leader
            try:
                await produce_batch(cluster.brokers[leader], "t", 1)
                produced += 1
            except AssertionError:
                await asyncio.sleep(0.01)  # The leader has just changed.

    producing = asyncio.create_task(produce_all_the_time())
    for target in (tuple(others(before)), before.replicas, (*before.replicas, *others(before))):
        assert await reassign(cluster.any, target) == (ErrorCode.NONE, None)
        await eventually(
            lambda target=target: (
                cluster.state("t").replicas == target and not cluster.state("t").is_reassigning
            )
        )
    is_over.set()
    await producing
    await cluster.until_in_sync("t", count=4)
    assert produced
    leader = cluster.leader("t").topics.find("t", 0)
    assert leader.high_watermark >= produced
    assert len({log_bytes(cluster.replica(one, "t")) for one in range(4)}) == 1


async def test_a_cancelled_reassignment_leaves_nothing_behind(cluster: Replicas) -> None:
    await cluster.create("t", factor=2)
    await produce(cluster, "t", 4)
    before = cluster.state("t")
    new = others(before)[0]
    await cluster.stop(new)
    await eventually(lambda: new not in cluster.any.topics.image.registrations)
    kept = before.leader
    code, message = await reassign(cluster.any, (kept, new))
    assert code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert message is not None
    assert f"broker {new} not registered" in message
    await cluster.start(new)
    # It cannot catch up: its fetches fail.
    cluster.brokers[new].replicas.role_changed = lambda _partition: None  # type: ignore
    assert await reassign(cluster.any, (kept, new)) == (ErrorCode.NONE, None)
    assert await reassigning(cluster.any) == {"t": [0]}
    assert await reassigning(cluster.any, ["t", "unknown"]) == {"t": [0]}
    assert await reassigning(cluster.any, ["unknown"]) == {}
    assert cluster.state("t").adding_replicas == (new,)
    await eventually(lambda: log_folder(cluster, new).exists())
    # Under way, its followers are as safe as before.
    await produce(cluster, "t", 4)

    assert await reassign(cluster.any, None) == (ErrorCode.NONE, None)

    state = cluster.state("t")
    assert set(state.replicas) == set(before.replicas)
    assert not state.is_reassigning
    await eventually(lambda: not log_folder(cluster, new).exists())
    assert (await reassign(cluster.any, None))[0] == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert len(await values(cluster, "t", 8)) == 8


async def test_the_next_controller_completes_a_reassignment(cluster: Replicas) -> None:
    await cluster.create("t", factor=2)
    await produce(cluster, "t", 4)
    before = cluster.state("t")
    controller = next(one for one in cluster.brokers.values() if one.cluster.is_controller)
    target = tuple(one for one in range(4) if one != controller.id)[:2]
    held = [one for one in target if one not in before.replicas]
    listeners = {}
    for one in held:
        listeners[one] = cluster.brokers[one].topics.replica_listener
        cluster.brokers[one].topics.replica_listener = None
    assert await reassign(cluster.any, target) == (ErrorCode.NONE, None)
    await cluster.stop(controller.id)
    await eventually(lambda: any(one.cluster.is_controller for one in cluster.brokers.values()))
    for one in held:
        cluster.brokers[one].topics.replica_listener = listeners[one]
        partition = cluster.brokers[one].topics.followed("t", 0)
        assert partition is not None
        cluster.brokers[one].replicas.role_changed(partition)
    await until_moved(cluster, target)
    assert len(await values(cluster, "t", 4)) == 4


async def test_a_broker_that_was_down_deletes_what_was_moved_meanwhile(cluster: Replicas) -> None:
    await cluster.create("t", factor=2)
    await produce(cluster, "t", 4)
    await cluster.until_in_sync("t", count=2)
    before = cluster.state("t")
    gone = next(one for one in before.replicas if one != before.leader)
    await cluster.stop(gone)
    target = (before.leader, others(before)[0])
    assert await reassign(cluster.any, target) == (ErrorCode.NONE, None)
    await until_moved(cluster, target)
    assert log_folder(cluster, gone).exists()
    await cluster.start(gone)
    await eventually(lambda: not log_folder(cluster, gone).exists())
    # And it may come back.
    assert await reassign(cluster.any, (gone, before.leader)) == (ErrorCode.NONE, None)
    await until_moved(cluster, (gone, before.leader))
    assert len(await values(cluster, "t", 4)) == 4


async def test_a_moved_replica_is_removed_once_when_two_states_come_at_once(
    cluster: Replicas,
) -> None:
    await cluster.create("t", factor=2)
    before = cluster.state("t")
    follower = next(one for one in before.replicas if one != before.leader)
    topics = cluster.brokers[follower].topics
    topic_id = topics.image.topics["t"].id
    leader, epoch = (before.leader,), before.partition_epoch
    states = [
        replace(before, replicas=leader, isr=leader, partition_epoch=epoch + number)
        for number in (1, 2)
    ]
    await topics.commit([partition_record(topic_id, 0, state) for state in states])
    assert not log_folder(cluster, follower).exists()


async def test_invalid_targets_are_refused(cluster: Replicas) -> None:
    await cluster.create("t", factor=2)
    state = cluster.state("t")
    invalid = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    for target, reason in (
        ((), "at least one broker"),
        ((1, 1), "distinct brokers"),
        ((1, 9), "broker 9 not registered; 0, 1, 2, 3 are"),
        ((-1, 9), "brokers -1, 9 not registered"),
    ):
        code, message = await reassign(cluster.any, target)
        assert code == invalid
        assert message is not None
        assert reason in message
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (await reassign(cluster.any, (1,), topic="unknown"))[0] == unknown
    assert (await reassign(cluster.any, (1,), index=1))[0] == unknown
    code, message = await reassign(cluster.any, (1,), allows_factor_change=False)
    assert code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert cluster.state("t") == state
    assert await reassign(cluster.any, state.replicas) == (ErrorCode.NONE, None)
    assert cluster.state("t") == state


async def test_new_partitions_have_the_new_factor(cluster: Replicas) -> None:
    await cluster.create("t", factor=1)
    assert await reassign(cluster.any, (0, 1, 2)) == (ErrorCode.NONE, None)
    await until_moved(cluster, (0, 1, 2))
    controller = next(one for one in cluster.brokers.values() if one.cluster.is_controller)
    topic = controller.topics.image.topics["t"]
    await controller.controller.add_partitions(controller.controller.plan_partitions(topic, 2))
    assert len(cluster.state("t", 1).replicas) == 3


async def test_a_preferred_leader_is_elected_on_request(cluster: Replicas) -> None:
    await cluster.create("t")
    before = cluster.state("t")
    assert await elect(cluster.any, PREFERRED, {"t": [0]}) == {
        ("t", 0): ErrorCode.ELECTION_NOT_NEEDED
    }
    preferred = before.replicas[0]
    await cluster.stop(preferred)
    assert await elect(cluster.any, PREFERRED, {"t": [0, 1], "unknown": [0]}) == {
        ("t", 0): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ("t", 1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("unknown", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    await cluster.start(preferred)
    await cluster.until_in_sync("t")
    assert cluster.state("t").leader != preferred
    # Others need none, and are left out.
    assert await elect(cluster.any, PREFERRED, None) == {("t", 0): ErrorCode.NONE}
    assert cluster.state("t").leader == preferred
    assert not await elect(cluster.any, PREFERRED, None)


async def test_an_operator_may_elect_a_replica_that_is_not_in_sync(cluster: Replicas) -> None:
    await cluster.create("t", factor=2, min_insync_replicas="1")
    await produce(cluster, "t", 4)
    await cluster.until_in_sync("t", count=2)
    assert await elect(cluster.any, UNCLEAN, {"t": [0]}) == {
        ("t", 0): ErrorCode.ELECTION_NOT_NEEDED
    }
    leader = cluster.state("t").leader
    follower = next(one for one in cluster.state("t").replicas if one != leader)
    await cluster.stop(follower)
    await eventually(lambda: cluster.state("t").isr == (leader,))
    await produce(cluster, "t", 4)
    await cluster.stop(leader)
    await eventually(lambda: not cluster.state("t").has_leader)
    assert await elect(cluster.any, UNCLEAN, {"t": [0]}) == {
        ("t", 0): ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    }
    await cluster.start(follower)
    assert not cluster.state("t").has_leader
    assert await elect(cluster.any, UNCLEAN, None) == {("t", 0): ErrorCode.NONE}
    state = cluster.state("t")
    assert (state.leader, state.is_recovering) == (follower, True)
    assert sum(one.metrics.elections["unclean"] for one in cluster.brokers.values()) == 1
    assert len(await values(cluster, "t", 4)) == 4


async def test_other_election_types_are_refused(cluster: Replicas) -> None:
    response = await send_request(
        cluster.any, ElectLeadersRequest(election_type=2, topic_partitions=None)
    )
    assert response.error_code == ErrorCode.INVALID_REQUEST


async def test_a_returned_broker_leads_again_only_after_a_while(tmp_path: Path) -> None:
    async with asyncio.timeout(60):
        cluster = Replicas(tmp_path, leader_imbalance_check_interval_seconds="1")
        await cluster.start(0, 1, 2)
        await cluster.create("t")
        preferred = cluster.state("t").replicas[0]
        await cluster.stop(preferred)
        await cluster.start(preferred)
        loop = asyncio.get_running_loop()
        returned_at = loop.time()
        await cluster.until_in_sync("t")
        await eventually(lambda: cluster.state("t").leader == preferred)
        assert loop.time() - returned_at > 0.9
        await cluster.stop(*cluster.brokers)


async def test_a_leader_whose_log_fails_gives_up(cluster: Replicas) -> None:
    await cluster.create("t")
    await produce(cluster, "t", 4)
    await cluster.until_in_sync("t")
    before = cluster.state("t")
    old = cluster.leader("t")
    cluster.replica(old.id, "t").log.take_offline("the disk failed")
    await eventually(lambda: cluster.state("t").leader not in (-1, old.id))
    new = cluster.state("t").leader
    await eventually(lambda: cluster.replica(new, "t").role is Role.LEADER)
    assert old.id not in cluster.state("t").isr
    await produce(cluster, "t", 4)
    # It does not return before its log is repaired, even though it lacks nothing.
    await asyncio.sleep(1.0)
    assert old.id not in cluster.state("t").isr
    assert cluster.replica(old.id, "t").role is Role.FOLLOWER
    await cluster.stop(old.id)
    await cluster.start(old.id)
    await cluster.until_in_sync("t")
    assert cluster.state("t").leader_epoch > before.leader_epoch
    assert len(await values(cluster, "t", 8)) == 8


async def test_a_lower_minimum_of_in_sync_replicas_waits_for_the_elr(cluster: Replicas) -> None:
    await cluster.create("t", factor=2, min_insync_replicas="2")
    await cluster.until_in_sync("t", count=2)
    leader = cluster.leader("t")
    follower = next(one for one in cluster.state("t").replicas if one != leader.id)
    await cluster.stop(follower)
    await eventually(lambda: cluster.state("t").elr == (follower,))
    partition = leader.topics.find("t", 0)
    partition.append(a_batch(), NOW)
    assert partition.high_watermark == 0
    controller = next(one for one in cluster.brokers.values() if one.cluster.is_controller)
    topic = controller.topics.image.topics["t"]
    await controller.controller.alter_topic_configs(
        topic, lambda _configs: {"min.insync.replicas": "1"}
    )
    # Only when the follower is not eligible any more may it lack records.
    await eventually(lambda: partition.high_watermark == 1)
    assert cluster.state("t").elr == ()


@pytest.mark.parametrize("side", ["leader", "follower"])
async def test_a_throttle_limits_how_fast_a_new_replica_copies(tmp_path: Path, side: str) -> None:
    cluster = Replicas(tmp_path, replica_fetch_max_bytes="65536")
    await cluster.start(0, 1, 2, 3)
    await cluster.create("t", factor=2)
    for _ in range(24):
        await produce(cluster, "t", value=bytes(65_536))
    before = cluster.state("t")
    new = others(before)[0]
    bootstrap = cluster.any.address
    async with Admin(bootstrap) as admin:
        replicas = f"0:{before.leader if side == 'leader' else new}"
        await admin.alter_topic_configs("t", {f"{side}.replication.throttled.replicas": replicas})
        # The others are not throttled.
        for broker in cluster.brokers:
            rate = {f"{side}.replication.throttled.rate": "500000"}
            await admin.alter_broker_configs(broker, rate)
    started = time.monotonic()

    assert await reassign(cluster.any, (before.leader, new)) == (ErrorCode.NONE, None)
    # In-sync replicas are not throttled.
    leader = cluster.brokers[before.leader]
    assert leader.replicas is not None
    partition = leader.topics.find("t", 0)
    for follower in before.isr:
        assert not leader.replicas.throttles_follower(partition, follower)
    await eventually(lambda: set(cluster.state("t").replicas) == {before.leader, new})

    # A second's worth and one response may come at once.
    size = 24 * 65_536 - 500_000 - 65_536
    assert time.monotonic() - started > size / 500_000
    await cluster.stop(*cluster.brokers)
    await asyncio.sleep(0.05)


@pytest.mark.parametrize("value", ["0", "0:x", "a:1", "*,0:1", "0:1:2"])
async def test_an_invalid_list_of_throttled_replicas_is_refused(
    cluster: Replicas, value: str
) -> None:
    await cluster.create("t", factor=2)
    async with Admin(cluster.any.address) as admin:
        with pytest.raises(KafkaError, match="expected PARTITION:BROKER"):
            await admin.alter_topic_configs("t", {"follower.replication.throttled.replicas": value})
