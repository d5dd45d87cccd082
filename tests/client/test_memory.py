"""Memory is bounded by settings, however much there is to read or send, and however slowly it goes.

What is measured is what Python allocates in this process; the broker is another one.
"""

import asyncio
import tracemalloc
from contextlib import contextmanager

import pytest

from harness.daemon import Daemon
from ottla.client import BatchConfig, Consumer, FetchConfig, Producer, ProducerRecord

VALUE = bytes(50_000)
RECORDS = 800
TOTAL = RECORDS * len(VALUE)
LIMIT = 2_000_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    settings = ("--set", "log.durability=page-cache", "--set", "num.partitions=4")
    with Daemon(tmp_path_factory.mktemp("broker"), *settings) as started:
        yield started


@contextmanager
def allocated():
    """Count what is allocated at most, beyond what there was."""
    tracemalloc.start(1)
    before, _ = tracemalloc.get_traced_memory()
    found = []
    try:
        yield found
        found.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()


async def fill(broker, topic):
    async with Producer(broker.address) as producer:
        values = (ProducerRecord(VALUE, partition=number % 4) for number in range(RECORDS))
        await producer.send_many(topic, values)


async def test_a_producer_that_is_faster_than_its_broker(broker):
    batch = BatchConfig(batch_bytes=200_000, buffer_bytes=LIMIT)
    async with Producer(broker.address, batch=batch) as producer:
        await producer.send("sent", b"warm")
        with allocated() as most:
            await producer.send_many("sent", (bytes(50_000) for _ in range(RECORDS)))

    # What is encoded is there twice for a moment, in a request that is on its way.
    assert most[0] < 3 * LIMIT < TOTAL / 4


@pytest.mark.parametrize("way", ["records", "lists", "tables"])
async def test_a_reader_that_is_slower_than_its_broker(broker, way):
    topic = f"read-{way}"
    await fill(broker, topic)
    fetch = FetchConfig(prefetch_bytes=LIMIT, partition_max_bytes=500_000)
    count = 0
    async with Consumer(broker.address, topic, fetch=fetch) as consumer:
        with allocated() as most:
            if way == "records":
                async for _record in consumer:
                    count += 1
                    if not count % 20:
                        await asyncio.sleep(0.01)
                    if count == RECORDS:
                        break
            else:
                batches = consumer.batches() if way == "lists" else consumer.arrow_batches()
                async for batch in batches:
                    count += len(batch)
                    await asyncio.sleep(0.003)
                    if count == RECORDS:
                        break

    assert most[0] < 3 * LIMIT < TOTAL / 4


async def test_a_reader_that_does_not_read_at_all(broker):
    topic = "unread"
    await fill(broker, topic)
    fetch = FetchConfig(prefetch_bytes=LIMIT, partition_max_bytes=500_000)
    async with Consumer(broker.address, topic, fetch=fetch) as consumer:
        with allocated() as most:
            await consumer.getone()
            await asyncio.sleep(0.5)
            held = sum(one.buffer.size_bytes for one in consumer._positions)

    assert 0 < held <= LIMIT + len(VALUE)
    assert most[0] < 2 * LIMIT
