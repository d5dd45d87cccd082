"""What a task does: a range of offsets, read from a real broker. No JVM is needed."""

import asyncio
import time
import uuid

import pytest

from harness.consumer_stage import ABORT, COMMIT, T0, Scripted, a_marker, a_transaction
from harness.daemon import Daemon
from ottla.client import ClientConfig, KafkaError, TimeoutConfig, TopicPartition
from ottla.client.blocking import Admin, Producer
from ottla.client.spark import DataLossError, OptionError, ranges
from ottla.client.spark.brokers import Brokers, brokers, close_idle
from ottla.client.spark.options import ConnectionOptions, Fetch, TopicSelection
from ottla.client.spark.planning import Range
from ottla.client.spark.ranges import read_range


@pytest.fixture
def link(bootstrap):
    return ConnectionOptions(
        bootstrap, ClientConfig(timeouts=TimeoutConfig(operation=20), allow_auto_create=False)
    )


def offsets_of(batches):
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def test_a_range_is_read_exactly(link, make_topic, fill):
    topic = make_topic(2)
    fill(topic, [0, 1], 1000)

    batches = list(read_range(Range(topic, 1, 250, 750), link, Fetch()))

    assert offsets_of(batches) == list(range(250, 750))
    assert batches[0].column("value")[0].as_py() == b"250"
    assert set(batches[0].column("partition").to_pylist()) == {1}


def test_a_range_of_many_fetches(link, make_topic, producer):
    topic = make_topic()
    producer.send_many(topic, [b"x" * 1000] * 5000)

    small = Fetch(partition_max_bytes=100_000)
    batches = list(read_range(Range(topic, 0, 10, 4990), link, small))

    assert offsets_of(batches) == list(range(10, 4990))
    assert len(batches) > 5


def test_the_next_task_finds_the_connection_that_the_last_one_made(link, make_topic, fill):
    topic = make_topic()
    fill(topic, [0], 10)

    list(read_range(Range(topic, 0, 0, 10), link, Fetch()))
    with brokers(link) as kept:
        pass
    list(read_range(Range(topic, 0, 0, 10), link, Fetch()))
    with brokers(link) as again:
        assert again is kept


def test_partitions_that_are_newer_than_what_is_known_are_found(link, make_topic, fill, admin):
    topic = make_topic()
    fill(topic, [0], 10)
    list(read_range(Range(topic, 0, 0, 10), link, Fetch()))

    admin.create_partitions(topic, 2)
    fill(topic, [1], 10)

    assert offsets_of(read_range(Range(topic, 1, 0, 10), link, Fetch())) == list(range(10))


def test_a_topic_that_is_deleted_is_a_loss(link, make_topic, fill, admin, monkeypatch):
    monkeypatch.setattr(ranges, "_GONE_SECONDS", 0.2)
    topic = make_topic()
    fill(topic, [0], 10)
    admin.delete_topics(topic)

    with pytest.raises(DataLossError, match=f"{topic}-0 is gone"):
        list(read_range(Range(topic, 0, 0, 10), link, Fetch()))


def test_a_task_that_is_given_up_leaves_nothing_behind(link, make_topic, producer):
    topic = make_topic()
    producer.send_many(topic, [b"x" * 1000] * 5000)

    batches = read_range(Range(topic, 0, 0, 5000), link, Fetch(partition_max_bytes=100_000))
    next(batches)
    batches.close()

    assert len(offsets_of(read_range(Range(topic, 0, 0, 5000), link, Fetch()))) == 5000


def test_what_was_deleted_is_a_loss(link, make_topic, fill, admin, caplog):
    topic = make_topic()
    fill(topic, [0], 100)
    admin.delete_records({TopicPartition(topic, 0): 60})

    with pytest.raises(DataLossError, match=f"Offsets 10 to 59 of {topic}-0 are gone.*failOnDat"):
        list(read_range(Range(topic, 0, 10, 80), link, Fetch()))

    tolerant = Fetch(fails_on_data_loss=False)
    assert offsets_of(read_range(Range(topic, 0, 10, 80), link, tolerant)) == list(range(60, 80))
    assert offsets_of(read_range(Range(topic, 0, 10, 50), link, tolerant)) == []
    assert "failOnDataLoss is false" in caplog.text


def test_a_log_that_is_shorter_than_it_was_is_a_loss(link, make_topic, fill):
    topic = make_topic()
    fill(topic, [0], 10)

    with pytest.raises(DataLossError, match=f"{topic}-0 ends before offset 50: 30 are missing"):
        list(read_range(Range(topic, 0, 50, 80), link, Fetch()))
    assert (
        offsets_of(read_range(Range(topic, 0, 50, 80), link, Fetch(fails_on_data_loss=False))) == []
    )


def test_records_that_do_not_come_are_not_waited_for_for_ever(link, make_topic, fill, bootstrap):
    topic = make_topic()
    fill(topic, [0], 10)
    impatient = ConnectionOptions(bootstrap, ClientConfig(timeouts=TimeoutConfig(operation=3)))

    with pytest.raises(DataLossError, match=r"ends at offset 10, for 3 s now: offsets 10 to 19"):
        list(read_range(Range(topic, 0, 0, 20), impatient, Fetch()))
    tolerant = Fetch(fails_on_data_loss=False)
    assert offsets_of(read_range(Range(topic, 0, 0, 20), impatient, tolerant)) == list(range(10))


