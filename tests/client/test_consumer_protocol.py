"""The consumer as a member of groups of the consumer protocol (KIP-848), against a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from harness.brokers import add_topic
from harness.consumer_stage import BRISK, CLIENT, QUICK, T0, T1, a_quick_broker, fill, take
from harness.logs import a_batch
from harness.waiting import eventually
from ottla.broker import Broker
from ottla.client.admin import Admin
from ottla.client.consumer.config import GroupConfig
from ottla.client.consumer.consumer import Consumer
from ottla.client.consumer.consumer_protocol_member import ConsumerProtocolMember
from ottla.client.consumer.group_member import GroupMember
from ottla.client.errors import ErrorCode, KafkaError
from ottla.client.types import TopicPartition


@pytest.fixture
async def broker(tmp_path) -> AsyncIterator[Broker]:
    async with a_quick_broker(tmp_path, {"t": 2, "wide": 8}) as started:
        yield started


def a_member(broker: Broker, *topics: str, **arguments: Any) -> Consumer:
    defaults = {"group": "g", "group_protocol": "consumer", "fetch": BRISK, "client": CLIENT}
    return Consumer(broker.address, *topics, **{**defaults, **arguments})


def partitions(consumer: Consumer) -> list[int]:
    return sorted(tp.partition for tp in consumer.assignment)


async def test_members_share_partitions_and_keep_what_they_can(broker):
    lines: list[tuple[str, int]] = []
    callbacks = {
        "on_assigned": lambda tps: lines.append(("assigned", len(tps))),
        "on_revoked": lambda tps: lines.append(("revoked", len(tps))),
    }

    async with a_member(broker, "wide", **callbacks) as first:
        await eventually(lambda: len(first.assignment) == 8)
        async with a_member(broker, "wide") as second:
            await eventually(lambda: len(second.assignment) == 4)
            assert not first.assignment & second.assignment
            assert lines == [("assigned", 8), ("revoked", 4)]
        await eventually(lambda: len(first.assignment) == 8)


async def test_a_partition_is_committed_before_another_member_gets_it(broker):
    await fill(broker, T0, a_batch(10))
    await fill(broker, T1, a_batch(10))

    async with a_member(broker, "t", auto_commit=60) as first:
        await take(first, 20)
        task = asyncio.create_task(first.getone())
        async with a_member(broker, "t") as second:
            await eventually(lambda: len(second.assignment) == 1)
            (tp,) = second.assignment
            assert (await second.committed(tp))[tp].offset == 10
            assert await second.getone(0.3) is None
            task.cancel()


async def test_a_record_in_hand_delays_the_revocation_until_it_is_processed(broker):
    await fill(broker, T0, a_batch(3))

    async with a_member(broker, "t") as first:
        record = (await take(first, 1))[0]
        async with a_member(broker, "t") as second:
            await asyncio.sleep(0.3)
            if TopicPartition(record.topic, record.partition) not in second.assignment:
                assert len(first.assignment) + len(second.assignment) <= 2
            await first.getone(5)
            await eventually(lambda: len(first.assignment) == len(second.assignment) == 1)


async def test_a_member_that_was_removed_loses_its_partitions_and_joins_again(broker):
    lost: list[int] = []

    async with a_member(broker, "t", on_lost=lambda tps: lost.append(len(tps))) as consumer:
        await eventually(lambda: len(consumer.assignment) == 2)
        (group,) = broker.groups.groups()
        (member,) = group.members.values()
        runtime = broker.groups.shard_of("g")
        assert runtime is not None
        from ottla.broker.coordinators.shard_runtime import current_time  # noqa: PLC0415

        groups = runtime.shard.consumer_groups
        runtime.run(groups.remove(group, [member], "left", current_time(), lambda _code: []))

        await eventually(lambda: lost == [2] and len(consumer.assignment) == 2)


async def test_a_static_member_returns_to_its_partitions(broker):
    async with a_member(broker, "wide", instance_id="b") as other:
        async with a_member(broker, "wide", instance_id="a") as first:
            await eventually(lambda: len(first.assignment) == len(other.assignment) == 4)
            before = first.assignment
        async with a_member(broker, "wide", instance_id="a") as again:
            await eventually(lambda: again.assignment)
            assert again.assignment == before
            assert len(other.assignment) == 4


async def test_a_pattern_is_resolved_by_the_coordinator(broker):
    async with a_member(broker, pattern=r"w.d\w+") as consumer:
        await eventually(lambda: len(consumer.assignment) == 8)
        (group,) = broker.groups.groups()
        assert list(group.regexes) == [r"w.d\w+"]
        await add_topic(broker, "wider", 2)
        await eventually(lambda: len(consumer.assignment) == 10)


async def test_a_pattern_that_only_python_knows_is_resolved_here(broker):
    async with a_member(broker, pattern=r"(?=wi)wide") as consumer:
        await eventually(lambda: len(consumer.assignment) == 8)


async def test_a_subscription_can_be_replaced(broker):
    async with a_member(broker, "t") as consumer:
        await eventually(lambda: len(consumer.assignment) == 2)
        consumer.subscribe("wide")
        await eventually(lambda: len(consumer.assignment) == 8)
        await consumer.unsubscribe()
        assert not consumer.assignment
        consumer.subscribe("t")
        await eventually(lambda: len(consumer.assignment) == 2)


async def test_the_protocol_is_chosen_by_what_the_broker_offers(broker, tmp_path):
    async with a_member(broker, "t", group_protocol="auto") as consumer:
        assert isinstance(consumer._member, ConsumerProtocolMember)
        await eventually(lambda: len(consumer.assignment) == 2)
        for arguments in ({"assignors": ["range"]}, {"group_config": QUICK}, {"instance_id": "i"}):
            async with a_member(broker, "t", group_protocol="auto", **arguments) as other:
                assert isinstance(other._member, GroupMember)
                await eventually(lambda: len(other.assignment) == 1)

    configs = {"group_coordinator_rebalance_protocols": "classic"}
    async with a_quick_broker(tmp_path / "classic", {"t": 2}, **configs) as classic:
        async with a_member(classic, "t", group_protocol="auto") as consumer:
            assert isinstance(consumer._member, GroupMember)
            await eventually(lambda: len(consumer.assignment) == 2)
        async with a_member(classic, "t") as consumer:
            with pytest.raises(KafkaError) as error:
                await consumer.getone(5)
            assert error.value.code is ErrorCode.UNSUPPORTED_VERSION


def test_assignors_are_of_the_classic_protocol():
    with pytest.raises(ValueError, match="assignors"):
        Consumer("h:1", "t", group="g", group_protocol="consumer", assignors=["range"])
    with pytest.raises(ValueError, match="group_protocol"):
        Consumer("h:1", "t", group="g", group_protocol="share")
    assert GroupConfig().is_any_protocol


async def test_a_group_is_described_with_its_epochs(broker):
    async with a_member(broker, "t", instance_id="i") as consumer:
        await eventually(lambda: len(consumer.assignment) == 2)
        async with Admin(broker.address) as admin:
            described = (await admin.describe_groups("g"))["g"]
            (listed,) = await admin.list_groups()

    assert (listed.type, listed.state) == ("consumer", "Stable")
    assert (described.type, described.state, described.assignor) == (
        "consumer",
        "Stable",
        "uniform",
    )
    assert described.epoch == described.assignment_epoch
    (member,) = described.members
    assert (member.instance_id, member.type, member.epoch) == ("i", "consumer", described.epoch)
    assert member.assignment == member.target == (T0, T1)
