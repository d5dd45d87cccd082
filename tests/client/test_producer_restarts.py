"""A broker that is killed and restarted under load: nothing lost, duplicated or reordered."""

import asyncio

import pytest

from harness.daemon import Daemon, shown_on_failure
from harness.wire import connect
from ottla.client.config import ClientConfig, RetryConfig, TimeoutConfig
from ottla.client.errors import DeadlineError
from ottla.client.producer.partitioner import partition_of_key
from ottla.client.producer.producer import BatchConfig, Producer, ProducerRecord
from ottla.protocol.api.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.batch import split_batches

pytestmark = pytest.mark.real_time

PARTITIONS = 3
QUICK = ClientConfig(
    retry=RetryConfig(backoff=0.01, max_backoff=0.1),
    timeouts=TimeoutConfig(connect=2, request=5, operation=30),
)


@pytest.fixture
def broker(tmp_path, request):
    settings = ("--set", f"num.partitions={PARTITIONS}", "--set", "log.durability=page-cache")
    with Daemon(tmp_path, *settings) as started, shown_on_failure(request, [started]):
        yield started


async def read(broker, topic):
    """Return the values of each partition."""
    found = []
    async with connect(broker.address) as client:
        for partition in range(PARTITIONS):
            values, offset, end = [], 0, -1
            while offset != end:
                wanted = FetchPartition(
                    partition=partition, fetch_offset=offset, partition_max_bytes=10_000_000
                )
                request = FetchRequest(topics=[FetchTopic(topic=topic, partitions=[wanted])])
                data = (await client.request(request)).responses[0].partitions[0]
                end = data.high_watermark
                for batch in split_batches(data.records):
                    values += [record.value for record in batch.records()]
                    offset = batch.next_offset
            found.append(values)
    return found


async def lives(broker, count, end):
    """Restart the broker a number of times, and leave it running."""
    for _ in range(count):
        await asyncio.sleep(0.25)
        await asyncio.to_thread(end)
        await asyncio.sleep(0.05)
        await asyncio.to_thread(broker.start)


@pytest.mark.parametrize("method", ["kill", "stop"])
async def test_a_restarting_broker_has_every_record_once_and_in_order(broker, method):
    batch = BatchConfig(batch_bytes=4000)
    keys = [b"key-%d" % number for number in range(20)]
    async with Producer(broker.address, client=QUICK, batch=batch) as producer:
        await producer.send("orders", b"warm", partition=0)
        trouble = asyncio.ensure_future(lives(broker, 2, getattr(broker, method)))
        sent, futures, number = {key: [] for key in keys}, [], 0
        while not trouble.done():
            key = keys[number % len(keys)]
            value = key + b":%d" % number
            sent[key].append(value)
            futures.append((value, await producer.enqueue("orders", value, key=key)))
            number += 1
            if not number % 50:
                await asyncio.sleep(0.002)
        await trouble
        results = await asyncio.gather(*(future for _value, future in futures))

    found = await read(broker, "orders")
    for (value, _future), metadata in zip(futures, results, strict=True):
        assert found[metadata.partition][metadata.offset] == value
    assert sum(map(len, found)) == len(futures) + 1
    for key, values in sent.items():
        stored = found[partition_of_key(key, PARTITIONS)]
        assert [value for value in stored if value.startswith(key + b":")] == values


async def test_send_many_continues_after_a_restart(broker):
    batch = BatchConfig(batch_bytes=4000, buffer_bytes=100_000)
    values = [b"%06d" % number for number in range(30_000)]
    async with Producer(broker.address, client=QUICK, batch=batch) as producer:
        await producer.send("orders", b"warm", partition=1)
        trouble = asyncio.ensure_future(lives(broker, 2, broker.kill))
        records = [ProducerRecord(value, partition=0) for value in values]
        written = []
        while not trouble.done():
            written.append(await producer.send_many("orders", records))
        await trouble

    found = await read(broker, "orders")
    assert found[0] == values * len(written)
    assert [sum(part.record_count for part in parts) for parts in written] == [30_000] * len(
        written
    )


async def test_records_fail_at_the_deadline_if_the_broker_stays_down(broker):
    timeouts = TimeoutConfig(connect=1, request=1, operation=2)
    config = ClientConfig(retry=RetryConfig(backoff=0.01, max_backoff=0.1), timeouts=timeouts)
    async with Producer(broker.address, client=config) as producer:
        await producer.send("orders", b"before", partition=0)
        await asyncio.to_thread(broker.kill)
        with pytest.raises(DeadlineError):
            await producer.send("orders", b"meanwhile", partition=0)
        await asyncio.to_thread(broker.start)
        await producer.send("orders", b"after", partition=0)

    assert (await read(broker, "orders"))[0] == [b"before", b"after"]
