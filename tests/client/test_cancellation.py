"""Every call may be cancelled at each await: nothing is lost, duplicated, stuck or leaked.

`at_each_await` runs a coroutine over and over, and cancels it the first time it waits, the second
time, and so on, until it comes to its end. The broker is a process of its own: every task and every
socket in this one is the SDK's.
"""

import asyncio
import os
from itertools import count
from uuid import uuid4

import pytest

from harness.consumer_stage import CLIENT, QUICK, take
from harness.daemon import Daemon, shown_on_failure
from ottla.client import (
    Admin,
    BatchConfig,
    ClosedError,
    Consumer,
    FetchConfig,
    GroupConfig,
    NewTopic,
    Producer,
    TopicPartition,
)

FETCHING = FetchConfig(max_wait=0.02, prefetch_bytes=4000)
# A member cancelled while it leaves times out soon.
MEMBERSHIP = GroupConfig(session_timeout=0.3, heartbeat_interval=0.05, rebalance_timeout=1.0)


@pytest.fixture(scope="module")
def broker_of_the_module(tmp_path_factory):
    configs = (
        *("log.durability=page-cache", "offsets.topic.num.partitions=1"),
        *("group.initial.rebalance.delay.ms=0", "group.min.session.timeout.ms=100"),
    )
    arguments = [word for config_key in configs for word in ("--set", config_key)]
    with Daemon(tmp_path_factory.mktemp("broker"), *arguments) as started:
        yield started


@pytest.fixture
def broker(request, broker_of_the_module):
    with shown_on_failure(request, [broker_of_the_module]):
        yield broker_of_the_module


@pytest.fixture
async def topic(broker):
    name = f"t-{uuid4().hex[:12]}"
    async with Admin(broker.address, client=CLIENT) as admin:
        await admin.create_topic(name, partitions=1)
    return name


@pytest.fixture(autouse=True)
async def nothing_is_left():
    """Check that a test leaves no task and no socket behind."""
    tasks, sockets = asyncio.all_tasks(), open_sockets()
    yield
    for _ in range(3):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() - tasks - {asyncio.current_task()} == set()
    assert open_sockets() <= sockets


def open_sockets():
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            continue
    return {name for name in found if name.startswith("socket:")}


class CancelledAt:
    """Run a coroutine, and cancel its task when it waits for the nth time."""

    def __init__(self, coroutine, at):
        self._coroutine = coroutine
        self._at = at

    def __await__(self):
        inner = self._coroutine.__await__()
        step, given = inner.send, None
        for number in count():
            try:
                waited_for = step(given)
            except StopIteration as end:
                return end.value
            if number == self._at:
                task = asyncio.current_task()
                asyncio.get_running_loop().call_soon(task.cancel)
            step, given = inner.send, None
            try:
                given = yield waited_for
            except BaseException as error:  # noqa: BLE001  # thrown into the coroutine
                step, given = inner.throw, error


async def at_each_await(make):
    """Cancel a call at its first await, its second, …, and return the number of awaits."""
    for number in count():
        assert number < 200, "it never ends"

        async def run(number=number):
            return await CancelledAt(make(), number)

        task = asyncio.create_task(run())
        await asyncio.wait([task], timeout=20)
        assert task.done(), f"await {number} hangs"
        if not task.cancelled():
            task.result()
            return number
    return None


async def values_in(broker, topic):
    async with a_consumer(broker, topic) as consumer:
        (count,) = (await consumer.end_offsets()).values()
        return [record.value for record in await take(consumer, count)]


def a_producer(broker, **batch):
    return Producer(broker.address, client=CLIENT, batch=BatchConfig(**batch))


def a_consumer(broker, *topics, **configs):
    defaults = {"client": CLIENT, "fetch": FETCHING, "group_config": MEMBERSHIP}
    return Consumer(broker.address, *topics, **{**defaults, **configs})


async def filled(broker, topic, records):
    """Produce batches of ten records, so that there is more than one fetch."""
    async with a_producer(broker) as producer:
        for start in range(0, records, 10):
            await producer.send_many(topic, [b"%d" % n for n in range(start, start + 10)])


# The producer.


async def test_cancelling_send(broker, topic):
    async def story():
        async with a_producer(broker) as producer:
            await producer.send(topic, b"%d" % next(numbers))

    numbers = count()
    assert await at_each_await(story) > 3

    stored = [int(value) for value in await values_in(broker, topic)]
    assert stored == sorted(set(stored))


async def test_cancelling_a_send_on_a_shared_producer(broker, topic):
    numbers = count()
    async with a_producer(broker, batch_bytes=200, buffer_bytes=400) as producer:
        await producer.send(topic, b"warm")
        later = []

        async def story():
            # The buffer is full, so that it waits for memory as well.
            for _ in range(6):
                future = await producer.enqueue(topic, b"%050d" % next(numbers))
                later.append(future)
            await producer.send(topic, b"%050d" % next(numbers))

        assert await at_each_await(story) > 2
        acknowledged = await asyncio.gather(*later)
        await producer.flush()
        assert producer._sender.pool.free == 400

    stored = (await values_in(broker, topic))[1:]
    assert [int(value) for value in stored] == sorted({int(value) for value in stored})
    assert [metadata.offset for metadata in acknowledged] == sorted(
        {one.offset for one in acknowledged}
    )


