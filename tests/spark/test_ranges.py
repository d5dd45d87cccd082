"""Ranges of offsets, read from a real broker without a JVM."""

import asyncio
import time
import uuid

import pytest

from harness.consumer_stage import ABORT, COMMIT, T0, ScriptedBrokers, a_marker, a_transaction
from harness.daemon import Daemon
from ottla.client import ClientConfig, KafkaError, TimeoutConfig, TopicPartition
from ottla.client.blocking import Admin, Producer
from ottla.client.spark import DataLossError, OptionError, ranges
from ottla.client.spark.broker_client import BrokerClient, broker_client
from ottla.client.spark.options import ConnectionOptions, FetchOptions, TopicSelection
from ottla.client.spark.planning import PartitionRange
from ottla.client.spark.ranges import read_range


@pytest.fixture
def connection(bootstrap):
    return ConnectionOptions(
        bootstrap, ClientConfig(timeouts=TimeoutConfig(operation=20), allow_auto_create=False)
    )


def offsets_of(batches):
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def test_a_range_is_read_exactly(connection, make_topic, fill):
    topic = make_topic(2)
    fill(topic, [0, 1], 1000)

    batches = list(read_range(PartitionRange(topic, 1, 250, 750), connection, FetchOptions()))

    assert offsets_of(batches) == list(range(250, 750))
    assert batches[0].column("value")[0].as_py() == b"250"
    assert set(batches[0].column("partition").to_pylist()) == {1}


def test_a_range_takes_several_fetches(connection, make_topic, producer):
    topic = make_topic()
    producer.send_many(topic, [b"x" * 1000] * 5000)

    small = FetchOptions(partition_max_bytes=100_000)
    batches = list(read_range(PartitionRange(topic, 0, 10, 4990), connection, small))

    assert offsets_of(batches) == list(range(10, 4990))
    assert len(batches) > 5


def test_the_next_task_reuses_the_client_of_the_last_one(connection, make_topic, fill):
    topic = make_topic()
    fill(topic, [0], 10)

    list(read_range(PartitionRange(topic, 0, 0, 10), connection, FetchOptions()))
    with broker_client(connection) as kept:
        pass
    list(read_range(PartitionRange(topic, 0, 0, 10), connection, FetchOptions()))
    with broker_client(connection) as again:
        assert again is kept


def test_partitions_newer_than_the_cached_metadata_are_read(connection, make_topic, fill, admin):
    topic = make_topic()
    fill(topic, [0], 10)
    list(read_range(PartitionRange(topic, 0, 0, 10), connection, FetchOptions()))

    admin.create_partitions(topic, 2)
    fill(topic, [1], 10)

    assert offsets_of(
        read_range(PartitionRange(topic, 1, 0, 10), connection, FetchOptions())
    ) == list(range(10))


def test_a_deleted_topic_is_a_data_loss(connection, make_topic, fill, admin, monkeypatch):
    monkeypatch.setattr(ranges, "_DELETED_SECONDS", 0.2)
    topic = make_topic()
    fill(topic, [0], 10)
    admin.delete_topics(topic)

    with pytest.raises(DataLossError, match=f"{topic}-0 does not exist any more"):
        list(read_range(PartitionRange(topic, 0, 0, 10), connection, FetchOptions()))


def test_an_abandoned_task_does_not_affect_the_next_one(connection, make_topic, producer):
    topic = make_topic()
    producer.send_many(topic, [b"x" * 1000] * 5000)

    batches = read_range(
        PartitionRange(topic, 0, 0, 5000), connection, FetchOptions(partition_max_bytes=100_000)
    )
    next(batches)
    batches.close()

    assert (
        len(offsets_of(read_range(PartitionRange(topic, 0, 0, 5000), connection, FetchOptions())))
        == 5000
    )


