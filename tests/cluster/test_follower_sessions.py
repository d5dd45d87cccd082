"""Fetch sessions of followers with many partitions: what is read, what wakes them, what counts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.test_replication import Replicas
from harness.logs import NOW, a_batch
from harness.requests import produce_request, produce_results
from harness.waiting import eventually
from harness.wire import WireClient, connect
from ottla.broker import Broker
from ottla.broker.requests.follower_session import FollowerSession
from ottla.protocol.api.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ReplicaState,
)
from ottla.protocol.batch import split_batches
from ottla.protocol.errors import ErrorCode

#: Each of two brokers leads more than the partitions of a slice.
PARTITIONS = 600
FETCH_VERSION = 17
SEED = 7


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Replicas]:
    async with asyncio.timeout(60):
        replicas = Replicas(
            tmp_path, default_replication_factor="2", replica_lag_time_max_ms="60000"
        )
        await replicas.start(0, 1)
        yield replicas
        await replicas.stop(*replicas.brokers)
        await asyncio.sleep(0.05)


async def append(client: WireClient, index: int, acks: int = -1) -> None:
    message = produce_request(a_batch(), topic="t", partition=index, acks=acks)
    (result,) = produce_results(await client.request(message))
    assert result.error_code == ErrorCode.NONE


def follower_sessions(broker: Broker) -> list[FollowerSession]:
    return broker.fetch_sessions._follower_sessions()


def led_by(cluster: Replicas, broker: Broker, topic: str = "t") -> list[int]:
    count = len(broker.topics.image.topics[topic].replicas)
    return [index for index in range(count) if cluster.state(topic, index).leader == broker.id]


async def test_an_append_wakes_the_fetch_of_a_follower_with_many_partitions(
    cluster: Replicas,
) -> None:
    await cluster.create("t", PARTITIONS, factor=2)
    leader = cluster.brokers[0]
    indexes = led_by(cluster, leader)
    await eventually(
        lambda: all(leader.topics.find("t", index).progress.fetches for index in indexes)
    )
    for broker in cluster.brokers.values():
        broker.config = replace(broker.config, replica_fetch_wait_max_ms=30_000)

    rng = random.Random(SEED)
    # The second one at any time while the follower acknowledges the first one.
    pairs = zip(indexes[:80:2], indexes[1:80:2], strict=False)
    async with asyncio.timeout(20):
        for pair in pairs:
            partitions = [leader.topics.find("t", index) for index in pair]
            for partition in partitions:
                partition.append(a_batch(), NOW)
                await asyncio.sleep(rng.uniform(0, 0.005))
            while not all(partition.high_watermark == 1 for partition in partitions):
                await asyncio.sleep(0.001)


async def test_idle_partitions_are_in_sync_without_being_read(cluster: Replicas) -> None:
    await cluster.create("t", PARTITIONS, factor=2)
    leader = cluster.brokers[0]
    await eventually(lambda: len(follower_sessions(leader)) == 1)
    (session,) = follower_sessions(leader)
    indexes = led_by(cluster, leader)
    assert indexes
    await eventually(lambda: len(session) >= len(indexes) and session.count_to_read() == 0)
    partition = leader.topics.find("t", indexes[0])
    assert partition.progress is not None
    progress = partition.progress
    await eventually(lambda: progress.previous_fetch_at_ms(1) >= 0)
    fetched_at_ms = progress.previous_fetch_at_ms(1)

    await eventually(lambda: progress.previous_fetch_at_ms(1) > fetched_at_ms + 500)

    assert session.count_to_read() == 0
    assert progress.lagging(fetched_at_ms + 500, 400) == []
    # A follower that has stopped fetching lags, although nothing is appended.
    assert progress.lagging(fetched_at_ms + 60_000, 400) == [1]
    async with connect(leader) as client:
        await append(client, indexes[0])
    follower = cluster.replica(1, "t", indexes[0])
    await eventually(lambda: follower.high_watermark == 1)
    await eventually(lambda: session.count_to_read() == 0)


async def test_a_session_ends_with_the_registration_of_its_follower(cluster: Replicas) -> None:
    await cluster.create("t", 1, factor=2)
    leader = cluster.leader("t")
    await eventually(lambda: len(follower_sessions(leader)) == 1)
    (session,) = follower_sessions(leader)
    async with connect(leader) as client:
        for replica_id, epoch in ((-1, -1), (leader.id, leader.store_registration.broker_epoch)):
            request = FetchRequest(
                replica_state=ReplicaState(replica_id=replica_id, replica_epoch=epoch),
                session_id=session.id,
                session_epoch=session.epoch,
            )
            response = await client.request(request, FETCH_VERSION)
            assert response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(session)


class ScriptedFollower:
    """Plays broker 1, and copies the partitions of a topic from broker 0."""

    def __init__(self, cluster: Replicas, client: WireClient, indexes: list[int]) -> None:
        image = cluster.any.topics.image
        self.topic_id = image.topics["t"].id
        self.replica = ReplicaState(replica_id=1, replica_epoch=image.registrations[1].broker_epoch)
        self.client = client
        self.epochs = {index: cluster.state("t", index).leader_epoch for index in indexes}
        self.ends = dict.fromkeys(indexes, 0)
        self.high_watermarks = dict.fromkeys(indexes, -1)
        self.named: set[int] = set(indexes)
        self.session_id = self.session_epoch = 0

    async def fetch(self, max_bytes: int, max_wait_ms: int = 0) -> FetchResponse:
        """Fetch what has changed; append what is returned."""
        request = FetchRequest(
            replica_state=self.replica,
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            session_id=self.session_id,
            session_epoch=self.session_epoch,
            topics=[
                FetchTopic(
                    topic_id=self.topic_id,
                    partitions=[
                        FetchPartition(
                            partition=index,
                            current_leader_epoch=self.epochs[index],
                            fetch_offset=self.ends[index],
                            partition_max_bytes=1024 * 1024,
                        )
                        for index in self.named
                    ],
                )
            ],
        )
        self.named = set()
        response: FetchResponse = await self.client.request(request, FETCH_VERSION)
        assert response.error_code == ErrorCode.NONE
        self.session_id, self.session_epoch = response.session_id, self.session_epoch + 1
        for topic in response.responses:
            for data in topic.partitions:
                assert data.error_code == ErrorCode.NONE
                index = data.partition_index
                self.high_watermarks[index] = data.high_watermark
                for batch in split_batches(data.records or b""):
                    assert batch.base_offset == self.ends[index]
                    self.ends[index] = batch.next_offset
                    self.named.add(index)
        return response


async def test_a_follower_gets_every_record_and_high_watermark(cluster: Replicas) -> None:
    await cluster.create("t", PARTITIONS, factor=2)
    leader, silent = cluster.brokers[0], cluster.brokers[1]
    indexes = led_by(cluster, leader)
    assert silent.replicas is not None
    await silent.replicas._fetchers[leader.id].stop()
    rng = random.Random(SEED)
    appended = dict.fromkeys(indexes, 0)
    async with connect(leader) as client, connect(leader) as producer:
        follower = ScriptedFollower(cluster, client, indexes)

        async def append_some() -> None:
            for index in rng.choices(indexes, k=rng.randrange(1, 30)):
                await append(producer, index, acks=1)
                appended[index] += 1

        for _ in range(60):
            fetch = follower.fetch(rng.choice([1, 1000, 100_000]), rng.choice([0, 0, 20]))
            # Both together, or one after the other.
            if rng.random() < 0.5:
                await asyncio.gather(append_some(), fetch)
            else:
                await append_some()
                await fetch
        async with asyncio.timeout(20):
            while follower.ends != appended or follower.high_watermarks != appended:
                await follower.fetch(1024 * 1024, 20)
        response = await follower.fetch(1024 * 1024)

    assert not response.responses
