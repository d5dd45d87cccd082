"""Every client reads the batches that ottla encodes."""

from __future__ import annotations

import asyncio

import pytest

from harness.clients.base import ConsumedRecord
from harness.clients.registry import with_every_client
from harness.wire import connect, produce_request, produce_results
from ottla.protocol.batch import Record, build_batch
from ottla.protocol.compression import Compression

NOW = 1_700_000_000_000
TOPICS = {codec.name.lower(): codec for codec in Compression}


def a_record(offset: int) -> Record:
    headers = (("n", str(offset).encode()), ("null", None)) if offset % 3 == 0 else ()
    key = None if offset % 4 == 0 else b"key %d" % offset
    value = None if offset % 7 == 6 else b"value %d " % offset * (1 + offset * 40)
    return Record(offset, NOW + offset, key, value, headers)


RECORDS = [a_record(offset) for offset in range(40)]


@pytest.fixture(scope="module")
def filled_topics(clients, module_broker) -> None:
    """A topic for each codec, with two batches."""

    async def fill(topic: str, codec: Compression) -> None:
        async with connect(module_broker.address) as client:
            for part in (RECORDS[:25], RECORDS[25:]):
                # Offsets of a produced batch start at 0.
                rows = [record._replace(offset=n) for n, record in enumerate(part)]
                batch = build_batch(rows, compression=codec)
                (result,) = produce_results(
                    await client.request(produce_request(batch, topic=topic, acks=-1), 9)
                )
                assert (result.error_code, result.base_offset) == (0, part[0].offset)

    for topic, codec in TOPICS.items():
        clients.confluent.create_topic(topic)
        asyncio.run(fill(topic, codec))


@with_every_client("consume")
@pytest.mark.parametrize("topic", TOPICS)
def test_every_client_reads_batches_of_the_sdk(client, filled_topics, topic):
    if topic not in client.readable_codecs:
        pytest.skip(f"{client.name} does not read {topic}")

    rows = client.consume({(topic, 0): 0}, len(RECORDS))[topic, 0]

    assert rows == [ConsumedRecord(*record) for record in RECORDS]
