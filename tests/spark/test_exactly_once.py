"""The exactly-once sink: what consumers with isolation level read_committed see."""

import os
import random
import time

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from ottla.client import TopicPartition
from ottla.client.blocking import Admin, Producer
from ottla.client.spark.commit import DriverSession
from ottla.client.spark.errors import FencedError, LostRowsError
from ottla.client.spark.exactly_once import stage
from ottla.client.spark.options import write_options
from ottla.client.spark.progress import (
    COMMIT_KEY,
    BatchCommit,
    driver_id,
    encode_commit,
    merge_ranges,
    progress_topic,
    task_id,
)
from spark.kill_points import KillRun, read_committed

QUERY = "5c1f"


def settled(bootstrap, topic):
    """Wait until no transaction is open, and return the values that are visible, sorted."""
    deadline = time.monotonic() + 60
    with Admin(bootstrap) as admin:
        # A commit may be acknowledged shortly before all of its markers are written.
        while admin.end_offsets(topic, isolation="read_committed") != admin.end_offsets(topic):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    return committed(bootstrap, topic)


def committed(bootstrap, topic):
    return sorted(read_committed(bootstrap, topic))


@pytest.fixture
def exactly_once(sink, tmp_path):
    """Return a writer with the options of an exactly-once sink."""
    return lambda writer, **options: sink(
        writer, **{"exactlyOnce": "true", "transactionalIdPrefix": tmp_path.name, **options}
    )


@pytest.fixture
def copy(stream, exactly_once, tmp_path):
    """Copy topics in micro-batches, until all that exists is copied."""

    def copy(source, target, checkpoint="checkpoint", **options):
        reading = stream(subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="50")
        query = (
            exactly_once(reading.load().select("value").writeStream, topic=target, **options)
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300)
        assert query.exception() is None

    return copy


def test_rows_of_micro_batches_are_visible_once(copy, bootstrap, admin, make_topic, fill, tmp_path):
    source, target = make_topic(2), make_topic(2)
    fill(source, [0], 60)
    fill(source, [1], 60, first=60)

    copy(source, target)

    assert settled(bootstrap, target) == list(range(120))
    committed_batches = tmp_path / "checkpoint" / "commits"
    assert len([path for path in committed_batches.iterdir() if path.name.isdigit()]) == 3


def test_a_batch_that_was_committed_is_not_written_again_after_a_restart(
    copy, bootstrap, admin, make_topic, fill, tmp_path
):
    source, target = make_topic(), make_topic()
    fill(source, [0], 60)
    copy(source, target)
    end = admin.end_offsets(target)

    # As if the driver was killed before it had recorded the last batch in its checkpoint.
    (tmp_path / "checkpoint" / "commits" / "1").unlink()
    (tmp_path / "checkpoint" / "commits" / ".1.crc").unlink(missing_ok=True)
    copy(source, target)

    assert settled(bootstrap, target) == list(range(60))
    assert admin.end_offsets(target) == end
    assert (tmp_path / "checkpoint" / "commits" / "1").exists()


def test_a_new_checkpoint_is_a_new_query(copy, bootstrap, make_topic, fill):
    source, target = make_topic(), make_topic()
    fill(source, [0], 60)

    copy(source, target)
    copy(source, target, checkpoint="another")

    assert settled(bootstrap, target) == sorted(2 * list(range(60)))


def test_nothing_of_a_failed_job_is_visible(spark, exactly_once, bootstrap, make_topic):
    topic = make_topic()
    frame = spark.range(0, 50_000, 1, 2).selectExpr(
        "string(if(id = 49999, raise_error('the last row'), id)) AS value"
    )

    with pytest.raises(PySparkException, match="the last row"):
        exactly_once(frame.write, topic=topic).mode("append").save()

    assert len(read_committed(bootstrap, topic, "read_uncommitted")) >= 25_000
    assert settled(bootstrap, topic) == []
    # Its transactions are aborted: what follows is visible at once.
    plain = spark.sql("SELECT '7' AS value")
    exactly_once(plain.write, topic=topic).mode("append").save()
    assert settled(bootstrap, topic) == [7]


def test_a_batch_write_with_an_id_is_written_once(spark, exactly_once, bootstrap, make_topic):
    topic = make_topic()

    for batch_id, value in [(1, "10"), (1, "10"), (2, "20"), (1, "10")]:
        frame = spark.sql(f"SELECT '{value}' AS value")
        exactly_once(frame.write, topic=topic, batchId=batch_id).mode("append").save()

    assert settled(bootstrap, topic) == [10, 20]


