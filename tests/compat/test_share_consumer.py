"""The share consumer of the SDK, against Apache Kafka and ottla."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from uuid import uuid4

import pytest

from harness.command import Command
from harness.share_stage import (
    BRISK,
    CLIENT,
    LOCK_SECONDS,
    PATIENCE,
    a_share_cluster,
    a_share_consumer,
    a_topic_and_group,
    fill,
    numbers,
    take,
)
from harness.waiting import eventually
from ottla.client import (
    Admin,
    BadRecordError,
    Consumer,
    DeadLetterConfig,
    ErrorCode,
    KafkaError,
    ShareConfig,
    TopicPartition,
)
from ottla.client.blocking import ShareConsumer as BlockingShareConsumer

# Takes each record once, and is killed while it processes one.
VICTIM = """
import asyncio, sys
from ottla.client import DeadLetterConfig, ShareConfig, ShareConsumer

async def main(address, topic, group, dead_letter, poison):
    config = DeadLetterConfig(dead_letter, max_deliveries=2) if dead_letter else None
    share = ShareConfig(max_wait=0.1, acknowledge_interval=0.05)
    async with ShareConsumer(
        address, topic, group=group, dead_letter=config, share=share
    ) as consumer:
        async for record in consumer:
            print(record.offset, record.delivery_count, flush=True)
            if record.value == poison.encode():
                await asyncio.sleep(60)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture(scope="module", params=["kafka", "ottla"])
def cluster(request, tmp_path_factory) -> Iterator[str]:
    with a_share_cluster(request.param, tmp_path_factory.mktemp(request.param)) as started:
        yield started.address


async def test_two_consumers_share_a_partition_and_get_every_record_once(cluster):
    topic, group = await a_topic_and_group(cluster)
    share = ShareConfig(max_records=10, acquire_mode="record_limit", max_wait=0.1)
    received: dict[int, list[int]] = {0: [], 1: []}
    async with (
        a_share_consumer(cluster, topic, group, share=share) as first,
        a_share_consumer(cluster, topic, group, share=share) as second,
    ):
        tp = TopicPartition(topic, 0)
        await eventually(lambda: first.assignment == second.assignment == {tp}, PATIENCE)
        await fill(cluster, topic, 300)

        async def read(consumer, numbers):
            async for record in consumer:
                assert record.delivery_count == 1
                numbers.append(int(record.value))
                await asyncio.sleep(0.001)

        tasks = [
            asyncio.create_task(read(one, received[i])) for i, one in ((0, first), (1, second))
        ]
        await eventually(lambda: sum(map(len, received.values())) >= 300, PATIENCE)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    assert sorted(received[0] + received[1]) == list(range(300))
    assert received[0]
    assert received[1]


async def test_released_records_return_with_their_count_and_rejected_ones_do_not(cluster):
    topic, group = await a_topic_and_group(cluster)
    await fill(cluster, topic, 10)
    acknowledged: list[tuple[TopicPartition, list[int], Exception | None]] = []

    async with a_share_consumer(
        cluster, topic, group, on_acknowledged=lambda *one: acknowledged.append(one)
    ) as consumer:
        for record in await take(consumer, 10):
            if record.offset == 3:
                assert consumer.release(record)
            if record.offset == 4:
                assert consumer.reject(record)
        await consumer.commit()
        assert sorted(offset for _, offsets, _ in acknowledged for offset in offsets) == list(
            range(10)
        )
        (again,) = await take(consumer, 1)
        assert (again.offset, again.delivery_count) == (3, 2)
        assert await consumer.getone(timeout=0.3) is None
        assert consumer.lock_duration == LOCK_SECONDS
        # It is accepted already: that cannot be changed.
        assert not consumer.release(record)

    async with a_share_consumer(cluster, topic, group) as other:
        assert await other.getone(timeout=1.0) is None
    assert {error for _, _, error in acknowledged} == {None}


async def test_explicit_acknowledgement_accepts_nothing_by_itself(cluster):
    topic, group = await a_topic_and_group(cluster)
    await fill(cluster, topic, 4)

    async with a_share_consumer(cluster, topic, group, acknowledgement="explicit") as consumer:
        records = await take(consumer, 4)
        # In any order.
        assert consumer.accept(records[2])
        assert consumer.accept(records[0])
        await consumer.commit()
    async with a_share_consumer(cluster, topic, group) as other:
        again = await take(other, 2)

    assert numbers(again) == [1, 3]
    assert {record.delivery_count for record in again} == {2}


async def test_a_lock_ends_unless_it_is_renewed(cluster):
    topic, group = await a_topic_and_group(cluster)
    await fill(cluster, topic, 2)

    async with a_share_consumer(cluster, topic, group, acknowledgement="explicit") as first:
        records = await take(first, 2)
        async with a_share_consumer(cluster, topic, group) as second:
            for _ in range(4):
                await asyncio.sleep(LOCK_SECONDS / 3)
                first.renew(records[1])
            (again,) = await take(second, 1)
        assert (again.offset, again.delivery_count) == (0, 2)
        assert not first.accept(records[0])
        assert first.accept(records[1])
        await first.commit()