async def test_cancelling_send_many_and_flush(broker, topic):
    rounds = count()
    async with a_producer(broker, batch_bytes=300, buffer_bytes=1000) as producer:
        await producer.send(topic, b"warm")

        async def story():
            number = next(rounds)
            await producer.send_many(topic, [b"%d:%04d" % (number, at) for at in range(60)])
            await producer.flush()

        assert await at_each_await(story) > 2
        await producer.flush()
        assert producer._sender.pool.free == 1000

    by_round = {}
    for value in (await values_in(broker, topic))[1:]:
        number, at = map(int, value.split(b":"))
        by_round.setdefault(number, []).append(at)
    assert all(found == list(range(len(found))) for found in by_round.values())
    assert len(by_round[max(by_round)]) == 60


async def test_cancelling_close_of_a_producer(broker, topic):
    async def story(at):
        producer = a_producer(broker, linger=60)
        futures = [await producer.enqueue(topic, b"x") for _ in range(3)]
        try:
            await CancelledAt(producer.close(), at)
        finally:
            assert all(future.done() for future in futures)
            assert {type(one.exception()) for one in futures} <= {type(None), ClosedError}

    for at in range(12):
        task = asyncio.create_task(story(at))
        await asyncio.wait([task], timeout=20)
        if not task.cancelled():
            task.result()
    assert not task.cancelled()
    assert len(await values_in(broker, topic)) >= 3


# The consumer.


async def test_cancelling_start_and_close_of_a_consumer(broker, topic):
    await filled(broker, topic, 10)
    group = f"g-{topic}"

    async def story(**configs):
        async with a_consumer(broker, topic, **configs) as consumer:
            await consumer.getone()

    assert await at_each_await(story) > 3
    assert await at_each_await(lambda: story(group=group)) > 5
    # A cancelled member has left, or times out soon.
    async with asyncio.timeout(10):
        await story(group=group)


async def test_cancelling_reads(broker, topic):
    pytest.importorskip("pyarrow")
    await filled(broker, topic, 600)
    seen, awaits = [], 0
    async with a_consumer(broker, topic) as consumer:

        async def one():
            return [await anext(consumer)]

        async def many():
            return [one for some in (await consumer.getmany(1, 5)).values() for one in some]

        async def some():
            return await anext(consumer.batches(7))

        async def table():
            found = await anext(consumer.arrow_batches())
            return found.select(["offset"]).to_pylist()

        for read in (one, many, some, table):

            async def story(read=read):
                # Prefetched records are discarded, so that it has to wait.
                consumer.seek(TopicPartition(topic, 0), len(seen))
                seen.extend(await read())

            awaits += await at_each_await(story)
        while len(seen) < 600:
            seen.extend(await some())

    assert awaits >= 4
    offsets = [one["offset"] if isinstance(one, dict) else one.offset for one in seen]
    assert offsets == list(range(600))


@pytest.mark.parametrize("verb", ["commit", "committed", "lag", "position", "unsubscribe"])
async def test_cancelling_requests_of_a_group_member(broker, topic, verb):
    await filled(broker, topic, 10)
    tp = TopicPartition(topic, 0)
    configs = {"group": f"g-{topic}", "auto_commit": None}
    if verb != "unsubscribe":
        configs["group_config"] = QUICK  # members do not leave, and expired ones cannot commit
    async with a_consumer(broker, topic, **configs) as consumer:
        for _ in range(4):
            await consumer.getone()

        async def story():
            if verb == "unsubscribe":
                await consumer.unsubscribe()
                consumer.subscribe(topic)
                while not consumer.assignment:
                    await consumer.getone(0.01)
            elif verb == "position":
                consumer.seek_to_end(tp)
                assert await consumer.position(tp) == 10
            else:
                await getattr(consumer, verb)()

        async def again():
            # A member cancelled while it leaves has nothing to read, and may rejoin.
            if not consumer.topics:
                consumer.subscribe(topic)
            await story()

        assert await at_each_await(again) > 0
        if verb == "commit":
            assert (await consumer.committed(tp))[tp].offset == 4
        async with asyncio.timeout(10):
            await again()


# The admin.

VERBS = {
    "list_topics": lambda admin, _topic: admin.list_topics(),
    "describe_cluster": lambda admin, _topic: admin.describe_cluster(),
    "end_offsets": lambda admin, topic: admin.end_offsets(topic),
    "list_groups": lambda admin, _topic: admin.list_groups(),
    "configs": lambda admin, topic: admin.alter_topic_configs(topic, {"retention.ms": "1000"}),
    "offsets": lambda admin, topic: admin.alter_group_offsets("g", {TopicPartition(topic, 0): 0}),
    "validate": lambda admin, _: admin.create_topics(NewTopic("never", 1), validate_only=True),
}


@pytest.mark.parametrize("verb", VERBS)
async def test_cancelling_requests_of_the_admin(broker, topic, verb):
    async with Admin(broker.address, client=CLIENT) as admin:
        assert await at_each_await(lambda: VERBS[verb](admin, topic)) > 0
        # No connection has a request in flight.
        await VERBS[verb](admin, topic)
        assert all(not one.in_flight for one in admin._cluster._connections.values())
