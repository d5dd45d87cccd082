"""Options: those of Spark's own Kafka source; what is wrong is named."""

import pickle
from pathlib import Path

import pytest

from ottla.client import BatchConfig, TopicPartition
from ottla.client.spark import OptionError, kafka_keys, options
from ottla.client.spark.options import (
    Bound,
    Limits,
    Splitting,
    TopicSelection,
    read_options,
    wants_headers,
    write_options,
)
from ottla.client.spark.planning import EARLIEST, LATEST

HERE = {"kafka.bootstrap.servers": "localhost:9092"}
ONE = {**HERE, "subscribe": "rides"}


def batch(**options):
    return read_options({**ONE, **options}, is_stream=False)


def stream(**options):
    return read_options({**ONE, **options}, is_stream=True)


def test_a_batch_reads_everything_unless_told_otherwise():
    options = batch()

    assert options.topics == TopicSelection(names=("rides",))
    assert options.starting == Bound(EARLIEST)
    assert options.ending == Bound(LATEST)
    assert options.fetch.fails_on_data_loss
    assert options.link.bootstrap == "localhost:9092"


def test_a_stream_starts_at_the_end_unless_told_otherwise():
    assert stream().starting == Bound(LATEST)
    assert stream().limits == Limits(max_delay_ms=15 * 60_000)


def test_letter_case_says_nothing():
    options = read_options(
        {"KAFKA.Bootstrap.Servers": "a:1", "SUBSCRIBE": "rides", "minpartitions": "7"},
        is_stream=False,
    )

    assert options.splitting == Splitting(min_partitions=7)


def test_topics_are_named_matched_or_assigned():
    pattern = read_options({**HERE, "subscribePattern": "rides-.*"}, is_stream=False)
    assigned = read_options({**HERE, "assign": '{"a":[0,2],"b":[1]}'}, is_stream=False)

    assert batch(subscribe="b, a,b").topics.names == ("b", "a")
    assert pattern.topics == TopicSelection(pattern="rides-.*")
    assert assigned.topics.places == (
        TopicPartition("a", 0),
        TopicPartition("a", 2),
        TopicPartition("b", 1),
    )


def test_offsets_are_json_in_the_form_of_spark():
    options = batch(
        startingOffsets='{"rides":{"0":23,"1":-2}}', endingOffsets='{"rides":{"0":50,"1":-1}}'
    )

    zero, one = TopicPartition("rides", 0), TopicPartition("rides", 1)
    assert options.starting == Bound(by_place={zero: 23, one: EARLIEST})
    assert options.ending == Bound(by_place={zero: 50, one: LATEST})


def test_a_time_counts_more_than_times_and_they_more_than_offsets():
    by_time = '{"rides":{"0":1000}}'

    assert batch(
        startingTimestamp="5000", startingOffsetsByTimestamp=by_time, startingOffsets="earliest"
    ).starting == Bound(5000, is_time=True)
    assert batch(startingOffsetsByTimestamp=by_time, startingOffsets="earliest").starting == Bound(
        by_place={TopicPartition("rides", 0): 1000}, is_time=True
    )


def test_limits_of_a_stream():
    options = stream(minOffsetsPerTrigger="10", maxOffsetsPerTrigger="100", maxTriggerDelay="2m")

    assert options.limits == Limits(10, 100, 120_000)
    assert stream(commitGroup="lag").commit_group == "lag"


def test_settings_of_kafka_reach_the_client():
    options = batch(
        **{
            "kafka.client.id": "me",
            "kafka.isolation.level": "read_committed",
            "kafka.request.timeout.ms": "1500",
            "kafka.max.partition.fetch.bytes": "4096",
            "kafka.check.crcs": "false",
            "kafka.session.timeout.ms": "9000",
        }
    )

    assert options.link.client.client_id == "me"
    assert options.link.client.timeouts.request == 1.5
    assert options.fetch.is_committed
    assert options.fetch.partition_max_bytes == 4096
    assert not options.fetch.check_crcs


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"groupIdPrefix": "jobs"}, "jobs"),
        ({"groupIdPrefix": "jobs", "kafka.group.id": "group"}, "group"),
        ({}, "ottla-spark"),
    ],
)
def test_the_brokers_are_told_who_we_are(given, name):
    assert batch(**given).link.client.client_id == name


def test_settings_of_the_sink():
    options = write_options(
        {
            **HERE,
            "topic": "out",
            "kafka.acks": "1",
            "kafka.compression.type": "zstd",
            "kafka.linger.ms": "5",
            "kafka.batch.size": "16384",
            "checkpointLocation": "/somewhere",
        }
    )

    assert options.topic == "out"
    assert options.producer == {"acks": 1, "compression": "zstd"}
    assert options.batch == BatchConfig(linger=0.005, batch_bytes=16384)


