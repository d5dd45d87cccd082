"""Client memory is bounded by configs, however much there is to read or send, and however slowly.

Measured is what Python allocates in this process; the broker is another one.
"""

import asyncio
import tracemalloc
from contextlib import contextmanager

import pyarrow as pa  # noqa: F401  # its import is not to be measured
import pytest

from harness.daemon import Daemon
from ottla.client import BatchConfig, Consumer, FetchConfig, Producer, ProducerRecord

VALUE = bytes(50_000)
RECORDS = 800
TOTAL = RECORDS * len(VALUE)
LIMIT = 2_000_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    configs = ("--set", "log.durability=page-cache", "--set", "num.partitions=4")
    with Daemon(tmp_path_factory.mktemp("broker"), *configs) as started:
        yield started


@contextmanager
def allocated():
    """Measure the peak of allocated bytes, beyond those at the start."""
    tracemalloc.start(1)
    before, _ = tracemalloc.get_traced_memory()
    peak = []
    try:
        yield peak
        peak.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()


async def fill(broker, topic):
    async with Producer(broker.address) as producer:
        values = (ProducerRecord(VALUE, partition=number % 4) for number in range(RECORDS))
        await producer.send_many(topic, values)


async def test_a_producer_faster_than_its_broker_uses_bounded_memory(broker):
    batch = BatchConfig(batch_bytes=200_000, buffer_bytes=LIMIT)
    async with Producer(broker.address, batch=batch) as producer:
        await producer.send("sent", b"warm")
        with allocated() as peak:
            await producer.send_many("sent", (bytes(50_000) for _ in range(RECORDS)))

    # An encoded batch exists twice for a moment, in a request that is being sent.
    assert peak[0] < 3 * LIMIT < TOTAL / 4


@pytest.mark.parametrize("reader", ["records", "lists", "tables"])
async def test_a_slow_reader_uses_bounded_memory(broker, reader):
    topic = f"read-{reader}"
    await fill(broker, topic)
    fetch = FetchConfig(prefetch_bytes=LIMIT, partition_max_bytes=500_000)
    count = 0
    async with Consumer(broker.address, topic, fetch=fetch) as consumer:
        with allocated() as peak:
            if reader == "records":
                async for _record in consumer:
                    count += 1
                    if not count % 20:
                        await asyncio.sleep(0.01)
                    if count == RECORDS:
                        break
            else:
                batches = consumer.batches() if reader == "lists" else consumer.arrow_batches()
                async for batch in batches:
                    count += len(batch)
                    await asyncio.sleep(0.003)
                    if count == RECORDS:
                        break

    assert peak[0] < 3 * LIMIT < TOTAL / 4


async def test_a_consumer_that_is_not_read_uses_bounded_memory(broker):
    topic = "unread"
    await fill(broker, topic)
    fetch = FetchConfig(prefetch_bytes=LIMIT, partition_max_bytes=500_000)
    async with Consumer(broker.address, topic, fetch=fetch) as consumer:
        with allocated() as peak:
            await consumer.getone()
            await asyncio.sleep(0.5)
            held = sum(one.buffer.size_bytes for one in consumer._positions)

    assert 0 < held <= LIMIT + len(VALUE)
    assert peak[0] < 2 * LIMIT
