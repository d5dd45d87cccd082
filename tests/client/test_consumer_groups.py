"""The consumer as a group member, against a real broker."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from harness.brokers import add_topic
from harness.consumer_stage import (
    CLIENT,
    QUICK,
    T0,
    T1,
    a_consumer,
    a_quick_broker,
    add_partitions,
    commit_of,
    drain,
    fill,
    offsets_of,
    take,
)
from harness.daemon import Daemon
from harness.logs import a_batch
from harness.waiting import eventually
from harness.wire import connect
from ottla.broker import Broker
from ottla.client.config import ClientConfig
from ottla.client.consumer.config import GroupConfig
from ottla.client.consumer.consumer import Consumer
from ottla.client.errors import ConsumerError, ErrorCode, KafkaError
from ottla.client.types import OffsetAndMetadata, TopicPartition
from ottla.protocol.api.leave_group import LeaveGroupRequest, MemberIdentity

COOPERATIVE = ("cooperative-sticky",)


@pytest.fixture
async def broker(tmp_path) -> AsyncIterator[Broker]:
    async with a_quick_broker(tmp_path, {"t": 2, "wide": 8}) as started:
        yield started


class RebalanceLog:
    """The rebalance callbacks of a consumer, in order."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, set[int]]] = []

    def __call__(self, verb: str) -> Any:
        return lambda tps: self.lines.append((verb, {tp.partition for tp in tps}))

    @property
    def callbacks(self) -> dict[str, Any]:
        return {f"on_{verb}": self(verb) for verb in ("assigned", "revoked", "lost")}


def partitions_of(topic: str, *numbers: int) -> set[TopicPartition]:
    return {TopicPartition(topic, number) for number in numbers}


async def settled(*consumers: Consumer, count: int, topic: str = "wide") -> None:
    """Wait until each partition is assigned to exactly one of these consumers."""

    def is_so() -> bool:
        owned = Counter(tp for consumer in consumers for tp in consumer.assignment)
        return owned.keys() == partitions_of(topic, *range(count)) and max(owned.values()) == 1

    await eventually(is_so)


async def committed(broker: Broker | str, group: str, *tps: TopicPartition) -> list[int | None]:
    async with a_consumer(broker, group=group) as consumer:
        found = await consumer.committed(*tps)
    return [one and one.offset for one in (found[tp] for tp in tps)]


# Commits.


async def test_a_group_continues_at_its_committed_offset(broker):
    await fill(broker, T0, a_batch(10))

    async with a_consumer(broker, "t", group="g") as consumer:
        first = await take(consumer, 6)
    async with a_consumer(broker, "t", group="g") as consumer:
        second = await take(consumer, 4)

    assert offsets_of([*first, *second]) == list(range(10))


async def test_records_being_processed_are_redelivered_after_a_crash(broker):
    await fill(broker, T0, a_batch(10))

    async def crash() -> None:
        async with a_consumer(broker, "t", group="g") as consumer:
            async for record in consumer:
                1 / (4 - record.offset)

    with pytest.raises(ZeroDivisionError):
        await crash()

    assert await committed(broker, "g", T0) == [4]


async def test_close_does_not_commit_records_being_processed(broker):
    await fill(broker, T0, a_batch(10))
    consumer = a_consumer(broker, "t", group="g")
    await consumer.start()

    await take(consumer, 6)
    await consumer.close()

    assert await committed(broker, "g", T0) == [5]


async def test_auto_commit_commits_consumed_records_at_each_interval(broker):
    await fill(broker, T0, a_batch(10))

    async with a_consumer(broker, "t", group="g", auto_commit=0.05) as consumer:
        await take(consumer, 4)
        assert await commit_of(consumer, T0, 3) == OffsetAndMetadata(3, "", 0)
        assert await consumer.getone(0) is not None
        assert (await commit_of(consumer, T0, 4)).offset == 4