async def test_records_that_wait_in_the_buffer_keep_their_locks(cluster):
    topic, group = await a_topic_and_group(cluster)
    await fill(cluster, topic, 6)

    async with a_share_consumer(cluster, topic, group) as consumer:
        records = []
        async for record in consumer:
            records.append(record)
            if len(records) == 6:
                break
            await asyncio.sleep(LOCK_SECONDS / 3)

    assert numbers(records) == list(range(6))
    assert {record.delivery_count for record in records} == {1}


async def test_a_block_that_raises_releases_the_record_in_process(cluster):
    topic, group = await a_topic_and_group(cluster)
    await fill(cluster, topic, 3)

    async def fail_at_the_second():
        async with a_share_consumer(cluster, topic, group) as consumer:
            async for record in consumer:
                if record.offset == 1:
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_at_the_second()
    async with a_share_consumer(cluster, topic, group) as consumer:
        again = await take(consumer, 2)
        assert await consumer.getone(timeout=0.3) is None

    assert [(one.offset, one.delivery_count) for one in again] == [(1, 2), (2, 2)]


async def test_a_record_that_cannot_be_deserialized_is_raised_and_can_be_rejected(cluster):
    topic, group = await a_topic_and_group(cluster)
    await fill(cluster, topic, 3)

    def deserialize(data: bytes) -> int:
        return 10 // (int(data) - 1)

    async with a_share_consumer(cluster, topic, group, value_deserializer=deserialize) as consumer:
        assert (await take(consumer, 1))[0].value == -10
        with pytest.raises(BadRecordError) as raised:
            await take(consumer, 1)
        assert consumer.reject(raised.value.record)
        assert (await take(consumer, 1))[0].value == 10
        assert await consumer.getone(timeout=0.3) is None


async def test_the_blocking_client_shares_and_acknowledges(cluster):
    topic, group = await a_topic_and_group(cluster)
    await fill(cluster, topic, 20)

    def read() -> list[tuple[int, int]]:
        seen = []
        with BlockingShareConsumer(
            cluster, topic, group=group, share=BRISK, client=CLIENT
        ) as consumer:
            for record in consumer:
                seen.append((record.offset, record.delivery_count))
                if len(seen) == 5:
                    consumer.release(record)
                    consumer.commit()
                if len(seen) == 21:
                    return seen
        return seen

    seen = await asyncio.to_thread(read)

    assert sorted(seen) == sorted([*((offset, 1) for offset in range(20)), (4, 2)])


async def test_records_of_a_killed_consumer_are_delivered_to_others(cluster):
    topic, group = await a_topic_and_group(cluster)
    await fill(cluster, topic, 10)

    lines = await killed_at_poison(cluster, topic, group, "", "5")
    async with a_share_consumer(cluster, topic, group) as consumer:
        records = await take(consumer, 5)
        while records[-1].offset < 9:
            records += await take(consumer, 1)

    assert lines[-1] == "5 1"
    # What was accepted before is not delivered again.
    assert numbers(records)[-5:] == [5, 6, 7, 8, 9]
    assert 0 not in numbers(records)
    assert {one.delivery_count for one in records} == {2}


async def test_a_record_that_kills_its_consumers_ends_in_the_dead_letter_topic(cluster):
    topic, group = await a_topic_and_group(cluster)
    dead, _ = await a_topic_and_group(cluster)
    await fill(cluster, topic, 3)

    for count in (1, 2):
        lines = await killed_at_poison(cluster, topic, group, dead, "1")
        assert lines[-1] == f"1 {count}"
    config = DeadLetterConfig(dead, max_deliveries=2)
    async with a_share_consumer(cluster, topic, group, dead_letter=config) as consumer:
        # The others are not dead letters, although they were delivered before, too.
        (record,) = await take(consumer, 1)
        assert record.offset == 2
        assert await consumer.getone(timeout=0.5) is None

    (letter,) = await letters(cluster, dead, 1)
    assert letter.value == b"1"
    headers = dict(letter.headers)
    assert headers["__dlq.errors.topic"] == topic.encode()
    assert headers["__dlq.errors.offset"] == b"1"
    assert headers["__dlq.errors.delivery.count"] == b"3"


