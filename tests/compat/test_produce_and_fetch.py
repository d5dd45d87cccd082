"""Every client reads what every client produces, with every codec and acks."""

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
#: Batches below this size do not shrink when they are compressed.
SMALL_BYTES = 200
MAX_MESSAGE_BYTES = 1_048_588
#: A lower bound for the overhead of a batch and a record.
OVERHEAD_BYTES = 70
OFFSET_OUT_OF_RANGE, MESSAGE_TOO_LARGE = 1, 10
#: librdkafka's own code for an offset out of range with auto.offset.reset=error.
AUTO_OFFSET_RESET = -140


class ProducedTopic(NamedTuple):
    """What one client produced with one codec."""

    name: str
    codec: str
    records: tuple[Record, ...]
    since_ms: int


@pytest.fixture(scope="module")
def corpus_topics(clients: Clients) -> list[ProducedTopic]:
    """The corpus, produced by every client with every codec."""
    produced = []
    for name in clients.installed():
        for codec in codecs_of(name):
            since_ms = int(time.time() * 1000)
            topic = ProducedTopic(f"{name}-{codec}", codec, corpus.expected(name), since_ms)
            clients.confluent.create_topic(topic.name)
            clients[name].produce(topic.name, topic.records, codec=codec)
            produced.append(topic)
    return produced


def codecs_of(client: str) -> Sequence[str]:
    """Return the codecs that a client can write; ottla is not in the corpus, and has all."""
    return corpus.CODECS.get(client, corpus.CODECS["java"])


def as_shown_by(reader: Client, record: Record, row: ConsumedRecord) -> Record:
    """Return a record as a client reads it; a missing timestamp is that of the consumed one."""
    headers = record.headers
    if reader.name == "kcat":
        # It prints headers up to the first zero byte.
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
    """Return the batches in the log files."""
    folder = broker.data / f"{topic}-{partition}"
    return [batch for path in sorted(folder.glob("*.log")) for batch in dump(path) if batch.header]


@with_every_client("produce")
def test_compressed_batches_are_stored_unchanged(client, corpus_topics, broker):
    for codec in codecs_of(client.name):
        batches = stored(broker, f"{client.name}-{codec}")

        found = {batch.header["compression"] for batch in batches if is_compressible(client, batch)}
        assert found == {as_sent(client, codec)}
        assert sum(batch.header["records"] for batch in batches) == len(
            corpus.expected(client.name)
        )


def is_compressible(client: Client, batch: DumpedBatch) -> bool:
    """librdkafka sends a small batch uncompressed if compression does not shrink it."""
    return not (client.name in LIBRDKAFKA and batch.size < SMALL_BYTES)


def as_sent(client: Client, codec: str) -> str:
    """librdkafka does not send lz4 to a broker without FindCoordinator, which it takes for old."""
    is_too_old = client.name in LIBRDKAFKA and not HAS_COORDINATORS
    return "none" if codec == "lz4" and is_too_old else codec


@with_every_client("consume")
def test_every_client_reads_what_every_client_produced(client, corpus_topics):
    produced = [topic for topic in corpus_topics if topic.codec in client.readable_codecs]
    count = sum(len(topic.records) for topic in produced)

    found = client.consume({(topic.name, 0): None for topic in produced}, count)

    for topic in produced:
        rows = found[topic.name, 0]
        assert_read(client, rows, topic.records)
        for row, record in zip(rows, topic.records, strict=True):
            if record.timestamp is None:
                assert topic.since_ms <= row.timestamp <= time.time() * 1000


@with_every_client("produce")
@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_records_are_produced_with_any_acks(client, helper, topic, acks):
    records = [as_produced_by(client, record) for record in FEW]

    offsets = client.produce(topic, records, acks=acks)

    found = helper.consume({(topic, 0): 0}, len(FEW))[topic, 0]
    assert_read(helper, found, records)
    assert offsets in ([0, 1, 2], [None] * 3)
    assert acks == "0" or client.name == "kcat" or offsets == [0, 1, 2]


def as_produced_by(client: Client, record: Record) -> Record:
    """Return a record as a client produces it; kcat sets timestamp and headers."""
    if client.name == "kcat":
        return Record(record.key, record.value, corpus.KCAT_HEADERS, None)
    return record