async def test_a_batch_is_consumed_when_the_next_one_is_asked_for(broker):
    await fill(broker, T0, a_batch(10))

    async with a_consumer(broker, "t", group="g", auto_commit=0.05) as consumer:
        stream = consumer.batches(max_records=4)
        await anext(stream)
        before = await commit_of(consumer, T0, 0)
        await anext(stream)
        after = await commit_of(consumer, T0, 1)

    assert (before.offset, after.offset) == (0, 4)


async def test_without_auto_commit_only_the_application_commits(broker):
    await fill(broker, T0, a_batch(10))

    async with a_consumer(broker, "t", group="g", auto_commit=None) as consumer:
        await take(consumer, 4)
        assert await consumer.committed(T0) == {T0: None}
        await consumer.commit()
        assert (await consumer.committed(T0))[T0].offset == 4
        await consumer.commit({T0: 2, T1: OffsetAndMetadata(0, "a note")})
        assert await consumer.committed(T0, T1) == {
            T0: OffsetAndMetadata(2, "", -1),
            T1: OffsetAndMetadata(0, "a note", -1),
        }
        await take(consumer, 2)

    assert await committed(broker, "g", T0) == [2]


async def test_manually_assigned_partitions_are_committed_for_the_group(broker):
    await fill(broker, T0, a_batch(10))

    async with a_consumer(broker, group="g") as consumer:
        consumer.assign([T0])
        await take(consumer, 4)
        await consumer.commit()
    async with a_consumer(broker, group="g") as consumer:
        consumer.assign([T0])
        assert await consumer.position(T0) == 4


async def test_commit_requires_a_group(broker):
    async with a_consumer(broker, "t") as consumer:
        with pytest.raises(ConsumerError, match="with a group only"):
            await consumer.commit()
        with pytest.raises(ConsumerError, match="with a group only"):
            await consumer.committed(T0)


async def test_a_group_without_commits_requires_a_reset_policy(broker):
    async with a_consumer(broker, "t", group="g", auto_offset_reset="none") as consumer:
        with pytest.raises(ConsumerError, match="group 'g' has no committed offset"):
            await consumer.getone(5)


# Rebalances.


async def test_members_share_partitions_and_take_over_those_of_leaving_members(broker):
    async with a_consumer(broker, "wide", group="g") as first:
        await settled(first, count=8)
        async with a_consumer(broker, "wide", group="g") as second:
            await eventually(lambda: len(second.assignment) == 4)
            await settled(first, second, count=8)
        await settled(first, count=8)


async def test_callbacks_get_assigned_and_revoked_partitions(broker):
    one, two = RebalanceLog(), RebalanceLog()

    async with a_consumer(broker, "wide", group="g", **one.callbacks) as first:
        await settled(first, count=8)
        async with a_consumer(broker, "wide", group="g", **two.callbacks) as second:
            await eventually(lambda: len(second.assignment) == 4)
        await settled(first, count=8)

    everything = set(range(8))
    mine = one.lines[2][1]
    assert one.lines == [
        ("assigned", everything),
        ("revoked", everything),
        ("assigned", mine),
        ("revoked", mine),
        ("assigned", everything),
        ("revoked", everything),
    ]
    assert two.lines == [("assigned", everything - mine), ("revoked", everything - mine)]


async def test_a_cooperative_rebalance_revokes_only_partitions_that_move(broker):
    one, two = RebalanceLog(), RebalanceLog()
    arguments = {"group": "g", "assignors": COOPERATIVE}

    async with a_consumer(broker, "wide", **arguments, **one.callbacks) as first:
        await settled(first, count=8)
        async with a_consumer(broker, "wide", **arguments, **two.callbacks) as second:
            await eventually(lambda: len(second.assignment) == 4)
            moved = {tp.partition for tp in second.assignment}
        await settled(first, count=8)

    assert one.lines == [
        ("assigned", set(range(8))),
        ("revoked", moved),
        ("assigned", moved),
        ("revoked", set(range(8))),
    ]
    assert two.lines == [("assigned", moved), ("revoked", moved)]


