"""Streaming queries with a checkpoint, against brokers that are killed."""

import json
import time
import uuid

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from ottla.client import TopicPartition
from ottla.client.spark import lag

PATIENCE_SECONDS = 300


def wait_for(condition, query):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert query.isActive, str(query.exception())
        assert time.monotonic() < deadline, query.lastProgress
        time.sleep(0.05)


@pytest.fixture
def running(spark, tmp_path):
    """Start queries that write Parquet, and stop them after the test."""
    queries = []

    def start(frame, name="out"):
        query = (
            frame.writeStream.format("parquet")
            .option("path", str(tmp_path / name))
            .option("checkpointLocation", str(tmp_path / f"{name}-checkpoint"))
            .trigger(processingTime="0 seconds")
            .start()
        )
        queries.append(query)
        return query

    yield start
    for query in queries:
        query.stop()


def read_so_far(query):
    return sum(progress.numInputRows for progress in query.recentProgress)


def test_a_query_continues_from_its_checkpoint(stream, make_topic, fill, admin, drain, rows_of):
    topic = make_topic(3)
    fill(topic, range(3), 100)
    frame = stream(
        subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="120", commitGroup=topic
    ).load()

    first = drain(frame)
    sizes = [progress.numInputRows for progress in first.recentProgress]
    behind = [sum(lag(progress).values()) for progress in first.recentProgress]
    fill(topic, range(3), 10, first=100)
    second = drain(frame)

    assert sizes == [120, 120, 60]
    assert behind == [180, 60, 0]
    assert read_so_far(second) == 30
    assert rows_of("partition", "offset") == [(one, at) for one in range(3) for at in range(110)]
    assert {tp.lag for tp in admin.group_lag(topic).values()} == {0}
    last = json.loads(second.lastProgress.sources[0].endOffset)
    assert last == {topic: {"0": 110, "1": 110, "2": 110}}


def test_topics_created_later_are_read(stream, make_topic, fill, admin, running, rows_of):
    mark = uuid.uuid4().hex[:6]
    early = make_topic(2, f"{mark}-early")
    fill(early, [0, 1], 10)
    query = running(stream(subscribePattern=f"{mark}-.*", startingOffsets="earliest").load())
    wait_for(lambda: read_so_far(query) >= 20, query)

    late = make_topic(1, f"{mark}-late")
    fill(late, [0], 10)
    admin.create_partitions(early, 3)
    fill(early, [2], 10)

    wait_for(lambda: read_so_far(query) >= 40, query)
    query.stop()
    tps = [(early, number) for number in range(3)] + [(late, 0)]
    assert rows_of("topic", "partition", "offset") == [(*tp, at) for tp in tps for at in range(10)]


def test_a_query_survives_a_broker_crash(stream, brokers, make_topic, producer, running, rows_of):
    topic = make_topic(3)
    producer.send_many(topic, [b"%d" % number for number in range(10_000)])
    frame = stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="2000").load()
    query = running(frame)
    wait_for(lambda: read_so_far(query) >= 2000, query)

    brokers[-1].kill()
    time.sleep(0.5)
    brokers[-1].start()
    producer.send_many(topic, [b"%d" % number for number in range(10_000, 12_000)])

    wait_for(lambda: read_so_far(query) >= 12_000, query)
    query.stop()
    values = sorted(int(value) for (value,) in rows_of("value"))
    assert values == list(range(12_000))


def test_data_loss_fails_a_query_unless_fail_on_data_loss_is_false(
    stream, make_topic, fill, admin, drain, rows_of
):
    topic = make_topic()
    fill(topic, [0], 10)
    strict = stream(subscribe=topic, startingOffsets="earliest").load()
    tolerant = stream(subscribe=topic, startingOffsets="earliest", failOnDataLoss="false").load()
    drain(strict)
    fill(topic, [0], 20, first=10)
    admin.delete_records({TopicPartition(topic, 0): 20})

    with pytest.raises(StreamingQueryException, match=f"Offsets 10 to 19 of {topic}-0 do not"):
        drain(strict)
    drain(tolerant)

    assert rows_of("offset") == [(at,) for at in [*range(10), *range(20, 30)]]


def test_an_invalid_option_is_named(stream):
    with pytest.raises(Exception, match="did you mean maxOffsetsPerTrigger"):
        stream(subscribe="t", maxOffsetPerTrigger="5").load().writeStream.format("noop").start()


def test_an_option_that_a_stream_does_not_have_is_reported_in_one_line(stream):
    frame = stream(subscribe="t", endingOffsets="latest").load()

    with pytest.raises(PySparkException) as caught:
        frame.writeStream.format("noop").start().awaitTermination(60)

    text = str(caught.value)
    assert "OptionError: Option endingOffsets does not apply to a streaming read" in text
    assert "Traceback" not in text
