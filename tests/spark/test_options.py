"""Options of Spark's own Kafka source: parsing, and errors that name what is wrong."""

import pickle
from pathlib import Path

import pytest

from ottla.client import BatchConfig, TopicPartition
from ottla.client.spark import OptionError, kafka_keys, options
from ottla.client.spark.options import (
    ExactlyOnceOptions,
    OffsetBound,
    SplitOptions,
    TopicSelection,
    TriggerLimits,
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


def test_a_batch_reads_everything_by_default():
    options = batch()

    assert options.selection == TopicSelection(names=("rides",))
    assert options.starting == OffsetBound(EARLIEST)
    assert options.ending == OffsetBound(LATEST)
    assert options.fetch.fail_on_data_loss
    assert options.connection.bootstrap == "localhost:9092"


def test_a_stream_starts_at_latest_by_default():
    assert stream().starting == OffsetBound(LATEST)
    assert stream().limits == TriggerLimits(max_delay_ms=15 * 60_000)


def test_option_names_are_case_insensitive():
    options = read_options(
        {"KAFKA.Bootstrap.Servers": "a:1", "SUBSCRIBE": "rides", "minpartitions": "7"},
        is_stream=False,
    )

    assert options.splitting == SplitOptions(min_partitions=7)


def test_subscribe_subscribe_pattern_and_assign():
    pattern = read_options({**HERE, "subscribePattern": "rides-.*"}, is_stream=False)
    assigned = read_options({**HERE, "assign": '{"a":[0,2],"b":[1]}'}, is_stream=False)

    assert batch(subscribe="b, a,b").selection.names == ("b", "a")
    assert pattern.selection == TopicSelection(pattern="rides-.*")
    assert assigned.selection.partitions == (
        TopicPartition("a", 0),
        TopicPartition("a", 2),
        TopicPartition("b", 1),
    )


def test_offsets_are_json_in_sparks_format():
    options = batch(
        startingOffsets='{"rides":{"0":23,"1":-2}}', endingOffsets='{"rides":{"0":50,"1":-1}}'
    )

    zero, one = TopicPartition("rides", 0), TopicPartition("rides", 1)
    assert options.starting == OffsetBound(by_partition={zero: 23, one: EARLIEST})
    assert options.ending == OffsetBound(by_partition={zero: 50, one: LATEST})


def test_starting_timestamp_takes_precedence_over_timestamps_and_offsets():
    by_time = '{"rides":{"0":1000}}'

    assert batch(
        startingTimestamp="5000", startingOffsetsByTimestamp=by_time, startingOffsets="earliest"
    ).starting == OffsetBound(5000, is_timestamp=True)
    assert batch(
        startingOffsetsByTimestamp=by_time, startingOffsets="earliest"
    ).starting == OffsetBound(by_partition={TopicPartition("rides", 0): 1000}, is_timestamp=True)


def test_trigger_limits_of_a_stream():
    options = stream(minOffsetsPerTrigger="10", maxOffsetsPerTrigger="100", maxTriggerDelay="2m")

    assert options.limits == TriggerLimits(10, 100, 120_000)
    assert stream(commitGroup="lag").commit_group == "lag"


def test_kafka_configs_are_applied_to_the_client():
    options = batch(
        **{
            "kafka.client.id": "me",
            "isolationLevel": "read_committed",
            "kafka.isolation.level": "read_committed",
            "kafka.request.timeout.ms": "1500",
            "kafka.max.partition.fetch.bytes": "4096",
            "kafka.check.crcs": "false",
            "kafka.session.timeout.ms": "9000",
        }
    )

    assert options.connection.client.client_id == "me"
    assert options.connection.client.timeouts.request == 1.5
    assert options.fetch.read_committed
    assert options.fetch.partition_max_bytes == 4096
    assert not options.fetch.check_crcs


@pytest.mark.parametrize(
    ("extra", "name"),
    [
        ({"groupIdPrefix": "jobs"}, "jobs"),
        ({"groupIdPrefix": "jobs", "kafka.group.id": "group"}, "group"),
        ({}, "ottla-spark"),
    ],
)
def test_the_client_id_defaults_to_group_id_and_prefix(extra, name):
    assert batch(**extra).connection.client.client_id == name


def test_options_of_the_sink():
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


def test_a_smaller_request_size_limits_the_default_batch_size():
    small = write_options({**HERE, "kafka.max.request.size": "100000"})

    assert small.batch == BatchConfig(request_bytes=100_000, batch_bytes=100_000)


def test_options_can_be_pickled_for_executors():
    options = batch(startingOffsets='{"rides":{"0":1}}', includeHeaders="true")

    assert pickle.loads(pickle.dumps(options)) == options
    assert wants_headers({"includeheaders": "TRUE"})


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"startingOffset": "earliest"}, "'startingoffset'.*did you mean startingOffsets"),
        ({"bootstrap.servers": "x"}, "did you mean kafka.bootstrap.servers"),
        ({"path": "/data"}, "Unknown option 'path' for a batch read"),
        (
            {"isolationLevel": "read_committed", "kafka.isolation.level": "read_uncommitted"},
            "isolationLevel=read_committed and kafka.isolation.level=read_uncommitted differ",
        ),
        ({"kafka.isolation": "x"}, "'kafka.isolation': did you mean kafka.isolation.level"),
        ({"kafka.auto.offset.reset": "latest"}, "kafka.auto.offset.reset cannot be set: use start"),
        ({"kafka.key.deserializer": "x"}, "kafka.key.deserializer cannot be set"),
        ({"kafka.enable.auto.commit": "true"}, "kafka.enable.auto.commit cannot be set.*commitGro"),
        (
            {"kafka.security.protocol": "TLS"},
            "Invalid security_protocol 'TLS': use one of PLAINTEXT, SSL",
        ),
        (
            {"kafka.sasl.mechanism": "PLAIN"},
            "kafka.sasl.mechanism requires kafka.security.protocol SASL_SSL or SASL_PLAINTEXT",
        ),
        (
            {"kafka.ssl.truststore.location": "ca.pem"},
            "kafka.ssl.truststore.location requires kafka.security.protocol SSL or SASL_SSL",
        ),
        (
            {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "GSSAPI"},
            "'GSSAPI' is not supported: use one of PLAIN",
        ),
        (
            {"kafka.sasl.login.callback.handler.class": "X"},
            "kafka.sasl.login.callback.handler.class is not supported: certificates must be PEM",
        ),
        (
            {"kafka.bootstrap.servers": "nowhere:port"},
            "'nowhere:port' of option kafka.bootstrap",
        ),
        ({"subscribePattern": "x"}, "subscribe and subscribePattern are set"),
        (
            {"startingOffsets": "soon"},
            "startingOffsets: must be earliest, latest, or JSON",
        ),
        ({"startingOffsets": "latest"}, "startingOffsets of a batch must not"),
        (
            {"startingOffsets": '{"rides":{"0":-1}}'},
            "startingOffsets of a batch must not",
        ),
        ({"startingOffsets": '{"rides":[0]}'}, "must be JSON like"),
        ({"startingOffsets": '{"rides":{"0":"1"}}'}, "invalid entry '0': '1' of rides"),
        ({"startingOffsets": "{"}, "not valid JSON"),
        ({"endingOffsets": "earliest"}, "endingOffsets must not be earliest"),
        ({"startingTimestamp": "yesterday"}, "milliseconds since 1970"),
        ({"startingOffsetsByTimestampStrategy": "none"}, "must be error or latest"),
        (
            {"failOnDataLoss": "perhaps"},
            "'perhaps' of option failOnDataLoss: must be",
        ),
        ({"minPartitions": "0"}, "'0' of option minPartitions: must be a positive integer"),
        ({"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger does not apply to a batch read"),
        ({"commitGroup": "g"}, "commitGroup does not apply to a batch"),
    ],
)
def test_invalid_options_of_a_batch_are_named(extra, message):
    with pytest.raises(OptionError, match=message):
        batch(**extra)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets does not apply to a streaming read"),
        ({"maxTriggerDelay": "soon"}, "'soon' of option maxTriggerDelay: must be a duration"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, "must not exceed maxOffsets"),
    ],
)
def test_invalid_options_of_a_stream_are_named(extra, message):
    with pytest.raises(OptionError, match=message):
        stream(**extra)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"subscribe": "rides"}, "subscribe does not apply to a write"),
        ({"topics": "rides"}, "'topics'.*did you mean topic"),
        ({"kafka.acks": "2"}, "'2' of option kafka.acks: must be all"),
        ({"kafka.transactional.id": "t"}, "kafka.transactional.id cannot be set"),
        ({"kafka.compression.type": "rar"}, "none or gzip or snappy or lz4 or zstd"),
        ({"kafka.acks": "1", "kafka.enable.idempotence": "true"}, "requires kafka.acks=all"),
        (
            {"kafka.batch.size": "9000", "kafka.max.request.size": "5000"},
            "kafka.batch.size.*batch_bytes=9000, request_bytes=5000",
        ),
    ],
)
def test_invalid_options_of_a_sink_are_named(extra, message):
    with pytest.raises(OptionError, match=message):
        write_options({**HERE, **extra})