async def test_a_cooperative_member_keeps_reading_during_a_rebalance(broker):
    for number in range(8):
        await fill(broker, TopicPartition("wide", number), *(a_batch(50) for _ in range(20)))
    arguments = {"group": "g", "assignors": COOPERATIVE}
    seen: Counter[tuple[int, int]] = Counter()

    async def read(consumer: Consumer) -> None:
        async for record in consumer:
            seen[record.partition, record.offset] += 1
            if record.offset % 50 == 0:
                await asyncio.sleep(0.001)

    async with (
        a_consumer(broker, "wide", **arguments) as first,
        asyncio.TaskGroup() as tasks,
    ):
        reading = [tasks.create_task(read(first))]
        await eventually(lambda: len(seen) > 100)
        async with a_consumer(broker, "wide", **arguments) as second:
            reading.append(tasks.create_task(read(second)))
            await eventually(lambda: len(seen) == 8000)
            for task in reading:
                task.cancel()
            await asyncio.wait(reading)

    assert set(seen.values()) == {1}, "an orderly rebalance repeats nothing"


@pytest.mark.parametrize("assignors", [("range",), ("roundrobin",), COOPERATIVE])
async def test_a_rebalance_neither_loses_nor_repeats_records(broker, assignors):
    for number in range(8):
        await fill(broker, TopicPartition("wide", number), *(a_batch(10) for _ in range(10)))
    seen: Counter[tuple[int, int]] = Counter()

    async def read(count: int | None) -> None:
        async with a_consumer(broker, "wide", group="g", assignors=assignors) as consumer:
            while (count is None or count > 0) and len(seen) < 800:
                record = await consumer.getone(0.1)
                if record is None:
                    continue
                seen[record.partition, record.offset] += 1
                count = count and count - 1
                await asyncio.sleep(0)

    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        for count in (100, 200, None, 50, None):
            tasks.create_task(read(count))
            await asyncio.sleep(0.05)

    assert len(seen) == 800
    assert set(seen.values()) == {1}


async def test_ten_members_join_and_leave(broker):
    for number in range(8):
        await fill(broker, TopicPartition("wide", number), *(a_batch(5) for _ in range(30)))
    seen: dict[int, list[int]] = {number: [] for number in range(8)}
    owners: Counter[TopicPartition] = Counter()
    max_owners = 0
    chance = random.Random(11)

    def gains(assigned: frozenset[TopicPartition]) -> None:
        nonlocal max_owners
        owners.update(assigned)
        max_owners = max(max_owners, *owners.values(), 0)

    async def live(seconds: float) -> None:
        async with a_consumer(
            broker,
            "wide",
            group="g",
            assignors=COOPERATIVE,
            auto_commit=0.05,
            on_assigned=gains,
            on_revoked=owners.subtract,
        ) as consumer:
            deadline = asyncio.get_running_loop().time() + seconds
            while asyncio.get_running_loop().time() < deadline:
                record = await consumer.getone(0.05)
                if record is not None:
                    seen[record.partition].append(record.offset)
                    await asyncio.sleep(0.001)

    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        for _ in range(10):
            tasks.create_task(live(chance.uniform(0.5, 1.5)))
            await asyncio.sleep(chance.uniform(0, 0.1))
    async with asyncio.timeout(30), a_consumer(broker, "wide", group="g") as last:
        while sum(map(len, seen.values())) < 8 * 150:
            if (record := await last.getone(0.1)) is not None:
                seen[record.partition].append(record.offset)
        for record in await drain(last, 0):
            seen[record.partition].append(record.offset)

    assert all(set(offsets) == set(range(150)) for offsets in seen.values()), "nothing is lost"
    assert all(offsets == sorted(set(offsets)) for offsets in seen.values()), "nothing comes twice"
    assert max_owners == 1, "a partition has one owner at a time"


async def test_a_rebalance_waits_for_records_being_processed(broker):
    await fill(broker, T0, a_batch(10))
    await fill(broker, T1, a_batch(10))

    async with a_consumer(broker, "t", group="g") as first:
        await take(first, 3)
        async with a_consumer(broker, "t", group="g") as second:
            assert await second.getone(0.5) is None
            asking = asyncio.create_task(first.getone())
            assert (await second.getone(5)) is not None
            asking.cancel()
            await eventually(lambda: len(first.assignment) == len(second.assignment) == 1)


