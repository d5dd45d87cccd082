"""What clients write, clients read: theirs and each other's, whatever the codec and the acks."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

import pytest

from golden import corpus
from golden.corpus import Record
from harness.clients.base import Client, ConsumedRecord, RequestError
from harness.clients.registry import CLIENTS, Clients, with_every_client
from harness.daemon import Daemon
from ottla.broker.requests.dispatch import SUPPORTED_APIS
from ottla.protocol.registry import FIND_COORDINATOR
from ottla.storage.dump import DumpedBatch, dump

NOW = 1_700_000_000_000
FEW = tuple(Record(b"key %d" % n, b"value %d" % n, (), NOW + n) for n in range(3))
HAS_COORDINATORS = FIND_COORDINATOR.key in SUPPORTED_APIS
LIBRDKAFKA = ("confluent", "kcat")
#: What does not become smaller when it is compressed: a batch of one or two short records.
SMALL_BYTES = 200
MAX_MESSAGE_BYTES = 1_048_588
#: Less than a batch and a record have beside key and value.
OVERHEAD_BYTES = 70
OFFSET_OUT_OF_RANGE, MESSAGE_TOO_LARGE = 1, 10
#: librdkafka's own word for an offset that is out of range, where it may not choose another one.
AUTO_OFFSET_RESET = -140


class Shelf(NamedTuple):
    """What one client wrote in one codec."""

    topic: str
    codec: str
    records: tuple[Record, ...]
    since_ms: int


@pytest.fixture(scope="module")
def library(clients: Clients) -> list[Shelf]:
    """The corpus, as clients writes it."""
    shelves = []
    for writer in clients.installed():
        for codec in codecs_of(writer):
            since_ms = int(time.time() * 1000)
            shelf = Shelf(f"{writer}-{codec}", codec, corpus.expected(writer), since_ms)
            clients.confluent.create_topic(shelf.topic)
            clients[writer].produce(shelf.topic, shelf.records, codec=codec)
            shelves.append(shelf)
    return shelves


def codecs_of(client: str) -> Sequence[str]:
    """Give the codecs that a client can write; ours is not in the corpus, and can write all."""
    return corpus.CODECS.get(client, corpus.CODECS["java"])


def as_shown_by(reader: Client, record: Record, row: ConsumedRecord) -> Record:
    """Give a record as this client can show it, with the time of a row that had none."""
    headers = record.headers
    if reader.name == "kcat":
        # It prints a header up to the first zero byte.
        headers = tuple((name, value and value.split(b"\0")[0]) for name, value in headers)
    timestamp = row.timestamp if record.timestamp is None else record.timestamp
    return Record(record.key, record.value, headers, timestamp)


def assert_read(reader: Client, rows: Sequence[ConsumedRecord], records: Sequence[Record]) -> None:
    assert [row.offset for row in rows] == list(range(len(records)))
    found = [Record(row.key, row.value, row.headers, row.timestamp) for row in rows]
    assert found == [
        as_shown_by(reader, record, row) for record, row in zip(records, rows, strict=True)
    ]


def stored(broker: Daemon, topic: str, partition: int = 0) -> list[DumpedBatch]:
    """Look at the batches in the files."""
    folder = broker.data / f"{topic}-{partition}"
    return [batch for path in sorted(folder.glob("*.log")) for batch in dump(path) if batch.header]


@with_every_client("produce")
def test_what_is_compressed_is_stored_as_it_came(client, library, broker):
    for codec in codecs_of(client.name):
        batches = stored(broker, f"{client.name}-{codec}")

        found = {batch.header["compression"] for batch in batches if is_worth_it(client, batch)}
        assert found == {as_sent(client, codec)}
        assert sum(batch.header["records"] for batch in batches) == len(
            corpus.expected(client.name)
        )


def is_worth_it(client: Client, batch: DumpedBatch) -> bool:
    """librdkafka leaves a batch as it is that would not become smaller, as that of a small rest."""
    return not (client.name in LIBRDKAFKA and batch.size < SMALL_BYTES)


def as_sent(client: Client, codec: str) -> str:
    """librdkafka takes it that a broker without coordinators is too old to know lz4."""
    is_too_old = client.name in LIBRDKAFKA and not HAS_COORDINATORS
    return "none" if codec == "lz4" and is_too_old else codec


@with_every_client("consume")
def test_everybody_reads_what_anybody_wrote(client, library):
    shelves = [shelf for shelf in library if shelf.codec in client.readable_codecs]
    count = sum(len(shelf.records) for shelf in shelves)

    found = client.consume({(shelf.topic, 0): None for shelf in shelves}, count)

    for shelf in shelves:
        rows = found[shelf.topic, 0]
        assert_read(client, rows, shelf.records)
        for row, record in zip(rows, shelf.records, strict=True):
            if record.timestamp is None:
                assert shelf.since_ms <= row.timestamp <= time.time() * 1000


@with_every_client("produce")
@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_a_record_arrives_with_any_acks(client, helper, topic, acks):
    records = [as_written_by(client, record) for record in FEW]

    offsets = client.produce(topic, records, acks=acks)

    found = helper.consume({(topic, 0): 0}, len(FEW))[topic, 0]
    assert_read(helper, found, records)
    assert offsets in ([0, 1, 2], [None] * 3)
    assert acks == "0" or client.name == "kcat" or offsets == [0, 1, 2]


def as_written_by(client: Client, record: Record) -> Record:
    """kcat has its own clock, and headers for all records."""
    if client.name == "kcat":
        return Record(record.key, record.value, corpus.KCAT_HEADERS, None)
    return record


@with_every_client("produce")
def test_an_idempotent_producer_numbers_its_records(client, helper, topic, broker):
    records = [as_written_by(client, record) for record in FEW]

    client.produce(topic, records, idempotent=True)

    assert_read(helper, helper.consume({(topic, 0): 0}, len(FEW))[topic, 0], records)
    batches = stored(broker, topic)
    assert all(batch.header["producer_id"] > 0 for batch in batches)
    assert all(batch.header["producer_epoch"] == 0 for batch in batches)
    assert [batch.header["base_sequence"] for batch in batches] == [
        batch.header["base_offset"] for batch in batches
    ]


@with_every_client("consume")
def test_a_consumer_begins_where_it_wants(client, helper, topic):
    helper.produce(topic, [Record(None, b"%d" % n) for n in range(10)])
    helper.produce(topic, [Record(None, b"%d" % n) for n in range(10, 20)])

    for start in (0, 3, 10, 19):
        rows = client.consume({(topic, 0): start}, 20 - start)[topic, 0]

        assert [(row.offset, row.value) for row in rows] == [
            (n, b"%d" % n) for n in range(start, 20)
        ]


@with_every_client("consume")
def test_nobody_reads_behind_the_end(client, helper, topic):
    helper.produce(topic, FEW)

    with pytest.raises(RequestError) as refused:
        client.consume({(topic, 0): 1000}, 1)

    assert refused.value.code in (OFFSET_OUT_OF_RANGE, AUTO_OFFSET_RESET), refused.value


@with_every_client("offset_for_time", "watermarks")
def test_offsets_are_found_by_time(client, helper, topic):
    assert client.watermarks(topic) == (0, 0)
    helper.produce(topic, [Record(None, b"v", (), NOW + 1000 * n) for n in range(5)], codec="gzip")
    helper.produce(topic, [Record(None, b"v", (), NOW + 1000 * n) for n in range(5, 10)])

    assert client.watermarks(topic) == (0, 10)
    assert client.offset_for_time(topic, NOW - 5000) == 0
    assert [client.offset_for_time(topic, NOW + 1000 * n) for n in (0, 3, 7)] == [0, 3, 7]
    assert client.offset_for_time(topic, NOW + 3001) == 4
    later = 10 if client.returns_end_for_later_time else None
    assert client.offset_for_time(topic, NOW + 9001) == later


@with_every_client("max_timestamp_offset")
def test_the_youngest_record_need_not_be_the_last_one(client, helper, topic):
    for codec in ("none", "zstd"):
        times = [NOW + 5, NOW + 9000, NOW + 7, NOW + 6]
        helper.produce(topic, [Record(None, b"v", (), time) for time in times], codec=codec)
        assert client.max_timestamp_offset(topic) == 1
    helper.produce(topic, [Record(None, b"v", (), NOW + 9001)])
    assert client.max_timestamp_offset(topic) == 8


@with_every_client("consume")
def test_a_consumer_that_waits_is_told_at_once(client, helper, topic):
    """It would be told after 20 seconds anyway, being ready to wait for so long."""
    helper.produce(topic, FEW)
    client.consume({(topic, 0): 0}, 1)
    produced = []

    def produce() -> None:
        time.sleep(0.5)
        produced.append(time.monotonic())
        helper.produce(topic, [Record(b"late", b"comer", (), NOW)])

    thread = threading.Thread(target=produce)
    thread.start()
    rows = client.consume({(topic, 0): 3}, 1, max_wait_ms=20_000)[topic, 0]
    read = time.monotonic()
    thread.join()

    assert rows == [ConsumedRecord(3, NOW, b"late", b"comer", ())]
    assert produced[0] < read < produced[0] + 10


@with_every_client("consume")
def test_records_have_the_brokers_time_if_the_topic_wants_that(client, helper, name):
    helper.create_topic(name, configs={"message.timestamp.type": "LogAppendTime"})
    since_ms = int(time.time() * 1000)
    for codec in sorted(client.readable_codecs):
        helper.produce(name, FEW, codec=codec)

    # Readers check that the batches are not damaged.
    rows = client.consume({(name, 0): 0}, 3 * len(client.readable_codecs))[name, 0]

    assert [row.value for row in rows] == [record.value for record in FEW] * len(
        client.readable_codecs
    )
    assert all(since_ms <= row.timestamp <= time.time() * 1000 for row in rows)


@with_every_client("produce", "consume")
def test_a_record_may_be_nearly_as_large_as_the_limit(client, topic):
    value = bytes(range(1, 251)) * 4194
    value = value[: MAX_MESSAGE_BYTES - OVERHEAD_BYTES - 50 - 30 * (client.name == "kcat")]
    record = as_written_by(client, Record(None, value, (), NOW))

    client.produce(topic, [record])

    assert_read(client, client.consume({(topic, 0): 0}, 1)[topic, 0], [record])


@with_every_client("produce")
def test_a_record_over_the_limit_is_refused_as_too_large(client, helper, topic):
    with pytest.raises(RequestError) as refused:
        client.produce(topic, [Record(None, b"x" * MAX_MESSAGE_BYTES, (), NOW)])

    assert refused.value.code == MESSAGE_TOO_LARGE, refused.value
    assert helper.watermarks(topic) == (0, 0)


@with_every_client("produce")
def test_a_topic_that_is_not_there_is_made_when_it_is_written_to(client, helper, name):
    client.produce(name, [as_written_by(client, record) for record in FEW])

    assert helper.topics()[name] == 1
    assert len(helper.consume({(name, 0): 0}, 3)[name, 0]) == 3


@with_every_client("produce", "consume")
def test_partitions_are_logs_of_their_own(client, helper, name):
    helper.create_topic(name, 3)
    for partition in (2, 0, 1, 2):
        client.produce(name, [Record(None, b"to %d" % partition)], partition=partition)

    found = client.consume({(name, partition): None for partition in range(3)}, 4)

    assert {
        place[1]: [(row.offset, row.value) for row in rows] for place, rows in found.items()
    } == {0: [(0, b"to 0")], 1: [(0, b"to 1")], 2: [(0, b"to 2"), (1, b"to 2")]}


def test_everybody_is_known_to_the_corpus():
    assert set(CLIENTS) - {"ottla"} == set(corpus.CODECS)