def test_deleted_records_are_a_data_loss(connection, make_topic, fill, admin, caplog):
    topic = make_topic()
    fill(topic, [0], 100)
    admin.delete_records({TopicPartition(topic, 0): 60})

    with pytest.raises(DataLossError, match=f"Offsets 10 to 59 of {topic}-0 do not.*failOnDat"):
        list(read_range(PartitionRange(topic, 0, 10, 80), connection, FetchOptions()))

    tolerant = FetchOptions(fail_on_data_loss=False)
    assert offsets_of(read_range(PartitionRange(topic, 0, 10, 80), connection, tolerant)) == list(
        range(60, 80)
    )
    assert offsets_of(read_range(PartitionRange(topic, 0, 10, 50), connection, tolerant)) == []
    assert "failOnDataLoss is false" in caplog.text


def test_a_log_that_became_shorter_is_a_data_loss(connection, make_topic, fill):
    topic = make_topic()
    fill(topic, [0], 10)

    with pytest.raises(DataLossError, match=f"{topic}-0 ends before offset 50: 30 offsets"):
        list(read_range(PartitionRange(topic, 0, 50, 80), connection, FetchOptions()))
    tolerant = FetchOptions(fail_on_data_loss=False)
    assert offsets_of(read_range(PartitionRange(topic, 0, 50, 80), connection, tolerant)) == []


def test_missing_records_are_a_data_loss_after_the_operation_timeout(
    connection, make_topic, fill, bootstrap
):
    topic = make_topic()
    fill(topic, [0], 10)
    impatient = ConnectionOptions(bootstrap, ClientConfig(timeouts=TimeoutConfig(operation=3)))

    with pytest.raises(DataLossError, match=r"has ended at offset 10 for 3 s: offsets 10 to 19"):
        list(read_range(PartitionRange(topic, 0, 0, 20), impatient, FetchOptions()))
    tolerant = FetchOptions(fail_on_data_loss=False)
    assert offsets_of(read_range(PartitionRange(topic, 0, 0, 20), impatient, tolerant)) == list(
        range(10)
    )


def test_offset_gaps_are_not_a_data_loss(tmp_path):
    quick = ["--set", "log.cleaner.backoff.ms=50"]
    with Daemon(tmp_path, *quick) as broker, Admin(broker.address) as admin:
        topic, tp = "compacted", TopicPartition("compacted", 0)
        admin.create_topic(
            topic,
            configs={
                "cleanup.policy": "compact",
                "segment.bytes": "4096",
                "min.cleanable.dirty.ratio": "0.01",
            },
        )
        connection = ConnectionOptions(broker.address, ClientConfig())
        with Producer(broker.address) as producer:
            for number in range(300):
                producer.send(topic, b"%d" % number + b"." * 100, key=b"%d" % (number % 3))
        end = admin.end_offsets(tp)[tp]

        deadline = time.monotonic() + 60
        everything = PartitionRange(topic, 0, 0, end)
        while len(found := offsets_of(read_range(everything, connection, FetchOptions()))) > 100:
            assert time.monotonic() < deadline, len(found)
            time.sleep(0.1)

        assert found[-1] == 299
        assert (
            offsets_of(read_range(PartitionRange(topic, 0, 5, 10), connection, FetchOptions()))
            == []
        )


def test_batches_that_recovery_set_aside_are_a_data_loss(tmp_path, caplog):
    with Daemon(tmp_path) as broker:
        with Producer(broker.address) as producer:
            for number in range(10):
                producer.send("t", b"record-%d" % number)
        broker.kill()
        (segment,) = (tmp_path / "data").glob("t-0/*.log")
        data = segment.read_bytes()
        segment.write_bytes(data.replace(b"record-4", b"record-?"))
        broker.start()
        connection = ConnectionOptions(broker.address, ClientConfig())

        def read(start, end, **options):
            wanted = PartitionRange("t", 0, start, end)
            return offsets_of(read_range(wanted, connection, FetchOptions(**options)))

        for start, end in ((0, 10), (4, 10), (4, 5), (2, 5)):
            with pytest.raises(DataLossError, match=r"Offsets 4 to 4 of t-0 are missing.*recovery"):
                read(start, end)
        assert read(0, 4) == [0, 1, 2, 3]
        assert read(5, 10) == [5, 6, 7, 8, 9]
        assert read(0, 10, fail_on_data_loss=False) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
        assert "Offsets 4 to 4 of t-0 are missing" in caplog.text


