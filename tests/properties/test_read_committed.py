"""What read_committed consumers of every kind return, against a model.

Several producers commit and abort transactions in any interleaving, and some stay open. Each way of
reading returns the committed records below the last stable offset, whatever the fetch size and the
starting offset.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress
from uuid import uuid4

from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.client import Admin, ClientConfig, Consumer, FetchConfig, Producer, TopicPartition
from ottla.client.consumer.ranges import between
from ottla.client.spark.broker_client import broker_client
from ottla.client.spark.options import ConnectionOptions, FetchOptions
from ottla.client.spark.planning import PartitionRange
from ottla.client.spark.ranges import read_range

PARTITIONS = 2
PRODUCERS = 3
#: The number of a producer without transactions.
PLAIN = PRODUCERS

steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("send"),
            st.integers(0, PRODUCERS),
            st.integers(0, PARTITIONS - 1),
            st.integers(1, 5),
        ),
        st.tuples(st.sampled_from(["commit", "abort"]), st.integers(0, PRODUCERS - 1)),
    ),
    min_size=3,
    max_size=25,
)


class Model:
    """Which offsets of each partition are committed, aborted or open."""

    def __init__(self) -> None:
        self.committed: dict[int, dict[int, bytes]] = defaultdict(dict)
        self.open: dict[int, dict[int, dict[int, bytes]]] = defaultdict(lambda: defaultdict(dict))

    def end(self, producer: int, *, commit: bool) -> None:
        for partition, records in self.open.pop(producer, {}).items():
            if commit:
                self.committed[partition].update(records)

    def last_stable_offset(self, partition: int, high_watermark: int) -> int:
        return min(
            (min(of[partition]) for of in self.open.values() if of[partition]),
            default=high_watermark,
        )

    def visible(self, partition: int, start: int, last_stable_offset: int) -> list:
        return [
            (offset, value)
            for offset, value in sorted(self.committed[partition].items())
            if start <= offset < last_stable_offset
        ]


async def play(topic: str, todo: list, producers: list[Producer]) -> Model:
    """Do the steps, one after the other; transactions overlap."""
    model, number = Model(), 0
    for what, producer, *details in todo:
        client = producers[producer]
        if what == "send":
            partition, count = details
            values = [b"%d" % (number + index) for index in range(count)]
            number += count
            if producer != PLAIN and not client.is_in_transaction:
                await client.begin_transaction()
            into = model.committed if producer == PLAIN else model.open[producer]
            sends = [await client.enqueue(topic, value, partition=partition) for value in values]
            for value, sent in zip(values, await asyncio.gather(*sends), strict=True):
                into[partition][sent.offset] = value
        elif client.is_in_transaction:
            await (client.commit_transaction() if what == "commit" else client.abort_transaction())
            model.end(producer, commit=what == "commit")
    return model


async def read(how: str, consumer: Consumer, tp: TopicPartition, start: int, end: int) -> list:
    """Read a partition up to its last stable offset, in one of the ways."""
    consumer.assign([tp])
    consumer.seek(tp, start)
    if how == "between":
        lists = [records async for _tp, records in between(consumer, {tp: (start, end)})]
        return [(record.offset, record.value) for records in lists for record in records]
    found: list = []
    batches, tables = consumer.batches(2), consumer.arrow_batches()
    while await consumer.position(tp) < end:
        # At the end there may be nothing but markers and aborted records: nothing to return.
        try:
            async with asyncio.timeout(0.1):
                if how == "one by one":
                    records = [await anext(consumer)]
                elif how == "batches":
                    records = await anext(batches)
                elif how == "getmany":
                    polled = await consumer.getmany(timeout=0.05, max_records=3)
                    records = polled.get(tp, [])
                else:
                    table = await anext(tables)
                    rows = zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True)
                    found += rows
                    continue
        except TimeoutError:
            continue
        found += [(record.offset, record.value) for record in records]
    assert not await consumer.getmany(timeout=0)
    assert await consumer.lag(tp) == {tp: 0}
    return found


WAYS = ("one by one", "getmany", "batches", "arrow", "between")


def read_with_spark(connection: ConnectionOptions, offsets: PartitionRange, fetch_bytes: int):
    """Read a range as a task of Spark does."""
    options = FetchOptions(partition_max_bytes=fetch_bytes, read_committed=True)
    found = [
        row
        for table in read_range(offsets, connection, options)
        for row in zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True)
    ]
    with suppress(KeyError), broker_client(connection):
        raise KeyError  # the client is not kept for the next task
    return found


async def check(
    address: str, topic: str, model: Model, fetch_bytes: int, from_share: float
) -> None:
    """Compare what is read with the model."""
    fetch = FetchConfig(partition_max_bytes=fetch_bytes, max_wait=0.05)
    connection = ConnectionOptions(address, ClientConfig())
    async with (
        Admin(address) as admin,
        Consumer(address, isolation="read_committed", fetch=fetch) as consumer,
    ):
        high_watermarks = await admin.end_offsets(topic)
        for tp, end in (await admin.end_offsets(topic, isolation="read_committed")).items():
            assert end == model.last_stable_offset(tp.partition, high_watermarks[tp])
            start = int(from_share * end)
            expected = model.visible(tp.partition, start, end)
            for how in WAYS:
                assert await read(how, consumer, tp, start, end) == expected, how
            if start < end:
                offsets = PartitionRange(*tp, start, end)
                assert (
                    await asyncio.to_thread(read_with_spark, connection, offsets, fetch_bytes)
                    == expected
                )


@settings(max_examples=12)
@given(todo=steps, fetch_bytes=st.sampled_from([1, 200, 100_000]), from_share=st.floats(0, 1))
def test_every_way_of_reading_returns_the_committed_records(
    ottla_session_broker, todo, fetch_bytes, from_share
):
    address, topic = ottla_session_broker.bootstrap, f"t-{uuid4().hex[:12]}"
    ottla_session_broker.create_topic(topic, partitions=PARTITIONS)

    async def scenario() -> None:
        ids = [f"{topic}-{number}" for number in range(PRODUCERS)]
        producers = [Producer(address, transactional_id=name) for name in ids] + [Producer(address)]
        try:
            model = await play(topic, todo, producers)
            await check(address, topic, model, fetch_bytes, from_share)
        finally:
            await asyncio.gather(*(producer.close() for producer in producers))

    asyncio.run(scenario())