@with_every_client("produce")
def test_an_idempotent_producer_sets_sequences(client, helper, topic, broker):
    records = [as_produced_by(client, record) for record in FEW]

    client.produce(topic, records, idempotent=True)

    assert_read(helper, helper.consume({(topic, 0): 0}, len(FEW))[topic, 0], records)
    batches = stored(broker, topic)
    assert all(batch.header["producer_id"] > 0 for batch in batches)
    assert all(batch.header["producer_epoch"] == 0 for batch in batches)
    assert [batch.header["base_sequence"] for batch in batches] == [
        batch.header["base_offset"] for batch in batches
    ]


@with_every_client("consume")
def test_a_consumer_starts_at_any_offset(client, helper, topic):
    helper.produce(topic, [Record(None, b"%d" % n) for n in range(10)])
    helper.produce(topic, [Record(None, b"%d" % n) for n in range(10, 20)])

    for start in (0, 3, 10, 19):
        rows = client.consume({(topic, 0): start}, 20 - start)[topic, 0]

        assert [(row.offset, row.value) for row in rows] == [
            (n, b"%d" % n) for n in range(start, 20)
        ]


@with_every_client("consume")
def test_fetching_after_the_end_is_out_of_range(client, helper, topic):
    helper.produce(topic, FEW)

    with pytest.raises(RequestError) as error:
        client.consume({(topic, 0): 1000}, 1)

    assert error.value.code in (OFFSET_OUT_OF_RANGE, AUTO_OFFSET_RESET), error.value


@with_every_client("offset_for_time", "watermarks")
def test_offsets_are_found_by_timestamp(client, helper, topic):
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
def test_the_greatest_timestamp_may_be_before_the_last_record(client, helper, topic):
    for codec in ("none", "zstd"):
        times = [NOW + 5, NOW + 9000, NOW + 7, NOW + 6]
        helper.produce(topic, [Record(None, b"v", (), time) for time in times], codec=codec)
        assert client.max_timestamp_offset(topic) == 1
    helper.produce(topic, [Record(None, b"v", (), NOW + 9001)])
    assert client.max_timestamp_offset(topic) == 8


@with_every_client("consume")
def test_a_long_poll_returns_when_a_record_arrives(client, helper, topic):
    """Without that it would return after max_wait_ms."""
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
def test_log_append_time_sets_the_brokers_timestamp(client, helper, name):
    helper.create_topic(name, configs={"message.timestamp.type": "LogAppendTime"})
    since_ms = int(time.time() * 1000)
    for codec in sorted(client.readable_codecs):
        helper.produce(name, FEW, codec=codec)

    # Clients verify the CRC of the batches.
    rows = client.consume({(name, 0): 0}, 3 * len(client.readable_codecs))[name, 0]

    assert [row.value for row in rows] == [record.value for record in FEW] * len(
        client.readable_codecs
    )
    assert all(since_ms <= row.timestamp <= time.time() * 1000 for row in rows)


@with_every_client("produce", "consume")
def test_a_record_just_below_the_size_limit_is_accepted(client, topic):
    value = bytes(range(1, 251)) * 4194
    value = value[: MAX_MESSAGE_BYTES - OVERHEAD_BYTES - 50 - 30 * (client.name == "kcat")]
    record = as_produced_by(client, Record(None, value, (), NOW))

    client.produce(topic, [record])

    assert_read(client, client.consume({(topic, 0): 0}, 1)[topic, 0], [record])


@with_every_client("produce")
def test_a_record_over_the_size_limit_is_too_large(client, helper, topic):
    with pytest.raises(RequestError) as error:
        client.produce(topic, [Record(None, b"x" * MAX_MESSAGE_BYTES, (), NOW)])

    assert error.value.code == MESSAGE_TOO_LARGE, error.value
    assert helper.watermarks(topic) == (0, 0)


@with_every_client("produce")
def test_producing_to_an_unknown_topic_creates_it(client, helper, name):
    client.produce(name, [as_produced_by(client, record) for record in FEW])

    assert helper.topics()[name] == 1
    assert len(helper.consume({(name, 0): 0}, 3)[name, 0]) == 3


@with_every_client("produce", "consume")
def test_partitions_have_their_own_offsets(client, helper, name):
    helper.create_topic(name, 3)
    for partition in (2, 0, 1, 2):
        client.produce(name, [Record(None, b"to %d" % partition)], partition=partition)

    found = client.consume({(name, partition): None for partition in range(3)}, 4)

    assert {
        place[1]: [(row.offset, row.value) for row in rows] for place, rows in found.items()
    } == {0: [(0, b"to 0")], 1: [(0, b"to 1")], 2: [(0, b"to 2"), (1, b"to 2")]}


def test_every_client_is_in_the_corpus():
    assert set(CLIENTS) - {"ottla"} == set(corpus.CODECS)
