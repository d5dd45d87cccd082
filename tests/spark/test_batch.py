"""Batch reads: topics as DataFrames."""

import asyncio
import json
import threading
from datetime import UTC, datetime

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.datasource import (
    DataSourceRegistration,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from harness.daemon import Daemon, free_port
from harness.servers import close_server
from ottla.client import TopicPartition
from ottla.client.blocking import Admin, Producer
from ottla.client.spark import register
from ottla.client.spark.filters import PushedFilters, push_down
from ottla.client.spark.session import _is_registered

KAFKA_COLUMNS = (
    "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
    "timestamp:timestamp,timestampType:int>"
)


def offsets(frame):
    return sorted(tuple(row) for row in frame.select("topic", "partition", "offset").collect())


def test_three_topics_of_six_partitions(reader, make_topic, fill):
    topics = [make_topic(6) for _ in range(3)]
    for topic in topics:
        fill(topic, range(6), 50)

    frame = reader(subscribe=",".join(topics)).load()

    assert frame.schema.simpleString() == KAFKA_COLUMNS
    assert offsets(frame) == sorted(
        (topic, partition, offset)
        for topic in topics
        for partition in range(6)
        for offset in range(50)
    )


def test_a_row_has_all_fields_of_a_record(reader, make_topic, producer):
    topic = make_topic()
    headers = [("trace", b"1"), ("empty", None), ("trace", b"2")]
    producer.send(topic, b"value", key=b"key", headers=headers, timestamp=1_700_000_000_123)
    producer.send(topic, None, key=b"gone", timestamp=1_700_000_000_124)

    first, second = (
        reader(subscribe=topic, includeHeaders="true").load().orderBy("offset").collect()
    )

    assert (bytes(first.key), bytes(first.value), first.topic) == (b"key", b"value", topic)
    assert (first.partition, first.offset, first.timestampType) == (0, 0, 0)
    assert first.timestamp.replace(tzinfo=UTC) == datetime(2023, 11, 14, 22, 13, 20, 123000, UTC)
    assert [(one.key, one.value and bytes(one.value)) for one in first.headers] == headers
    assert second.value is None
    assert second.headers is None


def test_starting_and_ending_offsets_as_json(reader, make_topic, fill):
    topic = make_topic(2)
    fill(topic, [0, 1], 20)

    frame = reader(
        subscribe=topic,
        startingOffsets=json.dumps({topic: {"0": 5, "1": -2}}),
        endingOffsets=json.dumps({topic: {"0": 8, "1": -1}}),
    ).load()

    found = offsets(frame)
    assert found == [(topic, 0, at) for at in range(5, 8)] + [(topic, 1, at) for at in range(20)]
    ends = {str(number): max(at for _, one, at in found if one == number) + 1 for number in (0, 1)}
    rest = reader(subscribe=topic, startingOffsets=json.dumps({topic: ends})).load()
    assert offsets(rest) == [(topic, 0, at) for at in range(8, 20)]


def test_starting_and_ending_timestamps(reader, make_topic, producer):
    topic = make_topic()
    for number in range(10):
        producer.send(topic, b"%d" % number, timestamp=1_000_000 + 1000 * number)

    frame = reader(subscribe=topic, startingTimestamp="1002500", endingTimestamp="1006000").load()
    by_partition = reader(
        subscribe=topic, startingOffsetsByTimestamp=json.dumps({topic: {"0": 1_008_000}})
    ).load()

    assert [at for _, _, at in offsets(frame)] == [3, 4, 5]
    assert [at for _, _, at in offsets(by_partition)] == [8, 9]


def test_only_assigned_partitions_are_read(reader, make_topic, fill):
    topic = make_topic(3)
    fill(topic, range(3), 5)

    frame = reader(assign=json.dumps({topic: [0, 2]})).load()

    assert {partition for _, partition, _ in offsets(frame)} == {0, 2}


def test_a_partition_is_split_into_tasks(reader, make_topic, fill):
    topic = make_topic()
    fill(topic, [0], 100)

    many = reader(subscribe=topic, minPartitions="5").load()
    small = reader(subscribe=topic, maxRecordsPerPartition="30").load()

    assert many.rdd.getNumPartitions() == 5
    assert small.rdd.getNumPartitions() == 4
    assert len(offsets(many)) == len(set(offsets(small))) == 100


def test_nothing_to_read_is_an_empty_dataframe(reader, make_topic):
    assert reader(subscribe=make_topic(2)).load().count() == 0
    assert reader(subscribePattern="no-such-topic-.*").load().count() == 0


def test_spark_finds_the_format_by_itself(spark, bootstrap, make_topic, fill):
    topic = make_topic()
    fill(topic, [0], 7)
    unregistered = spark.newSession()

    frame = (
        unregistered.read.format("ottla")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .load()
    )

    assert frame.count() == 7


def test_a_schema_may_leave_columns_out(reader, make_topic, fill):
    topic = make_topic()
    fill(topic, [0], 3)

    frame = reader(subscribe=topic).schema("offset LONG, value BINARY").load()

    assert [(row.offset, bytes(row.value)) for row in frame.collect()] == [
        (0, b"0"),
        (1, b"1"),
        (2, b"2"),
    ]
    with pytest.raises(PySparkException, match="Column value is binary, not string"):
        reader(subscribe=topic).schema("value STRING").load().count()
    with pytest.raises(PySparkException, match="Unknown column 'headers': set includeHeaders"):
        reader(subscribe=topic).schema("headers STRING").load().count()


def test_a_view_in_sql(spark, bootstrap, make_topic, fill):
    topic = make_topic()
    fill(topic, [0], 7)

    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW rides USING ottla"
        f" OPTIONS (`kafka.bootstrap.servers` '{bootstrap}', subscribe '{topic}')"
    )

    assert spark.sql("SELECT count(*) FROM rides WHERE offset > 1").first()[0] == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "t", "startingOfsets": "x"}, "did you mean startingOffsets"),
        (
            {"subscribe": "t", "kafka.group.ids": "x"},
            "did you mean kafka.group.id",
        ),
        ({"subscribe": "t", "failOnDataLoss": "no"}, "'no' of option failOnDataLoss"),
        ({}, "one of subscribe, subscribePattern and assign is required"),
        ({"subscribe": "no-such-topic"}, "Unknown topic no-such-topic"),
    ],
)
def test_an_invalid_option_is_reported_in_the_first_line(reader, options, message):
    with pytest.raises(PySparkException) as caught:
        reader(**options).load().count()

    lines = str(caught.value).splitlines()
    assert message in lines[0]
    assert not any(line.startswith("Traceback") for line in lines)