def test_options_of_an_exactly_once_sink():
    options = write_options(
        {
            **HERE,
            "exactlyOnce": "true",
            "transactionalIdPrefix": "rides",
            "batchId": "7",
            "kafka.transaction.timeout.ms": "90000",
        }
    )

    assert options.exactly_once == ExactlyOnceOptions("rides", 7, 90.0)
    assert write_options(HERE).exactly_once is None
    with pytest.raises(OptionError, match="batchId does not apply to a streaming write"):
        write_options({**HERE, "batchId": "7"}, is_stream=True)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"exactlyOnce": "true"}, "exactlyOnce=true requires transactionalIdPrefix: a name"),
        ({"transactionalIdPrefix": "rides"}, "transactionalIdPrefix requires exactlyOnce=true"),
        ({"batchId": "1"}, "batchId requires exactlyOnce=true"),
        (
            {"exactlyOnce": "true", "transactionalIdPrefix": "a/b"},
            "'a/b' of option transactionalIdPrefix: must be 1 to 200",
        ),
        (
            {"exactlyOnce": "true", "transactionalIdPrefix": "a", "kafka.acks": "1"},
            "requires kafka.acks=all",
        ),
        (
            {"exactlyOnce": "true", "transactionalIdPrefix": "a", "batchId": "-1"},
            "'-1' of option batchId: must be an integer",
        ),
    ],
)
def test_invalid_options_of_an_exactly_once_sink_are_named(extra, message):
    with pytest.raises(OptionError, match=message):
        write_options({**HERE, **extra})