def test_gaps_are_nothing_unusual(tmp_path):
    quick = ["--set", "log.cleaner.backoff.ms=50"]
    with Daemon(tmp_path, *quick) as broker, Admin(broker.address) as admin:
        topic, place = "compacted", TopicPartition("compacted", 0)
        admin.create_topic(
            topic,
            configs={
                "cleanup.policy": "compact",
                "segment.bytes": "4096",
                "min.cleanable.dirty.ratio": "0.01",
            },
        )
        link = ConnectionOptions(broker.address, ClientConfig())
        with Producer(broker.address) as producer:
            for number in range(300):
                producer.send(topic, b"%d" % number + b"." * 100, key=b"%d" % (number % 3))
        end = admin.end_offsets(place)[place]

        deadline = time.monotonic() + 60
        while len(found := offsets_of(read_range(Range(topic, 0, 0, end), link, Fetch()))) > 100:
            assert time.monotonic() < deadline, len(found)
            time.sleep(0.1)

        assert found[-1] == 299
        assert offsets_of(read_range(Range(topic, 0, 5, 10), link, Fetch())) == []
        close_idle()


async def test_transactions_that_were_aborted_and_markers_are_passed_over():
    async with Scripted() as stage:
        stage.logs[T0] += a_transaction(1, 0, 1) + a_transaction(2, 2, 3)
        stage.logs[T0] += a_marker(1, 4, ABORT) + a_marker(2, 5, COMMIT)
        stage.aborted[T0] = [(1, 0)]
        link = ConnectionOptions(stage.address, ClientConfig())

        def read(fetch):
            found = offsets_of(read_range(Range("t", 0, 0, 6), link, fetch))
            close_idle()
            return found

        assert await asyncio.to_thread(read, Fetch(is_committed=True)) == [2, 3]
        assert await asyncio.to_thread(read, Fetch()) == [0, 1, 2, 3]


def test_no_headers_are_null_as_with_sparks_own_source(link, make_topic, producer):
    topic = make_topic()
    for headers in ([], [("a", b"1"), ("b", None)], [], [("c", b"")]):
        producer.send(topic, b"x", headers=headers)

    (batch,) = read_range(Range(topic, 0, 0, 4), link, Fetch(has_headers=True))

    assert batch.column("headers").to_pylist() == [
        None,
        [{"key": "a", "value": b"1"}, {"key": "b", "value": None}],
        None,
        [{"key": "c", "value": b""}],
    ]
    batch.validate(full=True)


def test_a_broker_that_restarts_is_waited_for(tmp_path):
    with Daemon(tmp_path) as broker:
        link = ConnectionOptions(broker.address, ClientConfig())
        with Producer(broker.address) as producer:
            producer.send_many("t", [b"x" * 1000] * 3000)

        batches = read_range(Range("t", 0, 0, 3000), link, Fetch(partition_max_bytes=100_000))
        first = next(batches)
        broker.kill()
        broker.start()

        assert offsets_of([first, *batches]) == list(range(3000))
        close_idle()


def test_topics_that_are_not_there_are_named(link, make_topic):
    topic = make_topic(2)
    way = Brokers(link)

    with pytest.raises(OptionError, match="there is no topic nowhere"):
        way.partitions_of(TopicSelection(names=(topic, "nowhere")))
    with pytest.raises(OptionError, match=f"there is no partition {topic}-7"):
        way.partitions_of(
            TopicSelection(places=(TopicPartition(topic, 0), TopicPartition(topic, 7)))
        )
    assert way.partitions_of(TopicSelection(names=(topic, "nowhere")), may_be_missing=True) == {
        TopicPartition(topic, 0),
        TopicPartition(topic, 1),
    }
    way.close()


def test_topics_are_found_by_a_pattern_that_their_whole_name_matches(link, make_topic):
    mark = uuid.uuid4().hex[:6]
    one, two = make_topic(1, f"{mark}-a"), make_topic(1, f"{mark}-b")
    way = Brokers(link)

    found = way.partitions_of(TopicSelection(pattern=f"{mark}-a.*"))
    assert found == {TopicPartition(one, 0)}
    assert {place.topic for place in way.partitions_of(TopicSelection(pattern=f"{mark}.*"))} == {
        one,
        two,
    }
    assert way.partitions_of(TopicSelection(pattern=mark)) == set()
    way.close()


def test_what_a_group_has_read_is_committed_for_it(link, make_topic, fill, admin):
    topic = make_topic()
    fill(topic, [0], 10)
    way = Brokers(link)

    way.commit("told", {TopicPartition(topic, 0): 7}, timeout=20)

    assert admin.group_lag("told")[TopicPartition(topic, 0)].lag == 3
    with pytest.raises(KafkaError):
        way.commit("", {TopicPartition(topic, 0): 7}, timeout=20)
    way.close()
