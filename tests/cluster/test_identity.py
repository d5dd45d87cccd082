"""Mistakes of operators: no broker deletes data, repeats producer ids, or leads as a second one."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path

import pytest

from harness.daemon import Cluster, Daemon, free_port, partitions_on_disk, shown_on_failure
from harness.logs import a_batch
from harness.requests import (
    OK,
    error_codes,
    fetch_partition,
    leaders_of,
    metadata,
    produce_code,
    produce_request,
    send_request,
    try_create_topic,
    try_delete_topic,
)
from ottla.client import Admin, TopicPartition
from ottla.protocol.api.init_producer_id import InitProducerIdRequest
from ottla.protocol.api.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.protocol.errors import ErrorCode

pytestmark = pytest.mark.real_time

TIMEOUT_SECONDS = 30
FIXED_ID = ("--set", "cluster.id=paper-trail", "--set", "controller.wait.ms=3000")
REFUSED = "not following the controller"


@pytest.fixture
def cluster(request, tmp_path):
    with Cluster(tmp_path, 2, *FIXED_ID) as started, shown_on_failure(request, started.brokers):
        yield started


async def until_logged(broker: Daemon, text: str) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while text not in broker.log.read_text():
        assert time.monotonic() < deadline, f"not logged: {text}\n{broker.log_tail()}"
        await asyncio.sleep(0.02)


def errors_of(broker: Daemon) -> list[str]:
    return [line for line in broker.log.read_text().splitlines() if " ERROR " in line]


def copy_of(broker: Daemon, target: Path) -> Path:
    shutil.copytree(broker.data, target)
    return target


async def new_producer_id(broker: Daemon) -> int:
    response = await send_request(broker, InitProducerIdRequest(transactional_id=None))
    assert response.error_code == ErrorCode.NONE
    return response.producer_id


async def produce_idempotent(
    broker: Daemon, topic: str, producer_id: int, sequence: int, count: int = 1
) -> tuple[int, int]:
    batch = a_batch(count, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
    request = produce_request(batch, topic=topic, partition=0, acks=-1)
    response = await send_request(broker, request)
    (code,) = error_codes(response)
    return code, response.responses[0].partition_responses[0].base_offset


async def test_an_empty_broker_with_a_new_lowest_id_is_not_followed(tmp_path, request):
    cluster = Cluster(tmp_path, 3, *FIXED_ID)
    newcomer, *old = cluster
    listed = cluster.describe()
    try:
        with shown_on_failure(request, cluster.brokers):
            tmp_path.mkdir(exist_ok=True)
            cluster.file.write_text(listed[listed.index("\n[[brokers]]\nid = 1") :])
            for broker in old:
                broker.launch()
            for broker in old:
                broker.wait_until_ready()
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


async def end_of_epoch(broker: Daemon, epoch: int, current: int) -> tuple[int, int, int]:
    partition = OffsetForLeaderPartition(
        partition=0, current_leader_epoch=current, leader_epoch=epoch
    )
    topics = [OffsetForLeaderTopic(topic="orders", partitions=[partition])]
    response = await send_request(broker, OffsetForLeaderEpochRequest(replica_id=-1, topics=topics))
    (data,) = response.topics[0].partitions
    return data.error_code, data.leader_epoch, data.end_offset


@pytest.mark.parametrize("number", [0, 1])
async def test_a_second_process_with_a_broker_id_exits_with_an_error(tmp_path, request, number):
    quick = ("--set", "broker.session.timeout.ms=1000")
    with Cluster(tmp_path, 2, *FIXED_ID, *quick) as cluster:
        assert await try_create_topic(cluster[0], "orders", leaders=[number]) == OK
        port = free_port()
        second = Daemon(
            tmp_path / "second",
            *("--id", str(number), "--cluster", str(cluster.file)),
            *("--listen", f"127.0.0.1:{port}", *FIXED_ID, *quick),
            port=port,
        )
        with shown_on_failure(request, [*cluster, second]):
            process = second.spawn()
            try:
                assert process.wait(TIMEOUT_SECONDS) == 1
            finally:
                process.kill()
                process.wait()
            assert f"Broker id {number} is in use by another process" in second.log_tail()
            assert await produce_code(cluster[number], "orders", 0) == ErrorCode.NONE
            # The first process can be restarted at any time.
            cluster[number].kill()
            cluster[number].start()
            assert await produce_code(cluster[number], "orders", 0) == ErrorCode.NONE


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
        listed = cluster.describe()
        cluster.file.write_text(listed[listed.index("\n[[brokers]]\nid = 1") :])
        for broker in (cluster[1], cluster[2]):
            broker.launch()
        for broker in (cluster[1], cluster[2]):
            broker.wait_until_ready()

        assert await try_create_topic(cluster[2], "later", leaders=[2]) == OK
        assert await leaders_of(cluster[2], "orders") == [1, 2]
        assert (await fetch_partition(cluster[2], "orders", 1)).high_watermark == 1
        assert errors_of(cluster[1]) == errors_of(cluster[2]) == []
        # Again, as the controller that it is now.
        cluster[1].restart()
        cluster[2].restart()
        assert await try_create_topic(cluster[2], "last", leaders=[1]) == OK
        assert errors_of(cluster[1]) == errors_of(cluster[2]) == []
