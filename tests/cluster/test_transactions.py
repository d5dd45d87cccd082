"""Transactions over several brokers: verification, markers, and brokers that fail meanwhile."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from harness import group_requests
from harness.daemon import Cluster, shown_on_failure
from harness.requests import OK, try_create_topic
from harness.transaction_requests import TransactionalProducer, describe, find_coordinator
from harness.waiting import eventually
from harness.wire import batches_of, connect, fetch_request, fetched_partitions
from ottla.protocol.errors import ErrorCode as E

pytestmark = pytest.mark.real_time

COORDINATOR = 0
SECONDS = 30.0


@pytest.fixture
def cluster(request, tmp_path):
    configs = ("transaction.state.log.num.partitions=3", "offsets.topic.num.partitions=3")
    flags = [flag for config in configs for flag in ("--set", config)]
    with Cluster(tmp_path, 3, *flags) as started, shown_on_failure(request, started.brokers):
        yield started


async def id_of_coordinator(client, broker_id, kind=1, prefix="id"):
    """Return a transactional id, or a group, that a broker coordinates."""
    keys = [f"{prefix}-{number}" for number in range(100)]
    await find_coordinator(client, "any")

    async def coordinators():
        found = await group_requests.find(client, *keys, kind=kind)
        return [one for one in found if one.node_id == broker_id]

    await eventually(coordinators, SECONDS)
    return (await coordinators())[0].key


async def read_committed(client, partition):
    message = fetch_request(0, topic="t", partition=partition, isolation_level=1)
    (data,) = fetched_partitions(await client.request(message))
    return [
        record.value
        for batch in batches_of(data)
        if not batch.is_control
        for record in batch.records()
    ]


async def state_of(client, producer):
    return (await describe(client, producer.transactional_id)).transaction_state


@pytest.mark.parametrize("version", [11, 12])
async def test_a_leader_is_killed_between_prepare_and_complete(cluster, version):
    assert await try_create_topic(cluster[0], "t", leaders=[0, 1, 2]) == OK
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(broker)) for broker in cluster]
        transactional_id = await id_of_coordinator(clients[0], COORDINATOR)
        group = await id_of_coordinator(clients[0], 1, kind=0, prefix="group")
        producer = TransactionalProducer(clients[COORDINATOR], transactional_id)
        await producer.init()
        end_version = 5 if version >= 12 else 4
        if version < 12:
            # Verified with the coordinator, which is another broker.
            assert await on(clients[2], producer).produce("t", 2, version=version) == 120
            assert await producer.add(("t", 0), ("t", 1), ("t", 2)) == E.NONE
            assert await producer.add_offsets(group) == E.NONE
        for partition, client in enumerate(clients):
            one = on(client, producer)
            assert await one.produce("t", partition, version=version) == E.NONE
        offset_version = 5 if version >= 12 else 3
        one = on(clients[1], producer)
        assert await one.commit_offset(group, ("t", 0), 7, version=offset_version) == E.NONE

        cluster[2].kill()
        assert await producer.end(version=end_version) == E.NONE

        # The partitions of the others are complete, and nobody waits for them.
        for partition in (0, 1):
            await eventually_reads(clients[partition], partition)
        assert await group_requests.committed(clients[1], group) == {("t", 0): 7}
        assert await state_of(producer.client, producer) == "PrepareCommit"
        assert await producer.add(("t", 0)) == E.CONCURRENT_TRANSACTIONS

        cluster[2].start()
        client = await stack.enter_async_context(connect(cluster[2]))
        await eventually_reads(client, 2)

        async def is_complete():
            return await state_of(producer.client, producer) == "CompleteCommit"

        await eventually(is_complete, SECONDS)


async def test_a_coordinator_is_killed_after_prepare(cluster):
    assert await try_create_topic(cluster[0], "t", leaders=[0, 1, 2]) == OK
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(broker)) for broker in cluster]
        transactional_id = await id_of_coordinator(clients[0], 1)
        producer = TransactionalProducer(clients[1], transactional_id)
        await producer.init()
        for partition, client in enumerate(clients):
            assert await on(client, producer).produce("t", partition, version=12) == E.NONE
        # Its partition 2 cannot be reached, so that the transaction stays decided but incomplete.
        cluster[2].kill()
        assert await producer.end(version=4) == E.NONE
        assert await state_of(clients[1], producer) == "PrepareCommit"
        cluster[1].kill()
        cluster[2].start()
        cluster[1].start()
        again = [await stack.enter_async_context(connect(broker)) for broker in cluster]
        producer.client = again[1]
        for partition, client in enumerate(again):
            await eventually_reads(client, partition)

        async def is_answered():
            return await producer.end(version=4) == E.NONE

        await eventually(is_answered, SECONDS)


def on(client, producer):
    """The same producer, connected to another broker."""
    other = TransactionalProducer(client, producer.transactional_id)
    other.id, other.epoch, other.sequences = producer.id, producer.epoch, producer.sequences
    return other


async def eventually_reads(client, partition):
    async def is_there():
        return await read_committed(client, partition) == [b"value"]

    await eventually(is_there, SECONDS)
    await asyncio.sleep(0)
