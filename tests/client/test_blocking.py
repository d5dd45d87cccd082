"""The blocking clients: the same methods, on a thread of their own."""

import asyncio
import gc
import inspect
import multiprocessing
import signal
import subprocess
import sys
import threading
import time
from uuid import uuid4

import pytest

from harness.daemon import Daemon, shown_on_failure
from ottla import client
from ottla.client import ClosedError, KafkaError, ProducerRecord, TopicPartition, blocking
from ottla.client.blocking import Admin, Consumer, Producer
from ottla.client.blocking.client import BlockingMethod


@pytest.fixture(scope="module")
def broker_of_the_module(tmp_path_factory):
    settings = ("--set", "log.durability=page-cache")
    with Daemon(tmp_path_factory.mktemp("broker"), *settings) as started:
        yield started


@pytest.fixture
def broker(request, broker_of_the_module):
    with shown_on_failure(request, [broker_of_the_module]):
        yield broker_of_the_module


@pytest.fixture
def topic(broker):
    name = f"t-{uuid4().hex[:12]}"
    with Admin(broker.address) as admin:
        admin.create_topic(name, partitions=2)
    return name


def threads():
    """Threads, except those of a shared broker in this process, which come and go."""
    return {
        one for one in threading.enumerate() if not one.name.startswith(("ottla-broker", "flush"))
    }


def methods(kind):
    return {
        name
        for name, value in inspect.getmembers(kind)
        if not name.startswith("_")
        and (inspect.isfunction(value) or isinstance(value, (property, BlockingMethod)))
    }


@pytest.mark.parametrize("name", ["Admin", "Producer", "Consumer"])
def test_every_method_has_a_blocking_counterpart(name):
    async_class, blocking_class = getattr(client, name), getattr(blocking, name)

    missing = (
        methods(async_class) - methods(blocking_class) - {"start"}
    )  # the constructor starts it

    assert not missing, f"client/blocking/{name.lower()}.py lacks {', '.join(sorted(missing))}"


def test_records_are_produced_and_consumed(broker, topic):
    with Producer(broker.address) as producer:
        metadata = producer.send(topic, b"first", key=b"k", headers={"a": b"b"})
        later = [producer.enqueue(topic, b"%d" % number) for number in range(10)]
        assert {one.result().topic for one in later} == {topic}
        written = producer.send_many(topic, (b"x" for _ in range(12_000)))
        producer.send_many(topic, [ProducerRecord(b"last", partition=1)])
        producer.flush()

    assert metadata.offset == 0
    assert sum(part.record_count for part in written) == 12_000
    found = []
    with Consumer(broker.address, topic) as consumer:
        for record in consumer:
            found.append(record)
            if len(found) == 12_012:
                break
        assert consumer.getone(0.01) is None
        assert set(consumer.lag().values()) == {0}
    assert (found[0].topic, b"last" in {one.value for one in found}) == (topic, True)


def test_a_consumer_seeks_and_pauses(broker, topic):
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with Producer(broker.address) as producer:
        producer.send_many(topic, [ProducerRecord(b"%d" % n, partition=0) for n in range(10)])

    with Consumer(broker.address) as consumer:
        consumer.assign([first, second])
        consumer.seek(first, 7)
        assert [record.value for record in next(consumer.batches())] == [b"7", b"8", b"9"]
        assert consumer.position(first) == 10
        assert consumer.assignment == {first, second}
        assert consumer.end_offsets() == {first: 10, second: 0}
        consumer.pause(first)
        consumer.seek_to_beginning(first)
        assert (consumer.paused, consumer.getone(0.05)) == ({first}, None)
        consumer.resume(first)
        assert next(consumer).value == b"0"
        assert consumer.getmany(5)[first][0].value == b"1"


def test_only_delivered_records_are_committed(broker, topic):
    group = f"g-{topic}"
    with Producer(broker.address) as producer:
        producer.send_many(topic, [ProducerRecord(b"%d" % n, partition=0) for n in range(100)])

    with Consumer(broker.address, topic, group=group, auto_commit=None) as consumer:
        taken = [next(consumer).value for _ in range(30)]
        consumer.commit()
    with Consumer(broker.address, topic, group=group) as consumer:
        taken += [next(consumer).value for _ in range(70)]
        assert (consumer.group, consumer.topics) == (group, {topic})

    assert taken == [b"%d" % number for number in range(100)]
    with Admin(broker.address) as admin:
        assert sum(one.lag for one in admin.group_lag(group).values() if one.lag is not None) == 0


def test_errors_are_those_of_the_async_client(broker):
    with Admin(broker.address) as admin:
        with pytest.raises(KafkaError):
            admin.describe_topics("missing")
        with pytest.raises(TypeError, match="unexpected keyword"):
            admin.create_topic("t", partition=3)
    with pytest.raises(ValueError, match="acks"):
        Producer(broker.address, acks="some")