def test_data_loss_fails_a_batch_unless_fail_on_data_loss_is_false(reader, make_topic, fill, admin):
    topic = make_topic()
    fill(topic, [0], 20)
    admin.delete_records({TopicPartition(topic, 0): 10})
    start = json.dumps({topic: {"0": 0}})

    with pytest.raises(PySparkException, match=f"Offsets 0 to 9 of {topic}-0 do not exist"):
        reader(subscribe=topic, startingOffsets=start).load().count()
    tolerant = reader(subscribe=topic, startingOffsets=start, failOnDataLoss="false").load()
    assert tolerant.count() == 10


# Filters.


def test_filters_narrow_partitions_and_offsets():
    noon = datetime(2023, 1, 1, 12, tzinfo=UTC)
    whole = [
        IsNotNull(("offset",)),
        EqualTo(("topic",), "t"),
        In(("partition",), [1, 2]),
        GreaterThan(("offset",), 9),
        LessThanOrEqual(("offset",), 20),
        LessThan(("offset",), 30),
    ]
    since = GreaterThanOrEqual(("timestamp",), noon)
    others = [
        EqualTo(("key",), b"k"),
        Not(EqualTo(("topic",), "u")),
        LessThan(("timestamp",), noon),
    ]

    found, left = push_down([*whole, since, *others])

    assert found == PushedFilters(
        topics=frozenset(["t"]),
        partitions=frozenset([1, 2]),
        first_offset=10,
        end_offset=21,
        since_ms=int(noon.timestamp() * 1000) - 1,
    )
    assert left == [since, *others]