@pytest.mark.real_time
@pytest.mark.timeout(900)  # drivers start slowly on a busy machine
def test_each_row_is_visible_once_when_processes_are_killed(
    brokers, stream, exactly_once, tmp_path
):
    seed = int(os.environ.get("KILLS_SEED") or random.SystemRandom().randrange(2**32))
    print(f"To repeat it, set KILLS_SEED={seed}")
    run = KillRun(brokers, tmp_path / f"kills-{seed}", seed=seed)
    run.run(3, ("worker", "broker", "driver"), timeouts_ms=(60_000,))

    reading = stream(subscribe=run.source, startingOffsets="earliest").load()
    query = (
        exactly_once(
            reading.select("key", "value").writeStream,
            topic=run.target,
            transactionalIdPrefix=run.folder.name,
        )
        .option("checkpointLocation", str(run.folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)

    settled(brokers.bootstrap, run.target)
    run.check()


# Without Spark: the steps of drivers and tasks, in the order that a crash leaves.


@pytest.fixture
def options(bootstrap, make_topic, tmp_path):
    return write_options(
        {
            "kafka.bootstrap.servers": bootstrap,
            "topic": make_topic(2),
            "exactlyOnce": "true",
            "transactionalIdPrefix": tmp_path.name,
        }
    )


def staged(options, first, partition=0, attempt=0, count=10):
    """Write numbers as a task does."""
    rows = pa.RecordBatch.from_pydict({"value": [b"%d" % n for n in range(first, first + count)]})
    transactional_id = task_id(options.exactly_once.prefix, partition, attempt)
    transaction, ranges = stage(iter([rows]), options, transactional_id)
    return transaction, ranges


def commit_of(batch_id, *tasks):
    transactions = [transaction for transaction, _ in tasks]
    return BatchCommit(QUERY, batch_id, transactions, merge_ranges(one for _, one in tasks))


def write_commit_record(options, commit):
    """Do the first half of a commit, as a driver that is killed then."""
    prefix = options.exactly_once.prefix
    with (
        Producer(options.connection.bootstrap, transactional_id=driver_id(prefix)) as producer,
        producer.transaction(),
    ):
        producer.send(progress_topic(prefix), encode_commit(commit), key=COMMIT_KEY, partition=0)


def visible(options):
    return settled(options.connection.bootstrap, options.topic)


def test_a_driver_completes_the_commit_of_one_that_was_killed(options):
    DriverSession(options).close()
    commit = commit_of(0, staged(options, 0), staged(options, 10, partition=1))
    write_commit_record(options, commit)
    assert committed(options.connection.bootstrap, options.topic) == []

    with DriverSession(options) as session:
        assert session.progress.covers(QUERY, 0)

    assert visible(options) == list(range(20))
    with DriverSession(options) as session:
        assert session.progress.commit == commit


def test_rows_of_a_driver_that_was_killed_before_the_commit_stay_invisible(options):
    with DriverSession(options):
        staged(options, 0)
        staged(options, 10, partition=5, attempt=1)

    with DriverSession(options) as session:
        assert session.progress.commit is None
        session.commit(commit_of(0, staged(options, 0)))
        session.abort_open()

    assert visible(options) == list(range(10))


def test_rows_are_copied_if_their_transaction_was_aborted_before_the_commit(options):
    with DriverSession(options) as session:
        tasks = [staged(options, 0), staged(options, 10, partition=1)]
        abort(options, tasks[1][0])

        session.commit(commit_of(0, *tasks))

    assert visible(options) == list(range(20))


def test_rows_are_copied_if_their_transaction_was_aborted_after_the_commit(options):
    DriverSession(options).close()
    tasks = [staged(options, 0), staged(options, 10, partition=1), staged(options, 20, partition=2)]
    write_commit_record(options, commit_of(0, *tasks))
    abort(options, tasks[1][0])

    for _ in range(2):
        with DriverSession(options) as session:
            assert session.progress.covers(QUERY, 0)
            assert session.progress.is_complete

    assert visible(options) == list(range(30))


def test_a_committed_transaction_is_not_copied_when_its_id_was_used_again(options):
    DriverSession(options).close()
    task = staged(options, 0)
    write_commit_record(options, commit_of(0, task))
    DriverSession(options).close()
    # The same commit record again, now without a completion record behind it.
    write_commit_record(options, commit_of(0, task))
    staged(options, 100)

    with DriverSession(options) as session:
        assert session.progress.is_complete
        session.abort_open()

    assert visible(options) == list(range(10))


def test_a_commit_is_refused_if_aborted_rows_are_gone(options, admin):
    with DriverSession(options) as session:
        task = staged(options, 0)
        abort(options, task[0])
        tp = TopicPartition(options.topic, task[0].partition)
        admin.delete_records({tp: task[0].offset + 5})

        with pytest.raises(LostRowsError, match="does not exist any more"):
            session.commit(commit_of(0, task))

    assert visible(options) == []
    with DriverSession(options) as session:
        assert session.progress.commit is None


def test_an_older_driver_is_fenced(options):
    with DriverSession(options) as old:
        task = staged(options, 0)
        with DriverSession(options) as new:
            with pytest.raises(FencedError, match="another driver was started"):
                old.commit(commit_of(0, task))
            assert new.progress.commit is None


def abort(options, transaction):
    """Abort a transaction as a task that comes back does: it has the same transactional id."""
    with Producer(
        options.connection.bootstrap, transactional_id=transaction.transactional_id
    ) as producer:
        producer.start()