async def test_a_commit_marks_delivered_records_as_consumed(broker):
    await fill(broker, T0, a_batch(10))

    async with a_consumer(broker, "t", group="g", auto_commit=None) as first:
        await take(first, 3)
        async with a_consumer(broker, "t", group="g") as second:
            assert await second.getone(0.3) is None
            await first.commit()
            await eventually(lambda: len(second.assignment) == 1)


async def test_a_rebalance_waits_at_most_for_the_processing_timeout(broker):
    await fill(broker, T0, a_batch(10))
    impatient = GroupConfig(
        session_timeout=2, heartbeat_interval=0.05, rebalance_timeout=10, processing_timeout=0.2
    )

    async with a_consumer(broker, "t", group="g", group_config=impatient) as first:
        in_hand = (await take(first, 3))[-1]
        async with a_consumer(broker, "t", group="g") as second:
            await eventually(lambda: len(second.assignment) == 1)
            if T0 in second.assignment:
                assert (await second.getone(5)).offset == in_hand.offset
            else:
                assert (await first.getone(5)).offset == in_hand.offset


IMPATIENT = GroupConfig(
    session_timeout=2, heartbeat_interval=0.05, rebalance_timeout=10, processing_timeout=0.1
)


async def lose_one_partition_while_processing(
    broker: Broker, first: Consumer, second: Consumer
) -> TopicPartition:
    """Have `second` take a partition of which `first` processes a record, and commit offset 60."""
    for tp in (T0, T1):
        await fill(broker, tp, a_batch(60))
    delivered: set[TopicPartition] = set()
    while delivered != {T0, T1}:
        delivered.update(await first.getmany(timeout=5))
    await second.start()
    await eventually(lambda: len(first.assignment) == len(second.assignment) == 1)
    (lost,) = second.assignment
    while (await second.position(lost)) < 60:
        await second.getmany(timeout=1)
    await second.commit()
    return lost


@pytest.mark.parametrize("assignors", [("range",), COOPERATIVE])
async def test_a_member_cannot_commit_a_partition_it_lost_while_processing(broker, assignors):
    options = {"group": "g", "auto_commit": None, "assignors": assignors}
    second = a_consumer(broker, "t", **options)

    async with a_consumer(broker, "t", group_config=IMPATIENT, **options) as first:
        lost = await lose_one_partition_while_processing(broker, first, second)
        (kept,) = first.assignment

        with pytest.raises(KafkaError, match=f"Cannot commit {lost} .* not assigned") as error:
            await first.commit({lost: 1})
        await first.commit()
        await first.commit({kept: 1})
        await second.close()

        assert error.value.code is ErrorCode.ILLEGAL_GENERATION
        assert await committed(broker, "g", lost) == [60]
        assert await committed(broker, "g", kept) == [1]


@pytest.mark.parametrize("assignors", [("range",), COOPERATIVE])
async def test_a_partition_that_is_assigned_again_is_not_committed_backwards(broker, assignors):
    options = {"group": "g", "auto_commit": None, "assignors": assignors}
    second = a_consumer(broker, "t", **options)
    errors: list[KafkaError] = []

    async def commit_old_record(tps: frozenset[TopicPartition]) -> None:
        if second._is_closed:
            with pytest.raises(KafkaError) as error:
                await first.commit(dict.fromkeys(tps - {kept}, 1))
            errors.append(error.value)

    kept = T0
    async with a_consumer(
        broker, "t", group_config=IMPATIENT, on_assigned=commit_old_record, **options
    ) as first:
        lost = await lose_one_partition_while_processing(broker, first, second)
        (kept,) = first.assignment
        await second.close()
        await eventually(lambda: first.assignment == {T0, T1} and errors)
        assert await first.position(lost) == 60

        with pytest.raises(KafkaError, match=f"offset 1 of {lost} .* at offset 60; seek"):
            await first.commit({lost: 1})
        assert await committed(broker, "g", lost) == [60]

        first.seek(lost, 1)
        await first.commit({lost: 1})
        assert await committed(broker, "g", lost) == [1]
        first.seek_to_beginning(lost)
        await first.commit({lost: 0})
        assert await committed(broker, "g", lost) == [0]