def test_contradictory_filters_leave_nothing():
    found, left = push_down([EqualTo(("partition",), 1), EqualTo(("partition",), 2)])

    assert found.partitions == frozenset()
    assert left == []


class Meter(threading.Thread):
    """A proxy in front of a broker that counts the bytes that the broker sends."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.port, self._target, self.bytes = free_port(), port, 0
        self._started = threading.Event()

    def run(self):
        asyncio.run(self._serve())

    async def _serve(self):
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        async with await asyncio.start_server(self._relay, "127.0.0.1", self.port) as server:
            self._started.set()
            await self._end.wait()
            await close_server(server)

    async def _relay(self, reader, writer):
        try:
            back, forth = await asyncio.open_connection("127.0.0.1", self._target)
            try:
                await asyncio.gather(self._pump(reader, forth, 0), self._pump(back, writer, 1))
            finally:
                forth.close()
        except ConnectionError:
            pass  # the broker is not started, or stopped
        finally:
            writer.close()

    async def _pump(self, source, target, counts):
        while data := await source.read(65536):
            self.bytes += counts * len(data)
            target.write(data)
        target.close()

    def __enter__(self):
        self.start()
        self._started.wait()
        return self

    def __exit__(self, *_error):
        self._loop.call_soon_threadsafe(self._end.set)
        self.join(10)


@pytest.fixture(scope="module")
def metered(tmp_path_factory):
    """A broker behind a metering proxy, with two megabytes in a topic."""
    port = free_port()
    folder = tmp_path_factory.mktemp("metered")
    with Meter(port) as meter:
        advertised = ["--set", f"advertised.listeners=PLAINTEXT://127.0.0.1:{meter.port}"]
        with Daemon(folder, *advertised, port=port) as broker:
            with Admin(broker.address) as admin, Producer(broker.address) as producer:
                admin.create_topic("big", partitions=2)
                for number in range(200):
                    producer.send(
                        "big",
                        b"x" * 10_000,
                        partition=number % 2,
                        timestamp=1_600_000_000_000 + number // 2 * 60_000,
                    )
            yield meter


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ("partition = 1 AND offset >= 95", 5),
        ("topic = 'small'", 0),
        ("timestamp >= '2020-09-13 14:01:40'", 10),
        ("offset IN (7)", 2),
    ],
)
def test_filters_are_pushed_down(spark, metered, condition, rows):
    frame = (
        spark.read.format("ottla")
        .option("kafka.bootstrap.servers", f"127.0.0.1:{metered.port}")
        .option("subscribe", "big")
        .option("pushdown", "true")
        .option("kafka.max.partition.fetch.bytes", "20000")
        .load()
    )

    before = metered.bytes
    found = frame.filter(condition).count()

    assert found == rows
    assert metered.bytes - before < rows * 10_000 + 100_000


def test_without_pushdown_everything_is_fetched_and_a_dataframe_can_be_reused(spark, metered):
    frame = (
        spark.read.format("ottla")
        .option("kafka.bootstrap.servers", f"127.0.0.1:{metered.port}")
        .option("subscribe", "big")
        .load()
    )

    before = metered.bytes
    assert frame.filter("partition = 1 AND offset >= 95").count() == 5
    assert metered.bytes - before > 2_000_000
    assert frame.count() == 200
    one, other = frame.filter("partition = 0"), frame.filter("partition = 1 AND offset < 5")
    assert one.union(other).count() == 105


def test_a_format_that_spark_has_found_is_not_registered_again(spark, monkeypatch):
    assert _is_registered(spark, "ottla")
    assert not _is_registered(spark, "no-such-format")
    monkeypatch.setattr(
        DataSourceRegistration, "register", lambda *_: pytest.fail("registered again")
    )

    register(spark)
