"""The sink: rows into topics."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.errors import PySparkException

from ottla.client import TopicPartition
from ottla.client.blocking import Consumer

HEADERS = "headers array<struct<key:string,value:binary>>"


def records_in(bootstrap, topic, count):
    with Consumer(bootstrap, topic) as consumer:
        return sorted(
            (consumer.getone(timeout=60) for _ in range(count)),
            key=lambda record: (record.partition, record.offset),
        )


def test_all_columns_round_trip(spark, bootstrap, reader, sink, make_topic):
    topic = make_topic(3)
    rows = [
        (b"k%d" % number, b"v%d" % number, number % 3, [("n", b"%d" % number), ("none", None)])
        for number in range(60)
    ]
    frame = spark.createDataFrame(rows, f"key binary, value binary, partition int, {HEADERS}")

    sink(frame.write, topic=topic, **{"kafka.compression.type": "zstd"}).mode("append").save()

    found = reader(subscribe=topic, includeHeaders="true").load().collect()
    assert sorted(
        (
            bytes(row.key),
            bytes(row.value),
            row.partition,
            [(one.key, one.value and bytes(one.value)) for one in row.headers],
        )
        for row in found
    ) == sorted(rows)


def test_a_topic_column_strings_and_tombstones_are_written(spark, bootstrap, sink, make_topic):
    one, two = make_topic(), make_topic()
    rows = [(one, "a", "1"), (two, "b", None), (one, None, "3")]
    frame = spark.createDataFrame(rows, "topic string, key string, value string").coalesce(1)

    sink(frame.write).mode("append").save()

    written = [(record.key, record.value) for record in records_in(bootstrap, one, 2)]
    assert written == [(b"a", b"1"), (None, b"3")]
    (record,) = records_in(bootstrap, two, 1)
    assert (record.key, record.value) == (b"b", None)


def test_keys_map_to_the_same_partition_as_with_other_clients(
    spark, bootstrap, sink, make_topic, producer
):
    ours, theirs = make_topic(5), make_topic(5)
    keys = [b"key-%d" % number for number in range(20)]
    frame = spark.createDataFrame([(key, key) for key in keys], "key binary, value binary")

    sink(frame.write, topic=ours).mode("append").save()
    for key in keys:
        producer.send(theirs, key, key=key)

    partitions_and_keys = [
        {record.key: record.partition for record in records_in(bootstrap, topic, 20)}
        for topic in (ours, theirs)
    ]
    assert partitions_and_keys[0] == partitions_and_keys[1]


def test_timestamps_are_written_with_include_timestamp(spark, bootstrap, sink, make_topic):
    topic = make_topic()
    frame = spark.sql("SELECT 'x' AS value, timestamp_millis(1600000000123) AS timestamp")

    sink(frame.write, topic=topic, includeTimestamp="true").mode("append").save()
    sink(frame.write, topic=topic).mode("append").save()

    kept, now = records_in(bootstrap, topic, 2)
    assert kept.timestamp == 1600000000123
    assert now.timestamp > 1700000000000


def test_a_stream_from_topic_to_topic(stream, sink, admin, make_topic, fill, tmp_path):
    source, target = make_topic(2), make_topic(2)
    fill(source, [0, 1], 100)
    frame = stream(subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="80").load()

    query = (
        sink(frame.select("key", "value", "partition").writeStream, topic=target)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)

    assert admin.end_offsets(target) == {
        TopicPartition(target, 0): 100,
        TopicPartition(target, 1): 100,
    }


def test_each_row_is_written_once_despite_a_broker_crash(
    spark, brokers, sink, reader, admin, make_topic
):
    topic = make_topic(3)
    frame = spark.range(0, 200_000, 1, 2).selectExpr(
        "string(id) AS key", "repeat('x', 100) AS value"
    )

    def kill_when_something_is_written():
        deadline = time.monotonic() + 300
        while not (written := sum(admin.end_offsets(topic).values())):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        brokers[-1].kill()
        brokers[-1].start()
        return written

    with ThreadPoolExecutor(1) as pool:
        killing = pool.submit(kill_when_something_is_written)
        sink(frame.write, topic=topic).mode("append").save()
        assert killing.result() < 200_000, "all was written before the broker was killed"

    found = reader(subscribe=topic).load().selectExpr("bigint(string(key)) AS id")
    total = found.selectExpr("count(*)", "count(DISTINCT id)", "max(id)").first()
    assert tuple(total) == (200_000, 200_000, 199_999)


def test_complete_mode_writes_the_whole_result_with_each_batch(
    stream, sink, bootstrap, make_topic, fill, tmp_path
):
    source, target = make_topic(), make_topic()
    fill(source, [0], 100)
    frame = stream(subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="60").load()

    query = (
        sink(frame.groupBy().count().selectExpr("string(count) AS value").writeStream, topic=target)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .outputMode("complete")
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)

    assert [record.value for record in records_in(bootstrap, target, 2)] == [b"60", b"100"]


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("1 AS number", {"topic": "t"}, "Missing column 'value'"),
        ("'x' AS value", {}, "Missing topic: set the option 'topic'"),
        ("1 AS value", {"topic": "t"}, "Column value is int: must be binary or string"),
        (
            "'x' AS value, 'y' AS headers",
            {"topic": "t"},
            "Column headers is string: must be",
        ),
        (
            "'x' AS value",
            {"topic": "t", "includeTimestamp": "true"},
            "requires a column 'timestamp'",
        ),
        ("'x' AS value", {"topic": "t", "kafka.ack": "1"}, "did you mean kafka.acks"),
        ("'x' AS value, CAST(NULL AS STRING) AS topic", {}, "A row has no topic"),
    ],
)
def test_invalid_columns_are_named(spark, sink, columns, options, message):
    with pytest.raises(PySparkException, match=message):
        sink(spark.sql(f"SELECT {columns}").write, **options).mode("append").save()


def test_a_topic_is_not_overwritten(spark, sink):
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        sink(spark.sql("SELECT 'x' AS value").write, topic="t").mode("overwrite").save()


def test_an_incomplete_write_is_an_error_even_in_optimized_mode(bootstrap, make_topic):
    program = """if True:
        import sys
        import pyarrow as pa
        from ottla.client.blocking import Producer
        from ottla.client.spark import writer
        from ottla.client.spark.options import write_options

        class ForgetfulProducer(Producer):
            def send_arrow(self, topic, data):
                return super().send_arrow(topic, data)[:-1]

        writer.Producer = ForgetfulProducer
        rows = pa.RecordBatch.from_pydict({"value": [b"a", b"b"]})
        options = {"kafka.bootstrap.servers": sys.argv[1], "topic": sys.argv[2]}
        writer.write_all([rows], write_options(options))
    """
    done = subprocess.run(
        [sys.executable, "-O", "-c", program, bootstrap, make_topic()],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert done.returncode == 1
    assert "IncompleteWriteError: The task has 2 rows, but 0 were acknowledged" in done.stderr
