"""Mistakes of operators: no broker deletes data, repeats producer ids, or leads as a second one."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from harness.daemon import Cluster, partitions_on_disk, shown_on_failure
from harness.identity import (
    FIXED_ID,
    REFUSED,
    assert_refused,
    copied_process,
    copy_of,
    end_of_epoch,
    errors_of,
    new_producer_id,
    produce_idempotent,
    second_process,
    start_without_the_first,
    until_logged,
)
from harness.logs import a_batch
from harness.requests import (
    OK,
    fetch_partition,
    leaders_of,
    metadata,
    produce_code,
    produce_request,
    try_create_topic,
    try_delete_topic,
)
from harness.wire import connect
from ottla.client import Admin, TopicPartition
from ottla.protocol.errors import ErrorCode

pytestmark = pytest.mark.real_time


@pytest.fixture
def cluster(request, tmp_path):
    with Cluster(tmp_path, 2, *FIXED_ID) as started, shown_on_failure(request, started.brokers):
        yield started


async def test_an_empty_broker_with_a_new_lowest_id_is_not_followed(tmp_path, request):
    cluster = Cluster(tmp_path, 3, *FIXED_ID)
    newcomer, *old = cluster
    try:
        with shown_on_failure(request, cluster.brokers):
            start_without_the_first(cluster)
            assert await try_create_topic(old[0], "orders", leaders=[1, 2]) == OK
            for index, broker in enumerate(old):
                assert await produce_code(broker, "orders", index) == ErrorCode.NONE
                assert broker.stop() == 0
            cluster.start()

            for index, broker in enumerate(old):
                await until_logged(broker, REFUSED)
                assert await leaders_of(broker, "orders") == [1, 2]
                assert (await fetch_partition(broker, "orders", index)).high_watermark == 1
                assert await produce_code(broker, "orders", index) == ErrorCode.NONE
                assert partitions_on_disk(broker, "orders") == {index}
                (error,) = errors_of(broker)
                assert "give it a higher id" in error
            assert "does not follow this controller" in newcomer.log.read_text()
            code, message = await try_create_topic(old[1], "new", leaders=[2])
            assert code == ErrorCode.BROKER_NOT_AVAILABLE
            assert "another metadata log" in message
    finally:
        cluster.kill()


async def test_a_controller_restored_from_an_older_copy_and_used_is_not_followed(cluster):
    assert await try_create_topic(cluster[0], "old", leaders=[1]) == OK
    cluster[0].stop()
    copy = copy_of(cluster[0], cluster.folder / "copy")
    cluster[0].start()
    assert await try_create_topic(cluster[0], "newer", leaders=[1]) == OK
    assert await produce_code(cluster[1], "newer", 0) == ErrorCode.NONE
    cluster[1].kill()
    cluster[0].kill()
    shutil.rmtree(cluster[0].data)
    copy.rename(cluster[0].data)
    cluster[0].start()
    # As long as the log that broker 1 has followed, and longer.
    for number in range(5):
        assert await try_create_topic(cluster[0], f"other-{number}", leaders=[0]) == OK

    cluster[1].start()

    await until_logged(cluster[1], REFUSED)
    assert (await fetch_partition(cluster[1], "newer", 0)).high_watermark == 1
    assert await leaders_of(cluster[1], "old") == [1]
    assert not list(cluster[1].data.glob("*.deleted"))


async def test_a_wiped_controller_never_repeats_a_producer_id(cluster):
    assert await try_create_topic(cluster[0], "orders", leaders=[1]) == OK
    before = {await new_producer_id(broker) for broker in (*cluster, *cluster)}
    for producer_id in before:
        assert (await produce_idempotent(cluster[1], "orders", producer_id, 0))[0] == 0
    cluster[0].kill()
    shutil.rmtree(cluster[0].data)
    cluster[0].start()
    await until_logged(cluster[1], REFUSED)

    after = {await new_producer_id(broker) for broker in (*cluster, *cluster)}

    assert not before & after
    end = len(before)
    for number, producer_id in enumerate(after):
        outcome = await produce_idempotent(cluster[1], "orders", producer_id, 0)
        assert outcome == (ErrorCode.NONE, end + number)


async def test_a_leader_that_lost_its_disk_is_noticed_by_consumers_and_producers(cluster):
    assert await try_create_topic(cluster[0], "orders", leaders=[1, 1]) == OK
    producer_id = await new_producer_id(cluster[1])
    assert await produce_idempotent(cluster[1], "orders", producer_id, 0, 5) == (0, 0)
    [topic] = (await metadata(cluster[0], "orders")).topics
    epoch = topic.partitions[0].leader_epoch
    cluster[1].kill()
    shutil.rmtree(cluster[1].data)
    cluster[1].start()

    assert "partition log missing (data loss)" in cluster[1].log.read_text()
    (error,) = errors_of(cluster[1])
    assert "partitions=2" in error
    for broker in cluster:
        [topic] = (await metadata(broker, "orders")).topics
        assert {partition.leader_epoch for partition in topic.partitions} == {epoch + 1}
    code, _offset = await produce_idempotent(cluster[1], "orders", producer_id, 5)
    assert code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert (await fetch_partition(cluster[1], "orders", 0, 5)).error_code == (
        ErrorCode.OFFSET_OUT_OF_RANGE
    )
    # After as many new records as were lost, the epoch tells.
    assert (await produce_idempotent(cluster[1], "orders", producer_id + 1, 0, 7))[0] == 0
    assert await end_of_epoch(cluster[1], epoch, epoch + 1) == (ErrorCode.NONE, epoch, 0)
    assert (await end_of_epoch(cluster[1], epoch, epoch))[0] == ErrorCode.FENCED_LEADER_EPOCH
    cluster[1].restart()
    code, _offset = await produce_idempotent(cluster[1], "orders", producer_id, 5)
    assert code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize("number", [0, 1])
async def test_a_second_process_with_a_broker_id_exits_with_an_error(tmp_path, request, number):
    quick = ("--set", "broker.session.timeout.ms=1000")
    with Cluster(tmp_path, 2, *FIXED_ID, *quick) as cluster:
        assert await try_create_topic(cluster[0], "orders", leaders=[number]) == OK
        second = second_process(cluster, number, *quick)
        with shown_on_failure(request, [*cluster, second]):
            assert_refused(second, number)
            assert await produce_code(cluster[number], "orders", 0) == ErrorCode.NONE
            # The first process can be restarted at any time.
            cluster[number].kill()
            cluster[number].start()
            assert await produce_code(cluster[number], "orders", 0) == ErrorCode.NONE


@pytest.mark.parametrize("number", [0, 1])
async def test_a_copy_of_a_paused_broker_with_another_address_is_refused(tmp_path, request, number):
    quick = ("--set", "broker.session.timeout.ms=1000")
    with Cluster(tmp_path, 2, *FIXED_ID, *quick) as cluster:
        assert await try_create_topic(cluster[0], "orders", leaders=[number]) == OK
        second = copied_process(cluster, number, *quick)
        with shown_on_failure(request, [*cluster, second]):
            cluster[number].pause()
            await asyncio.sleep(1.5)

            assert_refused(second, number, "has the address")

            cluster[number].resume()
            assert await produce_code(cluster[number], "orders", 0) == ErrorCode.NONE
            assert errors_of(cluster[number]) == []


@pytest.mark.parametrize("number", [0, 1])
async def test_a_paused_broker_that_was_replaced_acks_nothing_and_exits(tmp_path, request, number):
    quick = ("--set", "broker.session.timeout.ms=1000")
    with Cluster(tmp_path, 2, *FIXED_ID, *quick) as cluster:
        first = cluster[number]
        assert await try_create_topic(cluster[0], "orders", leaders=[number]) == OK
        second = second_process(cluster, number, *quick)
        with shown_on_failure(request, [*cluster, second]):
            async with connect(first.address) as client:
                first.pause()
                client.send(produce_request(a_batch(), topic="orders", partition=0, acks=1), 9)
                await asyncio.sleep(1.5)
                shutil.copytree(first.data, second.data)
                with second:
                    first.resume()

                    assert await client.is_closed()
                    assert first.wait() == 1
                    assert "by another process" in first.log_tail()
                    assert await produce_code(second, "orders", 0) == ErrorCode.NONE


async def test_a_recreated_topic_does_not_inherit_committed_offsets(cluster):
    partition = TopicPartition("orders", 0)
    async with Admin(cluster.bootstrap) as admin:
        for topic in ("orders", "stays"):
            assert await try_create_topic(cluster[0], topic, leaders=[0]) == OK
            for _ in range(5):
                assert await produce_code(cluster[0], topic, 0) == ErrorCode.NONE
        stays = TopicPartition("stays", 0)
        groups = [f"group-{number}" for number in range(6)]
        for group in groups:
            await admin.alter_group_offsets(group, {partition: 5, stays: 3})
    cluster[1].kill()
    assert await try_delete_topic(cluster[0], "orders") == OK
    assert await try_create_topic(cluster[0], "orders", leaders=[0]) == OK
    cluster[1].start()
    async with Admin(cluster.bootstrap) as admin:
        for group in groups:
            offsets = await admin.list_group_offsets(group)
            assert {tp: offset.offset for tp, offset in offsets.items()} == {stays: 3}


async def test_the_next_broker_takes_over_from_a_controller_that_is_removed(tmp_path, request):
    with Cluster(tmp_path, 3, *FIXED_ID) as cluster, shown_on_failure(request, cluster.brokers):
        assert await try_create_topic(cluster[0], "orders", leaders=[1, 2]) == OK
        assert await produce_code(cluster[2], "orders", 1) == ErrorCode.NONE
        cluster.kill()
        start_without_the_first(cluster)

        assert await try_create_topic(cluster[2], "later", leaders=[2]) == OK
        assert await leaders_of(cluster[2], "orders") == [1, 2]
        assert (await fetch_partition(cluster[2], "orders", 1)).high_watermark == 1
        assert errors_of(cluster[1]) == errors_of(cluster[2]) == []
        # Again, as the controller that it is now.
        cluster[1].restart()
        cluster[2].restart()
        assert await try_create_topic(cluster[2], "last", leaders=[1]) == OK
        assert errors_of(cluster[1]) == errors_of(cluster[2]) == []