def test_topics_and_bootstrap_servers_are_required():
    with pytest.raises(OptionError, match=r"one of subscribe.*none is set"):
        read_options(HERE, is_stream=False)
    with pytest.raises(OptionError, match=r"Missing option kafka.bootstrap.servers"):
        read_options({"subscribe": "rides"}, is_stream=False)


def test_every_option_is_documented():
    page = (Path(__file__).resolve().parents[2] / "docs" / "spark.md").read_text()
    names = [
        *options._READ,
        *options._BATCH,
        *options._STREAM,
        *options._WRITE,
        *options._BATCH_WRITE,
    ]

    for name in names:
        assert f"`{name}`" in page, name
    for name in kafka_keys._SUPPORTED:
        assert f"`{name}`" in page or f"`kafka.{name}`" in page, name


SECURED = {
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "SCRAM-SHA-512",
    "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required"
    ' username="alice" password="hunter2";',
    "kafka.ssl.truststore.location": "/etc/ca.pem",
}


def test_security_has_the_names_of_kafka_and_travels_to_executors():
    options = pickle.loads(pickle.dumps(batch(**SECURED)))

    security = options.connection.client.security
    assert security.security_protocol == "SASL_SSL"
    assert security.sasl_mechanism == "SCRAM-SHA-512"
    assert (security.sasl_username, security.sasl_password) == ("alice", "hunter2")
    assert security.ssl_truststore_location == "/etc/ca.pem"
    assert hash(options.connection)  # idle clients are kept by it
    assert write_options({**HERE, "topic": "t", **SECURED}).connection.client.security == security


def test_secrets_are_in_no_repr_and_in_no_error():
    assert "hunter2" not in repr(batch(**SECURED))
    for broken in (
        {"kafka.sasl.jaas.config": "hunter2"},
        {"kafka.sasl.jaas.config": SECURED["kafka.sasl.jaas.config"].rstrip(";")},
        {"kafka.sasl.mechanism": "NONE"},
        {"kafka.security.protocol": "PLAINTEXT"},
        {"kafka.ssl.keystore.key": "hunter2"},
    ):
        try:
            options = batch(**SECURED | broken)
        except OptionError as error:
            assert "hunter2" not in str(error)
        else:
            assert "hunter2" not in repr(options)
