"""The streaming reader, called as Spark calls it, without Spark."""

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


def test_a_batch_ends_at_the_log_end(stream_of, make_topic, fill):
    topic = make_topic(2)
    fill(topic, [0, 1], 10)
    reader = stream_of(subscribe=topic)

    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())

    assert start == {topic: {"0": 0, "1": 0}}
    assert end == {topic: {"0": 10, "1": 10}} == reader.reportLatestOffset()
    assert ranges(reader, start, end) == [(0, 0, 10), (1, 0, 10)]
    assert reader.getDefaultReadLimit() == ReadAllAvailable()


def test_a_stream_starts_at_latest_or_at_starting_offsets(stream_of, make_topic, fill):
    topic = make_topic()
    fill(topic, [0], 10)

    assert stream_of(subscribe=topic, startingOffsets="latest").initialOffset() == {
        topic: {"0": 10}
    }
    named = stream_of(subscribe=topic, startingOffsets=json.dumps({topic: {"0": 4}}))
    assert named.initialOffset() == {topic: {"0": 4}}


def test_the_rate_limit_is_applied_and_lifted_by_spark(stream_of, make_topic, fill):
    topic = make_topic(2)
    fill(topic, [0, 1], 100)
    reader = stream_of(subscribe=topic, maxOffsetsPerTrigger="50")
    start = reader.initialOffset()

    assert reader.getDefaultReadLimit() == ReadMaxRows(50)
    assert reader.latestOffset(start, ReadMaxRows(50)) == {topic: {"0": 25, "1": 25}}
    assert reader.latestOffset(start, ReadAllAvailable()) == {topic: {"0": 100, "1": 100}}
    assert reader.reportLatestOffset() == {topic: {"0": 100, "1": 100}}


def test_a_small_batch_waits_until_the_maximum_delay(stream_of, make_topic, fill):
    topic = make_topic()
    fill(topic, [0], 5)
    patient, impatient = (
        stream_of(subscribe=topic, minOffsetsPerTrigger="10", maxTriggerDelay=delay)
        for delay in ("1h", "1ms")
    )
    start, limit = patient.initialOffset(), patient.getDefaultReadLimit()
    assert limit == ReadMinRows(10)

    # The first batch does not wait, as with Spark's own source.
    first = patient.latestOffset(start, limit)
    assert first == impatient.latestOffset(start, limit) == {topic: {"0": 5}}

    fill(topic, [0], 5)
    assert patient.latestOffset(first, limit) == first
    assert impatient.latestOffset(first, limit) == {topic: {"0": 10}}
    fill(topic, [0], 5)
    assert patient.latestOffset(first, limit) == {topic: {"0": 15}}


def test_an_available_now_run_reads_to_its_target_without_waiting(stream_of, make_topic, fill):
    topic = make_topic()
    fill(topic, [0], 5)
    reader = stream_of(subscribe=topic, minOffsetsPerTrigger="10")
    start = reader.initialOffset()

    reader.prepareForTriggerAvailableNow()
    fill(topic, [0], 5)

    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert end == {topic: {"0": 5}}
    assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end


def test_new_partitions_are_read(stream_of, make_topic, fill, admin):
    topic = make_topic()
    fill(topic, [0], 5)
    reader = stream_of(subscribe=topic, maxOffsetsPerTrigger="100")
    start = reader.latestOffset(reader.initialOffset(), ReadMaxRows(100))

    admin.create_partitions(topic, 2)
    fill(topic, [1], 3)

    end = reader.latestOffset(start, ReadMaxRows(100))
    assert end == {topic: {"0": 5, "1": 3}}
    assert ranges(reader, start, end) == [(1, 0, 3)]


def test_ranges_are_split_into_tasks(stream_of, make_topic, fill):
    topic = make_topic()
    fill(topic, [0], 100)
    reader = stream_of(subscribe=topic, minPartitions="3")

    found = ranges(reader, {topic: {"0": 0}}, {topic: {"0": 100}})

    assert len(found) >= 3
    assert found[0][1] == 0
    assert found[-1][2] == 100


def test_processed_offsets_are_committed_to_the_group(stream_of, make_topic, fill, admin):
    topic = make_topic()
    fill(topic, [0], 10)
    reader = stream_of(subscribe=topic, commitGroup=f"{topic}-lag")
    tp = TopicPartition(topic, 0)

    reader.latestOffset({topic: {"0": 4}}, ReadAllAvailable())
    assert admin.group_lag(f"{topic}-lag")[tp].lag == 6
    reader.commit({topic: {"0": 9}})
    assert admin.group_lag(f"{topic}-lag")[tp].lag == 1


def test_a_failing_group_commit_does_not_delay_the_query(
    stream_of, make_topic, fill, bootstrap, caplog
):
    topic = make_topic()
    fill(topic, [0], 10)
    reader = stream_of(subscribe=topic, commitGroup=f"{topic}-members")

    with Consumer(bootstrap, topic, group=f"{topic}-members") as member:
        member.getone(timeout=60)  # a group with members rejects other commits
        end = reader.latestOffset({topic: {"0": 4}}, ReadAllAvailable())

    assert end == {topic: {"0": 10}}
    assert "cannot commit offsets for group" in caplog.text


def test_a_deleted_topic_is_a_data_loss(stream_of, make_topic, fill, admin):
    topic, other = make_topic(), make_topic()
    fill(topic, [0], 5)
    strict = stream_of(subscribe=f"{topic},{other}")
    tolerant = stream_of(subscribe=f"{topic},{other}", failOnDataLoss="false")
    start = strict.initialOffset()

    admin.delete_topics(topic)

    end = strict.latestOffset(start, ReadAllAvailable())
    assert end == {other: {"0": 0}}
    with pytest.raises(DataLossError, match=f"Partitions {topic}-0 were deleted"):
        strict.partitions(start, end)
    assert tolerant.partitions(start, end) == []


def test_a_recreated_topic_is_a_data_loss(stream_of, make_topic, fill, admin):
    topic = make_topic()
    fill(topic, [0], 3)
    start, end = {topic: {"0": 50}}, {topic: {"0": 3}}

    with pytest.raises(DataLossError, match=f"{topic}-0 ends at offset 3"):
        stream_of(subscribe=topic).partitions(start, end)
    tolerant = stream_of(subscribe=topic, failOnDataLoss="false")
    assert ranges(tolerant, start, end) == [(0, 0, 3)]


def test_read_without_a_planned_task_yields_nothing(stream_of, make_topic):
    assert list(stream_of(subscribe=make_topic()).read(InputPartition(None))) == []