# Removed members.


async def expel(broker: Broker, group: str, member_id: str) -> None:
    async with connect(broker) as client:
        identity = MemberIdentity(member_id=member_id)
        await client.request(LeaveGroupRequest(group_id=group, members=[identity]), 4)


@pytest.mark.parametrize("assignors", [("range",), COOPERATIVE])
async def test_a_removed_member_loses_its_partitions_and_rejoins(broker, assignors):
    await fill(broker, T0, a_batch(10))
    rebalances = RebalanceLog()

    async with a_consumer(
        broker, "t", group="g", auto_commit=0.05, assignors=assignors, **rebalances.callbacks
    ) as consumer:
        first = await take(consumer, 4)
        await commit_of(consumer, T0, 3)
        await expel(broker, "g", consumer._member.member_id)
        await eventually(lambda: len(rebalances.lines) == 3)
        rest = await drain(consumer, 7)

    assert rebalances.lines[:3] == [("assigned", {0, 1}), ("lost", {0, 1}), ("assigned", {0, 1})]
    assert offsets_of(first) == [0, 1, 2, 3]
    assert offsets_of(rest) == list(range(3, 10)), "records being processed are delivered again"


async def test_lost_partitions_are_revoked_without_on_lost(broker):
    calls = []

    async with a_consumer(broker, "t", group="g", on_revoked=calls.append) as consumer:
        await eventually(lambda: consumer.assignment)
        await expel(broker, "g", consumer._member.member_id)
        await eventually(lambda: calls)
        await eventually(lambda: consumer.assignment)

    assert calls[0] == {T0, T1}


async def test_a_commit_of_a_removed_member_fails(broker):
    await fill(broker, T0, a_batch(10))
    slow = GroupConfig(session_timeout=5, heartbeat_interval=4)

    async with a_consumer(broker, "t", group="g", auto_commit=None, group_config=slow) as consumer:
        await take(consumer, 4)
        await expel(broker, "g", consumer._member.member_id)
        with pytest.raises(KafkaError) as error:
            await consumer.commit()
        assert error.value.code is ErrorCode.UNKNOWN_MEMBER_ID
        assert offsets_of(await take(consumer, 10)) == list(range(10)), "and it joins again"


async def test_a_removed_member_cannot_commit_after_the_group_became_empty(broker):
    await fill(broker, T0, a_batch(60))
    slow = GroupConfig(session_timeout=5, heartbeat_interval=4)
    errors: list[ErrorCode] = []

    async def commit_old_record(_tps: frozenset[TopicPartition]) -> None:
        with pytest.raises(KafkaError) as error:
            await first.commit({T0: 1})
        errors.append(error.value.code)

    options = {"group": "g", "auto_commit": None}
    async with a_consumer(
        broker, "t", group_config=slow, on_lost=commit_old_record, **options
    ) as first:
        await take(first, 1)
        await expel(broker, "g", first._member.member_id)
        async with a_consumer(broker, "t", **options) as second:
            await take(second, 60)
            await second.commit()
        with pytest.raises(KafkaError):
            await first.commit()  # learns from the response that it was removed
        await eventually(lambda: errors)

        assert errors == [ErrorCode.UNKNOWN_MEMBER_ID]
        assert await committed(broker, "g", T0) == [60]


async def test_an_unsubscribed_consumer_cannot_commit_partitions_it_had(broker):
    await fill(broker, T0, a_batch(60))

    async with a_consumer(broker, "t", group="g", auto_commit=None) as first:
        await take(first, 1)
        await first.unsubscribe()
        async with a_consumer(broker, "t", group="g", auto_commit=None) as second:
            await take(second, 60)
            await second.commit()

        with pytest.raises(KafkaError, match="not assigned"):
            await first.commit({T0: 1})
        assert await committed(broker, "g", T0) == [60]