async def test_aborted_transactions_and_control_batches_are_skipped():
    async with ScriptedBrokers() as stage:
        stage.logs[T0] += a_transaction(1, 0, 1) + a_transaction(2, 2, 3)
        stage.logs[T0] += a_marker(1, 4, ABORT) + a_marker(2, 5, COMMIT)
        stage.aborted[T0] = [(1, 0)]
        connection = ConnectionOptions(stage.address, ClientConfig())

        def read(fetch):
            return offsets_of(read_range(PartitionRange("t", 0, 0, 6), connection, fetch))

        assert await asyncio.to_thread(read, FetchOptions(read_committed=True)) == [2, 3]
        assert await asyncio.to_thread(read, FetchOptions()) == [0, 1, 2, 3]


def test_empty_headers_are_null_as_in_sparks_own_source(connection, make_topic, producer):
    topic = make_topic()
    for headers in ([], [("a", b"1"), ("b", None)], [], [("c", b"")]):
        producer.send(topic, b"x", headers=headers)

    (batch,) = read_range(
        PartitionRange(topic, 0, 0, 4), connection, FetchOptions(has_headers=True)
    )

    assert batch.column("headers").to_pylist() == [
        None,
        [{"key": "a", "value": b"1"}, {"key": "b", "value": None}],
        None,
        [{"key": "c", "value": b""}],
    ]
    batch.validate(full=True)


def test_a_range_is_read_across_a_broker_restart(tmp_path):
    with Daemon(tmp_path) as broker:
        connection = ConnectionOptions(broker.address, ClientConfig())
        with Producer(broker.address) as producer:
            producer.send_many("t", [b"x" * 1000] * 3000)

        batches = read_range(
            PartitionRange("t", 0, 0, 3000), connection, FetchOptions(partition_max_bytes=100_000)
        )
        first = next(batches)
        broker.kill()
        broker.start()

        assert offsets_of([first, *batches]) == list(range(3000))


def test_unknown_topics_and_partitions_are_named(connection, make_topic):
    topic = make_topic(2)
    client = BrokerClient(connection)

    with pytest.raises(OptionError, match="Unknown topic nowhere"):
        client.partitions_of(TopicSelection(names=(topic, "nowhere")))
    with pytest.raises(OptionError, match=f"Unknown partition {topic}-7"):
        client.partitions_of(
            TopicSelection(partitions=(TopicPartition(topic, 0), TopicPartition(topic, 7)))
        )
    assert client.partitions_of(TopicSelection(names=(topic, "nowhere")), may_be_missing=True) == {
        TopicPartition(topic, 0),
        TopicPartition(topic, 1),
    }
    client.close()


def test_a_pattern_must_match_the_whole_topic_name(connection, make_topic):
    mark = uuid.uuid4().hex[:6]
    one, two = make_topic(1, f"{mark}-a"), make_topic(1, f"{mark}-b")
    client = BrokerClient(connection)

    found = client.partitions_of(TopicSelection(pattern=f"{mark}-a.*"))
    assert found == {TopicPartition(one, 0)}
    assert {tp.topic for tp in client.partitions_of(TopicSelection(pattern=f"{mark}.*"))} == {
        one,
        two,
    }
    assert client.partitions_of(TopicSelection(pattern=mark)) == set()
    client.close()


def test_offsets_are_committed_for_a_group(connection, make_topic, fill, admin):
    topic = make_topic()
    fill(topic, [0], 10)
    client = BrokerClient(connection)

    client.commit("lag", {TopicPartition(topic, 0): 7}, timeout=20)

    assert admin.group_lag("lag")[TopicPartition(topic, 0)].lag == 3
    with pytest.raises(KafkaError):
        client.commit("", {TopicPartition(topic, 0): 7}, timeout=20)
    client.close()