async def test_a_blocking_client_works_inside_a_running_loop(broker, topic):
    with Admin(broker.address) as admin:
        assert len(admin.end_offsets(topic)) == 2
        assert len(await asyncio.to_thread(admin.end_offsets, topic)) == 2


def test_threads_share_a_client(broker, topic):
    with Producer(broker.address) as producer:

        def work():
            for _ in range(20):
                producer.send(topic, b"x")

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    with Admin(broker.address) as admin:
        assert sum(admin.end_offsets(topic).values()) == 80


def test_a_closed_client_raises_closed_error(broker, topic):
    before = threads()
    admin = Admin(broker.address)
    admin.close()
    admin.close()

    with pytest.raises(ClosedError):
        admin.list_topics()
    assert threads() <= before
    consumer = Consumer(broker.address, topic)
    consumer.close()
    assert list(consumer) == []


def test_a_callback_cannot_use_its_own_client(broker, topic):
    seen = []

    def assigned(_partitions):
        try:
            consumer.committed()
        except RuntimeError as error:
            seen.append(str(error))

    with Consumer(broker.address, topic, group=f"g-{topic}", on_assigned=assigned) as consumer:
        consumer.getone(0.1)
        deadline = time.monotonic() + 10
        while not seen and time.monotonic() < deadline:
            consumer.getone(0.1)
    assert "would wait for itself" in seen[0]


def use_in_a_child(admin, answers):
    try:
        admin.list_topics()
    except ClosedError as error:
        answers.put(str(error))


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_client_cannot_be_used_after_a_fork(broker):
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    with Admin(broker.address) as admin:
        child = context.Process(target=use_in_a_child, args=(admin, answers))
        child.start()
        assert "created before a fork" in answers.get(timeout=30)
        child.join(30)
        assert child.exitcode == 0
        assert admin.describe_cluster().brokers


def test_ctrl_c_cancels_a_call_and_the_client_stays_usable(broker, topic):
    script = (
        "from ottla.client.blocking import Consumer\n"
        f"with Consumer('{broker.address}', '{topic}') as consumer:\n"
        "    try:\n"
        "        print('reading', flush=True)\n"
        "        next(consumer)\n"
        "    except KeyboardInterrupt:\n"
        "        print(len(consumer.end_offsets()), flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    with process:
        assert process.stdout.readline() == b"reading\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == b"2\n"
        assert process.wait(30) == 0


def test_a_script_that_closes_no_client_exits(broker):
    script = (
        "from ottla.client.blocking import Admin\n"
        f"admin = Admin('{broker.address}')\n"
        "print(len(admin.describe_cluster().brokers))\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )

    assert (done.stdout, done.stderr) == ("1\n", "")


def test_a_script_that_closes_no_producer_sends_queued_records(broker, topic):
    # With lingering, compression in a thread, and a host name to resolve.
    address = broker.address.replace("127.0.0.1", "localhost")
    script = (
        "from ottla.client import BatchConfig\n"
        "from ottla.client.blocking import Consumer, Producer\n"
        f"producer = Producer('{address}', compression='gzip', batch=BatchConfig(linger=60))\n"
        "for number in range(100):\n"
        f"    producer.enqueue('{topic}', b'%1000d' % number, partition=0)\n"
        f"reader = Consumer('{address}', '{topic}', group='g-{topic}')\n"
        "reader.getone(0.3)\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )

    assert done.stderr == ""
    with Admin(broker.address) as admin:
        assert admin.end_offsets(TopicPartition(topic, 0)) == {TopicPartition(topic, 0): 100}
        # The consumer has left the group: the next one need not wait for a session timeout.
        assert admin.describe_groups(f"g-{topic}")[f"g-{topic}"].members == ()


def test_a_garbage_collected_producer_sends_queued_records(broker, topic):
    before = threads()
    producer = Producer(broker.address, batch=client.BatchConfig(linger=60))
    producer.enqueue(topic, b"x", partition=1)
    del producer
    gc.collect()

    assert threads() <= before
    with Admin(broker.address) as admin:
        assert admin.end_offsets(TopicPartition(topic, 1)) == {TopicPartition(topic, 1): 1}


def test_calls_during_close_raise_closed_error(broker):
    for _ in range(20):
        admin = Admin(broker.address)
        heard = []

        def work(admin=admin, heard=heard):
            try:
                while True:
                    admin.describe_cluster()
            except ClosedError as error:
                heard.append(error)

        threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.01)
        admin.close()
        for thread in threads:
            thread.join(5)
        assert len(heard) == 4