async def test_heartbeats_continue_while_the_application_is_busy(broker):
    await fill(broker, T0, a_batch(3))
    brief = GroupConfig(session_timeout=1, heartbeat_interval=0.1)

    rebalances = RebalanceLog()
    async with a_consumer(
        broker, "t", group="g", group_config=brief, **rebalances.callbacks
    ) as consumer:
        await take(consumer, 1)
        await asyncio.sleep(2)
        await take(consumer, 2)
        assert rebalances.lines == [("assigned", {0, 1})]


async def test_an_invalid_session_timeout_raises(broker):
    strange = GroupConfig(session_timeout=10_000, heartbeat_interval=1)

    async with a_consumer(broker, "t", group="g", group_config=strange) as consumer:
        for _ in range(2):
            with pytest.raises(KafkaError) as error:
                await consumer.getone(5)
            assert error.value.code is ErrorCode.INVALID_SESSION_TIMEOUT


# Static members.


async def test_a_static_member_returns_to_its_partitions(broker):
    rebalances = RebalanceLog()

    async with a_consumer(broker, "wide", group="g", **rebalances.callbacks) as other:
        async with a_consumer(broker, "wide", group="g", instance_id="i") as member:
            await eventually(lambda: len(member.assignment) == 4)
            await settled(other, member, count=8)
            before = member.assignment
        line_count = len(rebalances.lines)
        async with a_consumer(broker, "wide", group="g", instance_id="i") as member:
            await eventually(lambda: member.assignment)
            assert member.assignment == before
        assert len(rebalances.lines) == line_count, "no other member noticed"


async def test_the_later_of_two_members_with_one_instance_id_fences_the_other(broker):
    lost = []

    async with a_consumer(broker, "t", group="g", instance_id="i", on_lost=lost.append) as first:
        await eventually(lambda: first.assignment)
        async with a_consumer(broker, "t", group="g", instance_id="i") as second:
            await eventually(lambda: second.assignment)
            with pytest.raises(KafkaError) as error:
                await first.getone(5)
            assert error.value.code is ErrorCode.FENCED_INSTANCE_ID
            assert (lost, first.assignment) == ([{T0, T1}], frozenset())


# Changes of topics and subscriptions.


@pytest.mark.parametrize("assignors", [("range",), COOPERATIVE])
async def test_new_partitions_are_assigned(broker, assignors):
    client = ClientConfig(metadata_max_age=0.1, retry=CLIENT.retry)
    arguments = {"group": "g", "client": client, "assignors": assignors}

    async with (
        a_consumer(broker, "t", **arguments) as first,
        a_consumer(broker, "t", **arguments) as second,
    ):
        await eventually(lambda: len(first.assignment) == len(second.assignment) == 1)
        await add_partitions(broker, "t", 6)
        await eventually(lambda: len(first.assignment) == len(second.assignment) == 3)
        await settled(first, second, count=6, topic="t")


async def test_new_topics_that_match_the_pattern_are_assigned(broker):
    client = ClientConfig(metadata_max_age=0.1, retry=CLIENT.retry)

    async with a_consumer(broker, pattern="new-.*", group="g", client=client) as consumer:
        assert await consumer.getone(0.2) is None
        await add_topic(broker, "new-1")
        await fill(broker, TopicPartition("new-1", 0), a_batch(1))
        assert (await consumer.getone(5)).topic == "new-1"
        await add_topic(broker, "new-2")
        await fill(broker, TopicPartition("new-2", 0), a_batch(1))
        assert (await consumer.getone(5)).topic == "new-2"


async def test_a_topic_created_later_is_assigned(tmp_path):
    async with (
        a_quick_broker(tmp_path, {"t": 1}, auto_create_topics_enable=False) as broker,
        a_consumer(broker, "later", "t", group="g") as consumer,
    ):
        await eventually(lambda: consumer.assignment == {T0})
        await add_topic(broker, "later")
        await eventually(lambda: consumer.assignment == {T0, TopicPartition("later", 0)})


