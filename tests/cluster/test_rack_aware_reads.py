"""Consumers read from a follower in their rack (KIP-392)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cluster.test_replication import Replicas, produce
from harness.load import librdkafka_consumer
from harness.requests import send_request
from harness.waiting import eventually
from harness.wire import fetch_request, fetched_partitions
from ottla.broker import Broker
from ottla.protocol.errors import ErrorCode

SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
#: Longer than the tests: a follower learns a high watermark at once.
WAIT_MS = 20_000
FETCH_VERSION = 12


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Replicas]:
    async with asyncio.timeout(60):
        replicas = Replicas(
            tmp_path,
            replica_selector_class=SELECTOR,
            replica_fetch_wait_max_ms=str(WAIT_MS),
            replica_lag_time_max_ms=str(2 * WAIT_MS),
        )
        await replicas.start(0, 1, 2)
        await replicas.create("t")
        yield replicas
        await replicas.stop(*replicas.brokers)
        await asyncio.sleep(0.05)


def a_follower(cluster: Replicas) -> Broker:
    leader = cluster.state("t").leader
    return next(broker for broker in cluster.brokers.values() if broker.id != leader)


async def fetch(broker: Broker, offset: int, **fields: Any) -> Any:
    message = fetch_request(offset, **fields)
    (data,) = fetched_partitions(await send_request(broker, message, FETCH_VERSION))
    return data


async def test_the_leader_names_the_follower_in_the_rack(cluster: Replicas) -> None:
    await produce(cluster, "t", 3)
    await cluster.until_in_sync("t")
    leader, follower = cluster.leader("t"), a_follower(cluster)
    rack = follower.config.broker_rack
    # At once, although there is nothing to read.
    data = await fetch(leader, 3, rack_id=rack, max_wait_ms=WAIT_MS)
    assert data.preferred_read_replica == follower.id
    assert (data.error_code, bytes(data.records), data.high_watermark) == (0, b"", 3)
    # In its own rack, in an unknown one, or in none, the leader is read.
    for own in (leader.config.broker_rack, "elsewhere", ""):
        data = await fetch(leader, 0, rack_id=own)
        assert data.preferred_read_replica == -1
        assert data.records
    # No follower has that offset.
    data = await fetch(leader, 4, rack_id=rack)
    assert data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_a_follower_outside_the_isr_is_not_preferred(cluster: Replicas) -> None:
    await produce(cluster, "t")
    await cluster.until_in_sync("t")
    follower = a_follower(cluster)
    await cluster.stop(follower.id)
    await eventually(lambda: follower.id not in cluster.leader("t").topics.find("t", 0).state.isr)
    data = await fetch(cluster.leader("t"), 0, rack_id=follower.config.broker_rack)
    assert data.preferred_read_replica == -1
    assert data.records


async def test_a_follower_answers_when_records_are_committed(cluster: Replicas) -> None:
    await cluster.until_in_sync("t")
    follower = a_follower(cluster)
    waiting = asyncio.create_task(fetch(follower, 0, max_wait_ms=WAIT_MS))
    await eventually(lambda: follower.topics.followed("t", 0).waiters)
    await produce(cluster, "t", value=b"first")
    data = await waiting
    assert b"first" in bytes(data.records)
    assert (data.high_watermark, data.preferred_read_replica) == (1, -1)
    # It has fewer records than the leader would have: not that the log was truncated.
    partition = cluster.replica(follower.id, "t")
    beyond = partition.log.end_offset + 1
    message = fetch_request(beyond)
    message.topics[0].partitions[0].last_fetched_epoch = partition.leader_epoch
    (data,) = fetched_partitions(await send_request(follower, message, FETCH_VERSION))
    assert data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_a_consumer_with_another_leader_epoch_is_told_the_leader(cluster: Replicas) -> None:
    await cluster.until_in_sync("t")
    await cluster.stop(cluster.state("t").leader)
    await cluster.until_in_sync("t", count=2)
    state, follower = cluster.state("t"), a_follower(cluster)
    message = fetch_request(0, epoch=state.leader_epoch - 1)
    message.topics[0].topic_id = follower.topics.image.topics["t"].id
    response = await send_request(follower, message, 16)
    (data,) = fetched_partitions(response)
    assert data.error_code == ErrorCode.FENCED_LEADER_EPOCH
    known = (data.current_leader.leader_id, data.current_leader.leader_epoch)
    assert known == (state.leader, state.leader_epoch)
    assert [node.node_id for node in response.node_endpoints] == [state.leader]
    data = await fetch(follower, 0, epoch=state.leader_epoch + 1)
    assert data.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


async def test_librdkafka_reads_in_its_rack(cluster: Replicas) -> None:
    count, size = 20, 50_000
    for number in range(count):
        await produce(cluster, "t", value=b"%02d" % number + bytes(size))
    await cluster.until_in_sync("t")
    leader, follower = cluster.leader("t"), a_follower(cluster)
    sent = {broker.id: broker.metrics.bytes_sent for broker in cluster.brokers.values()}
    consumer = librdkafka_consumer(
        leader.address, "t", 1, **{"client.rack": follower.config.broker_rack}
    )

    def consume() -> list[bytes]:
        found: list[bytes] = []
        while len(found) < count:
            found += [one.value()[:2] for one in consumer.consume(10, 0.1) if not one.error()]
        return found

    try:
        assert await asyncio.to_thread(consume) == [b"%02d" % number for number in range(count)]
        bytes_of = {
            broker.id: broker.metrics.bytes_sent - sent[broker.id]
            for broker in cluster.brokers.values()
        }
        assert bytes_of[follower.id] > count * size
        assert bytes_of[leader.id] < size
        # The rack is lost: the consumer continues at the leader.
        await cluster.stop(follower.id)
        count = 1
        await produce(cluster, "t", value=b"20")
        assert await asyncio.to_thread(consume) == [b"20"]
    finally:
        await asyncio.to_thread(consumer.close)
