"""Arrow record batches from a consumer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from harness.consumer_stage import (
    ABORT,
    T0,
    T1,
    ScriptedBrokers,
    a_consumer,
    a_marker,
    a_quick_broker,
    a_transaction,
    batch_of,
    commit_of,
    fill,
    offsets_of,
    take,
)
from harness.logs import a_batch
from ottla.broker import Broker
from ottla.client.consumer.consumer import Consumer
from ottla.client.errors import KafkaError
from ottla.client.producer.producer import Producer

pa = pytest.importorskip("pyarrow")
arrow = pytest.importorskip("ottla.client.arrow.decoder")


@pytest.fixture
async def broker(tmp_path) -> AsyncIterator[Broker]:
    async with a_quick_broker(tmp_path, {"t": 2}) as started:
        yield started


async def tables(consumer: Consumer, rows: int, **arguments: object) -> list[pa.RecordBatch]:
    found = []
    async with asyncio.timeout(10):
        async for table in consumer.arrow_batches(**arguments):
            found.append(table)
            if sum(table.num_rows for table in found) >= rows:
                break
    return found


async def test_each_arrow_batch_holds_one_partition(broker):
    await fill(broker, T0, *(a_batch(10) for _ in range(5)))
    await fill(broker, T1, a_batch(10))

    async with a_consumer(broker, "t") as consumer:
        found = await tables(consumer, 60)
        assert await consumer.lag() == {T0: 0, T1: 0}

    by_partition = {0: [], 1: []}
    for table in found:
        (partition,) = set(table.column("partition").to_pylist())
        by_partition[partition] += table.column("offset").to_pylist()
    assert by_partition == {0: list(range(50)), 1: list(range(10))}
    assert found[0].column("value")[0].as_py() == b"value"


async def test_every_field_of_a_record_is_a_column(broker):
    async with Producer(broker.address) as producer:
        sent = [
            await producer.send(
                "t", value, key=key, headers=headers, partition=0, timestamp=1_700_000_000_000
            )
            for key, value, headers in ((b"k", b"v", {"a": b"1", "b": None}), (None, None, ()))
        ]

    async with a_consumer(broker, "t") as consumer:
        rows = [row for table in await tables(consumer, 2) for row in table.to_pylist()]

    when = datetime.fromtimestamp(1_700_000_000, UTC).replace(tzinfo=None)
    where = {"topic": "t", "partition": 0, "timestamp": when, "timestampType": 0}
    headers = [{"key": "a", "value": b"1"}, {"key": "b", "value": None}]
    assert rows == [
        {"key": b"k", "value": b"v", "offset": sent[0].offset, "headers": headers, **where},
        {"key": None, "value": None, "offset": sent[1].offset, "headers": [], **where},
    ]


async def test_an_arrow_batch_is_consumed_when_the_next_one_is_asked_for(broker):
    await fill(broker, T0, a_batch(10))

    async with a_consumer(broker, "t", group="g", auto_commit=0.05) as consumer:
        stream = consumer.arrow_batches()
        await anext(stream)
        before = await commit_of(consumer, T0, 0)
        await fill(broker, T0, a_batch(10))
        await anext(stream)
        after = await commit_of(consumer, T0, 1)

    assert (before.offset, after.offset) == (0, 10)


async def test_a_large_fetch_yields_several_arrow_batches_and_can_be_abandoned(broker):
    await fill(broker, T0, *(a_batch(10) for _ in range(10)))
    small = arrow.ArrowDecoder(batch_bytes=1)

    async with a_consumer(broker, "t") as consumer:
        stream = consumer.arrow_batches(small)
        first = await anext(stream)
        assert await consumer.position(T0) == 10
        consumer.pause(T0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await anext(stream)
        consumer.resume(T0)
        second = await anext(stream)
        consumer.seek(T0, 55)
        third = await anext(stream)

    assert [table.column("offset").to_pylist() for table in (first, second, third)] == [
        list(range(10)),
        list(range(10, 20)),
        list(range(55, 60)),
    ]


async def test_an_abandoned_stream_loses_no_records(broker):
    await fill(broker, T0, *(a_batch(10) for _ in range(10)))
    small = arrow.ArrowDecoder(batch_bytes=1)
    found = []

    async with a_consumer(broker, "t") as consumer, asyncio.timeout(20):
        for _ in range(2):
            table = await anext(consumer.arrow_batches(small))
            found += table.column("offset").to_pylist()
        found += offsets_of(await take(consumer, 5))
        table = await anext(consumer.arrow_batches(small))
        found += table.column("offset").to_pylist()
        for records in (await consumer.getmany(5, 3)).values():
            found += offsets_of(records)
        found += offsets_of(await anext(consumer.batches(2)))

    assert found == list(range(35))


async def test_arrow_batches_and_records_can_be_mixed(broker):
    await fill(broker, T0, a_batch(10))

    async with a_consumer(broker, "t") as consumer:
        records = await take(consumer, 3)
        (table,) = await tables(consumer, 7)
        await fill(broker, T0, a_batch(1))
        records += await take(consumer, 1)

    assert table.column("offset").to_pylist() == list(range(3, 10))
    assert offsets_of(records) == [0, 1, 2, 10]


async def test_aborted_transactions_are_filtered_and_corrupt_batches_raise():
    async with ScriptedBrokers() as stage:
        stage.logs[T0] += a_transaction(1, 0) + a_marker(1, 1, ABORT) + batch_of(2) + batch_of(3)
        stage.logs[T0][-1] ^= 0xFF
        stage.aborted[T0] = [(1, 0)]

        async with a_consumer(stage.address, "t", isolation="read_committed") as consumer:
            stream = consumer.arrow_batches()
            assert (await anext(stream)).column("offset").to_pylist() == [2]
            for _ in range(2):
                with pytest.raises(KafkaError, match="batch at offset 3"):
                    await anext(stream)