async def test_a_new_subscription_triggers_a_rebalance(broker):
    async with a_consumer(broker, "t", group="g") as consumer:
        await eventually(lambda: consumer.assignment == {T0, T1})
        consumer.subscribe("wide")
        await settled(consumer, count=8)
        consumer.subscribe(pattern="t")
        await eventually(lambda: consumer.assignment == {T0, T1})


async def test_unsubscribe_commits_leaves_and_allows_to_subscribe_again(broker):
    await fill(broker, T0, a_batch(10))
    calls: list[tuple[str, frozenset[TopicPartition]]] = []

    async with a_consumer(
        broker, "t", group="g", on_revoked=lambda tps: calls.append(("revoked", tps))
    ) as consumer:
        assert offsets_of(await take(consumer, 5)) == list(range(5))
        reading = asyncio.create_task(consumer.getone())  # consumes what was delivered
        await reading
        await consumer.unsubscribe()

        assert (consumer.assignment, consumer.topics) == (frozenset(), frozenset())
        assert calls == [("revoked", frozenset({T0, T1}))]
        with pytest.raises(ConsumerError, match="Nothing to read"):
            await consumer.getone(0.1)
        async with a_consumer(broker, "t", group="g") as other:
            # It gets all partitions at once, without waiting for the session timeout of the first.
            assert offsets_of(await take(other, 5)) == list(range(5, 10))

        consumer.assign([T0])
        consumer.seek(T0, 2)
        assert offsets_of(await take(consumer, 2)) == [2, 3]
        await consumer.unsubscribe()
        consumer.subscribe("t")
        await fill(broker, T0, a_batch(1))
        assert offsets_of(await take(consumer, 1)) == [10]


async def test_a_waiting_reader_gets_an_error_on_unsubscribe(broker):
    async with a_consumer(broker, "t", group="g") as consumer:
        reading = asyncio.create_task(consumer.getone())
        await asyncio.sleep(0.1)
        await consumer.unsubscribe()

        with pytest.raises(ConsumerError, match="Nothing to read"):
            await reading


async def test_a_callback_cannot_unsubscribe(broker):
    async def unsubscribe(_tps: frozenset[TopicPartition]) -> None:
        await consumer.unsubscribe()

    async with a_consumer(broker, "t", group="g", on_assigned=unsubscribe) as consumer:
        with pytest.raises(ConsumerError, match="Cannot unsubscribe in a callback"):
            await consumer.getone(5)


async def test_members_may_subscribe_to_different_topics(broker):
    async with (
        a_consumer(broker, "t", group="g", assignors=["roundrobin"]) as first,
        a_consumer(broker, "wide", group="g", assignors=["roundrobin"]) as second,
    ):
        await eventually(lambda: first.assignment == {T0, T1})
        await settled(second, count=8)


# Callbacks.


async def test_callbacks_may_seek_commit_and_wait(broker):
    await fill(broker, T0, a_batch(10))
    calls = []

    async def assigned(given: frozenset[TopicPartition]) -> None:
        await asyncio.sleep(0.01)
        calls.append(await consumer.position(T0))
        consumer.seek(T0, 7)

    async def revoked(given: frozenset[TopicPartition]) -> None:
        await consumer.commit({T0: 9})

    consumer = a_consumer(
        broker, "t", group="g", auto_commit=None, on_assigned=assigned, on_revoked=revoked
    )
    await consumer.start()
    records = await take(consumer, 3)
    async with a_consumer(broker, "t", group="g") as other:
        asking = asyncio.create_task(consumer.getone(1))
        await eventually(lambda: other.assignment)
        asking.cancel()
        assert (await other.committed(T0))[T0].offset == 9
    await consumer.close()

    assert offsets_of(records) == [7, 8, 9]
    assert calls[0] == 0


async def test_a_callback_may_commit_when_the_consumer_is_closed(broker):
    await fill(broker, T0, a_batch(10))

    async def revoked(_given: frozenset[TopicPartition]) -> None:
        await consumer.commit({T0: 5})

    consumer = a_consumer(broker, "t", group="g", auto_commit=None, on_revoked=revoked)
    await consumer.start()
    await take(consumer, 2)
    await consumer.close()

    assert await committed(broker, "g", T0) == [5]