async def test_released_and_rejected_records_end_in_the_dead_letter_topic(cluster):
    topic, group = await a_topic_and_group(cluster)
    dead, _ = await a_topic_and_group(cluster)
    await fill(cluster, topic, 4)

    async with a_share_consumer(
        cluster, topic, group, dead_letter=dead, value_deserializer=int
    ) as consumer:
        seen = []
        for _ in range(6):
            (record,) = await take(consumer, 1)
            seen.append((record.value, record.delivery_count))
            if record.value == 1:
                consumer.release(record, "not now")
            if record.value == 2:
                consumer.reject(record, "never")
        assert await consumer.getone(timeout=0.5) is None

    assert sorted(seen) == [(0, 1), (1, 1), (1, 2), (1, 3), (2, 1), (3, 1)]
    by_value = {one.value: dict(one.headers) for one in await letters(cluster, dead, 2)}
    assert by_value[b"1"]["__dlq.errors.message"] == b"not now"
    assert by_value[b"1"]["__dlq.errors.delivery.count"] == b"3"
    assert by_value[b"2"]["__dlq.errors.message"] == b"never"


async def test_a_missing_dead_letter_topic_is_an_error_at_the_start(cluster):
    topic, group = await a_topic_and_group(cluster)

    with pytest.raises(KafkaError, match="no-such-topic"):
        async with a_share_consumer(cluster, topic, group, dead_letter="no-such-topic"):
            pass


async def test_the_admin_describes_and_alters_share_groups(cluster):
    topic, group = await a_topic_and_group(cluster)
    tp = TopicPartition(topic, 0)
    await fill(cluster, topic, 10)

    async with Admin(cluster, client=CLIENT) as admin:
        async with a_share_consumer(cluster, topic, group) as consumer:
            await take(consumer, 4)
            await consumer.commit()
            described = (await admin.describe_groups(group))[group]
            assert described == (await admin.describe_share_groups(group))[group]
            (member,) = described.members
            assert (described.type, described.state, member.topics, member.assignment) == (
                "share",
                "Stable",
                (topic,),
                (tp,),
            )
            with pytest.raises(KafkaError) as raised:
                await admin.alter_share_group_offsets(group, {tp: 0})
            assert raised.value.code is ErrorCode.NON_EMPTY_GROUP
        with pytest.raises(KafkaError) as raised:
            await admin.describe_share_groups("no-such-group")
        assert raised.value.code is ErrorCode.GROUP_ID_NOT_FOUND

        offset = (await admin.list_share_group_offsets(group))[tp]
        assert (offset.start_offset, offset.lag) == (4, 6)
        await admin.alter_share_group_offsets(group, {tp: 2})
        assert (await admin.list_share_group_offsets(group))[tp].start_offset == 2
        async with a_share_consumer(cluster, topic, group) as consumer:
            assert (await take(consumer, 1))[0].offset == 2
        await admin.delete_share_group_offsets(group, topic)
        assert await admin.list_share_group_offsets(group) == {}
        await admin.delete_groups(group)
        assert group not in {one.group_id for one in await admin.list_groups()}


def test_the_command_line_reads_and_resets_a_share_group(cluster, tmp_path):
    run = Command(cluster, str(tmp_path))
    topic, group = f"cli-{uuid4().hex[:8]}", f"workers-{uuid4().hex[:8]}"
    run("topic", "create", topic)
    run("produce", topic, "--quiet", stdin="a\nb\nc\n")

    read = ("consume", topic, "--share", group, "--max-count")
    (first,) = run.rows(*read, "1", "--from", "start", "--acknowledge", "release")
    assert (first["value"], first["delivery_count"]) == ("a", 1)
    assert run(*read, "2") == "a\nb\n"
    (listed,) = [one for one in run.json("group", "list") if one["group"] == group]
    assert listed["type"] == "share"
    (described,) = run.json("group", "describe", group)
    (partition,) = described["partitions"]
    assert (partition["start_offset"], partition["lag"], described["lag"]) == (2, 1, 1)
    assert "START OFFSET" in run("group", "describe", group)

    (reset,) = run.json("group", "reset", group, "--to", "1", "--yes")
    assert (reset["offset_before"], reset["offset"]) == (2, 1)
    assert run("consume", topic, "--share", group, "--exit-at-end") == "b\nc\n"
    run("group", "delete-offsets", group, topic, "--yes")
    run("group", "delete", group, "--yes")
    assert group not in run("group", "list", "--quiet").split()
    assert "--share" in run.fails(2, "consume", topic, "--acknowledge", "reject")


async def killed_at_poison(cluster, topic, group, dead, poison):
    """Run a consumer until it processes a record, and kill it; return what it printed."""
    process = subprocess.Popen(
        [sys.executable, "-c", VICTIM, cluster, topic, group, dead, poison],
        stdout=subprocess.PIPE,
        text=True,
    )
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(iter(process.stdout.readline, "")))
    reader.start()
    try:
        await eventually(lambda: any(line.split()[0] == poison for line in lines), PATIENCE)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        reader.join()
        process.stdout.close()
    return [line.strip() for line in lines]


async def letters(cluster, topic, count):
    async with Consumer(cluster, topic, client=CLIENT) as consumer:
        found = []
        async with asyncio.timeout(PATIENCE):
            while len(found) < count:
                found.append(await consumer.getone())
        assert await consumer.getone(timeout=0.3) is None
    return found