def test_a_smaller_request_is_no_reason_to_complain_of_batches():
    small = write_options({**HERE, "kafka.max.request.size": "100000"})

    assert small.batch == BatchConfig(request_bytes=100_000, batch_bytes=100_000)


def test_options_travel_to_executors():
    options = batch(startingOffsets='{"rides":{"0":1}}', includeHeaders="true")

    assert pickle.loads(pickle.dumps(options)) == options
    assert wants_headers({"includeheaders": "TRUE"})


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"startingOffset": "earliest"}, "'startingoffset'.*did you mean startingOffsets"),
        ({"bootstrap.servers": "x"}, "did you mean kafka.bootstrap.servers"),
        ({"path": "/data"}, "unknown option 'path'"),
        ({"kafka.isolation": "x"}, "'kafka.isolation': did you mean kafka.isolation.level"),
        ({"kafka.auto.offset.reset": "latest"}, "kafka.auto.offset.reset cannot be set: say start"),
        ({"kafka.key.deserializer": "x"}, "kafka.key.deserializer cannot be set"),
        ({"kafka.enable.auto.commit": "true"}, "kafka.enable.auto.commit cannot be set.*commitGro"),
        ({"kafka.security.protocol": "SSL"}, "kafka.security.protocol is 'SSL'.*PLAINTEXT"),
        ({"kafka.sasl.mechanism": "PLAIN"}, "kafka.sasl.mechanism cannot be set: .*plain text"),
        ({"kafka.bootstrap.servers": "nowhere:port"}, "kafka.bootstrap.servers is 'nowhere:port'"),
        ({"subscribePattern": "x"}, "subscribe and subscribePattern are given"),
        ({"startingOffsets": "soon"}, "startingOffsets is 'soon': it must be earliest, latest, or"),
        ({"startingOffsets": "latest"}, "startingOffsets of a batch cannot be latest"),
        ({"startingOffsets": '{"rides":{"0":-1}}'}, "startingOffsets of a batch cannot be latest"),
        ({"startingOffsets": '{"rides":[0]}'}, "not of the form"),
        ({"startingOffsets": '{"rides":{"0":"1"}}'}, "rides has '0': '1'"),
        ({"startingOffsets": "{"}, "it is no JSON"),
        ({"endingOffsets": "earliest"}, "endingOffsets cannot be earliest"),
        ({"startingTimestamp": "yesterday"}, "milliseconds since 1970"),
        ({"startingOffsetsByTimestampStrategy": "none"}, "it must be error or latest"),
        ({"failOnDataLoss": "perhaps"}, "failOnDataLoss is 'perhaps': it must be true or false"),
        ({"minPartitions": "0"}, "minPartitions is '0': it must be a whole number above 0"),
        ({"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger is not for a batch"),
        ({"commitGroup": "g"}, "commitGroup is not for a batch"),
    ],
)
def test_what_is_wrong_with_a_batch_is_named(given, complaint):
    with pytest.raises(OptionError, match=complaint):
        batch(**given)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets is not for a stream"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay is 'soon': it must be a duration"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger is les"),
    ],
)
def test_what_is_wrong_with_a_stream_is_named(given, complaint):
    with pytest.raises(OptionError, match=complaint):
        stream(**given)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"subscribe": "rides"}, "subscribe is not for what is written"),
        ({"topics": "rides"}, "'topics'.*did you mean topic"),
        ({"kafka.acks": "2"}, "kafka.acks is '2'"),
        ({"kafka.transactional.id": "t"}, "kafka.transactional.id cannot be set"),
        ({"kafka.compression.type": "rar"}, "none or gzip or snappy or lz4 or zstd"),
        ({"kafka.acks": "1", "kafka.enable.idempotence": "true"}, "needs kafka.acks=all"),
        (
            {"kafka.batch.size": "9000", "kafka.max.request.size": "5000"},
            "kafka.batch.size.*batches of 9000 bytes in requests of 5000",
        ),
    ],
)
def test_what_is_wrong_with_a_sink_is_named(given, complaint):
    with pytest.raises(OptionError, match=complaint):
        write_options({**HERE, **given})


def test_something_has_to_be_read_from_somewhere():
    with pytest.raises(OptionError, match=r"one of subscribe.*none is given"):
        read_options(HERE, is_stream=False)
    with pytest.raises(OptionError, match=r"kafka.bootstrap.servers is missing"):
        read_options({"subscribe": "rides"}, is_stream=False)


def test_every_option_is_on_the_page():
    page = (Path(__file__).resolve().parents[2] / "docs" / "spark.md").read_text()
    names = [*options._READ, *options._BATCH, *options._STREAM, *options._WRITE]

    for name in names:
        assert f"`{name}`" in page, name
    for name in kafka_keys._HEEDED:
        assert f"`{name}`" in page or f"`kafka.{name}`" in page, name
