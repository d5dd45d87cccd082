"""The reader of a stream, as Spark calls it, without Spark: what a micro-batch is."""

import json

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from ottla.client import TopicPartition
from ottla.client.blocking import Consumer
from ottla.client.spark import DataLossError
from ottla.client.spark.options import read_options
from ottla.client.spark.stream import StreamReader


@pytest.fixture
def stream_of(bootstrap):
    def make(**options):
        given = {"kafka.bootstrap.servers": bootstrap, "startingOffsets": "earliest", **options}
        return StreamReader(read_options(given, is_stream=True), None)

    return make


def ranges(reader, start, end):
    return [
        (one.range.partition, one.range.start, one.range.end)
        for one in reader.partitions(start, end)
    ]


def test_a_batch_ends_where_the_logs_end(stream_of, make_topic, fill):
    topic = make_topic(2)
    fill(topic, [0, 1], 10)
    reader = stream_of(subscribe=topic)

    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())

    assert start == {topic: {"0": 0, "1": 0}}
    assert end == {topic: {"0": 10, "1": 10}} == reader.reportLatestOffset()
    assert ranges(reader, start, end) == [(0, 0, 10), (1, 0, 10)]
    assert reader.getDefaultReadLimit() == ReadAllAvailable()


def test_a_stream_starts_at_the_end_or_where_it_is_told(stream_of, make_topic, fill):
    topic = make_topic()
    fill(topic, [0], 10)

    assert stream_of(subscribe=topic, startingOffsets="latest").initialOffset() == {
        topic: {"0": 10}
    }
    named = stream_of(subscribe=topic, startingOffsets=json.dumps({topic: {"0": 4}}))
    assert named.initialOffset() == {topic: {"0": 4}}


def test_a_limit_is_kept_and_lifted_by_spark(stream_of, make_topic, fill):
    topic = make_topic(2)
    fill(topic, [0, 1], 100)
    reader = stream_of(subscribe=topic, maxOffsetsPerTrigger="50")
    start = reader.initialOffset()

    assert reader.getDefaultReadLimit() == ReadMaxRows(50)
    assert reader.latestOffset(start, ReadMaxRows(50)) == {topic: {"0": 25, "1": 25}}
    assert reader.latestOffset(start, ReadAllAvailable()) == {topic: {"0": 100, "1": 100}}
    assert reader.reportLatestOffset() == {topic: {"0": 100, "1": 100}}


def test_few_records_wait_for_more_but_not_for_ever(stream_of, make_topic, fill):
    topic = make_topic()
    fill(topic, [0], 5)
    patient, impatient = (
        stream_of(subscribe=topic, minOffsetsPerTrigger="10", maxTriggerDelay=delay)
        for delay in ("1h", "1ms")
    )
    start, limit = patient.initialOffset(), patient.getDefaultReadLimit()
    assert limit == ReadMinRows(10)

    # The first batch does not wait: so it is with Spark's own source.
    first = patient.latestOffset(start, limit)
    assert first == impatient.latestOffset(start, limit) == {topic: {"0": 5}}

    fill(topic, [0], 5)
    assert patient.latestOffset(first, limit) == first
    assert impatient.latestOffset(first, limit) == {topic: {"0": 10}}
    fill(topic, [0], 5)
    assert patient.latestOffset(first, limit) == {topic: {"0": 15}}


def test_a_run_that_ends_by_itself_reads_what_there_was_and_waits_for_nothing(
    stream_of, make_topic, fill
):
    topic = make_topic()
    fill(topic, [0], 5)
    reader = stream_of(subscribe=topic, minOffsetsPerTrigger="10")
    start = reader.initialOffset()

    reader.prepareForTriggerAvailableNow()
    fill(topic, [0], 5)

    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert end == {topic: {"0": 5}}
    assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end


def test_new_partitions_are_picked_up(stream_of, make_topic, fill, admin):
    topic = make_topic()
    fill(topic, [0], 5)
    reader = stream_of(subscribe=topic, maxOffsetsPerTrigger="100")
    start = reader.latestOffset(reader.initialOffset(), ReadMaxRows(100))

    admin.create_partitions(topic, 2)
    fill(topic, [1], 3)

    end = reader.latestOffset(start, ReadMaxRows(100))
    assert end == {topic: {"0": 5, "1": 3}}
    assert ranges(reader, start, end) == [(1, 0, 3)]


def test_ranges_are_shared_out(stream_of, make_topic, fill):
    topic = make_topic()
    fill(topic, [0], 100)
    reader = stream_of(subscribe=topic, minPartitions="3")

    found = ranges(reader, {topic: {"0": 0}}, {topic: {"0": 100}})

    assert len(found) >= 3
    assert found[0][1] == 0
    assert found[-1][2] == 100


def test_a_group_is_told_how_far_we_are(stream_of, make_topic, fill, admin):
    topic = make_topic()
    fill(topic, [0], 10)
    reader = stream_of(subscribe=topic, commitGroup=f"{topic}-lag")
    place = TopicPartition(topic, 0)

    reader.latestOffset({topic: {"0": 4}}, ReadAllAvailable())
    assert admin.group_lag(f"{topic}-lag")[place].lag == 6
    reader.commit({topic: {"0": 9}})
    assert admin.group_lag(f"{topic}-lag")[place].lag == 1


def test_a_group_that_cannot_be_told_keeps_nobody_waiting(
    stream_of, make_topic, fill, bootstrap, caplog
):
    topic = make_topic()
    fill(topic, [0], 10)
    reader = stream_of(subscribe=topic, commitGroup=f"{topic}-members")

    with Consumer(bootstrap, topic, group=f"{topic}-members") as member:
        member.getone(timeout=60)  # a group with members takes commits of nobody else
        end = reader.latestOffset({topic: {"0": 4}}, ReadAllAvailable())

    assert end == {topic: {"0": 10}}
    assert "is not told how far we are" in caplog.text


def test_a_topic_that_is_gone_is_a_loss(stream_of, make_topic, fill, admin):
    topic, other = make_topic(), make_topic()
    fill(topic, [0], 5)
    strict = stream_of(subscribe=f"{topic},{other}")
    tolerant = stream_of(subscribe=f"{topic},{other}", failOnDataLoss="false")
    start = strict.initialOffset()

    admin.delete_topics(topic)

    end = strict.latestOffset(start, ReadAllAvailable())
    assert end == {other: {"0": 0}}
    with pytest.raises(DataLossError, match=f"Partitions {topic}-0 are gone"):
        strict.partitions(start, end)
    assert tolerant.partitions(start, end) == []


def test_a_topic_that_was_made_anew_is_a_loss(stream_of, make_topic, fill, admin):
    topic = make_topic()
    fill(topic, [0], 3)
    start, end = {topic: {"0": 50}}, {topic: {"0": 3}}

    with pytest.raises(DataLossError, match=f"{topic}-0 ends at offset 3"):
        stream_of(subscribe=topic).partitions(start, end)
    tolerant = stream_of(subscribe=topic, failOnDataLoss="false")
    assert ranges(tolerant, start, end) == [(0, 0, 3)]


def test_spark_asks_to_read_even_if_nothing_was_planned(stream_of, make_topic):
    assert list(stream_of(subscribe=make_topic()).read(InputPartition(None))) == []