async def test_an_error_of_a_callback_is_raised_and_reading_continues(broker):
    await fill(broker, T0, a_batch(3))

    def fail(_given: frozenset[TopicPartition]) -> None:
        raise RuntimeError("no room")

    async with a_consumer(broker, "t", group="g", on_assigned=fail) as consumer:
        with pytest.raises(RuntimeError, match="no room"):
            await consumer.getone(5)
        assert offsets_of(await take(consumer, 3)) == [0, 1, 2]


async def test_a_callback_may_close_the_consumer(broker):
    async def close(_given: frozenset[TopicPartition]) -> None:
        await consumer.close()

    consumer = a_consumer(broker, "t", group="g", on_assigned=close)
    await consumer.start()
    async with asyncio.timeout(5):
        assert [record async for record in consumer] == []


# Failures.


async def test_a_group_survives_a_broker_restart(tmp_path):
    arguments = ("--set", "group.min.session.timeout.ms=100")
    with Daemon(tmp_path, *arguments) as daemon:
        async with a_consumer(
            daemon.address, "t", group="g", auto_commit=0.05, group_config=QUICK
        ) as consumer:
            await fill_when_there(daemon.address)
            before = await take(consumer, 10)
            await consumer.commit()
            await asyncio.to_thread(daemon.kill)
            assert await consumer.getone(0.2) is None
            await asyncio.to_thread(daemon.start)
            await fill(daemon.address, T0, a_batch(10))
            after = await take(consumer, 10)
        left = await committed(daemon.address, "g", T0)

    assert offsets_of([*before, *after]) == list(range(20))
    assert left == [20]


async def fill_when_there(address: str) -> None:
    """Create the topic by asking for it."""
    async with a_consumer(address, "t"):
        await fill(address, T0, a_batch(10))


async def test_close_waits_for_another_close_in_progress(broker):
    """As in a program whose signal handler closes the consumer while its loop ends."""
    await fill(broker, T0, a_batch(10))
    closing = []

    lasting = GroupConfig(session_timeout=15, heartbeat_interval=0.05)
    async with a_consumer(broker, "t", group="g", group_config=lasting) as consumer:
        async for record in consumer:
            if record.offset == 5:
                closing.append(asyncio.create_task(consumer.close()))
                await asyncio.sleep(0)
    closing[0].cancel()  # as asyncio.run does with pending tasks
    await asyncio.wait(closing)

    await fill(broker, T0, a_batch(1))
    async with a_consumer(broker, "t", group="g") as consumer:
        # The first one has left: no session timeout has to pass.
        async with asyncio.timeout(lasting.session_timeout / 2):
            assert offsets_of(await take(consumer, 1)) == [10]


async def test_close_is_quick_when_no_broker_answers(tmp_path):
    async with a_quick_broker(tmp_path) as broker:
        consumer = a_consumer(broker, "t", group="g")
        await consumer.start()
        await eventually(lambda: consumer.assignment)
        await consumer.getone(0.2)
    async with asyncio.timeout(CLIENT.timeouts.request + 3):
        await consumer.close()


async def test_a_member_can_be_closed_after_any_cancellation(broker):
    await fill(broker, T0, a_batch(10))

    for turns in range(0, 60, 4):
        consumer = a_consumer(broker, "t", group="g")
        await consumer.start()
        reading = asyncio.create_task(take(consumer, 3))
        for _ in range(turns):
            await asyncio.sleep(0.001)
        reading.cancel()
        closing = asyncio.create_task(consumer.close())
        for _ in range(turns % 7):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([reading, closing])
        await consumer.close()

    async with a_consumer(broker, "t", group="after") as consumer:
        for work in (consumer.commit, consumer.committed, consumer.lag):
            for turns in range(8):
                task = asyncio.create_task(work())
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
        assert offsets_of(await take(consumer, 10)) == list(range(10))
    assert not [task for task in asyncio.all_tasks() if "consumer" in task.get_name()]
