"""Records that threads enqueue, and hand over to the event loop in batches."""

import asyncio
import signal
import threading
from concurrent.futures import InvalidStateError, as_completed, wait
from contextlib import asynccontextmanager

import pytest

from harness.daemon import Daemon
from harness.scripted_broker import ScriptedCluster
from harness.waiting import eventually, wait_until
from ottla.client import (
    BatchConfig,
    BufferFullError,
    ClientConfig,
    ClosedError,
    DeadlineError,
    ErrorCode,
    KafkaError,
    RecordTooLargeError,
    SerializationError,
    TimeoutConfig,
)
from ottla.client.blocking import Producer
from ottla.client.blocking.handoff import _MAX_BYTES
from ottla.client.serializers import serialize_json
from ottla.protocol.api.produce import ProduceRequest


@pytest.fixture
def broker(ottla_session_broker):
    return ottla_session_broker


@pytest.fixture
def topic(broker):
    return broker.create_topic(partitions=2)


def test_enqueue_and_send_keep_their_order(broker, topic):
    numbers = iter(range(10_000))
    with Producer(broker.bootstrap) as producer:
        sent = []
        for _ in range(20):
            for _ in range(50):
                sent.append(b"%d" % next(numbers))
                producer.enqueue(topic, sent[-1], key=b"k")
            sent.append(b"%d" % next(numbers))
            producer.send(topic, sent[-1], key=b"k")

    assert broker.values(topic) == sent


def test_futures_of_many_threads_return_the_right_offsets(broker, topic):
    found = {}

    def work(name):
        values = [b"%d:%d" % (name, number) for number in range(500)]
        futures = [producer.enqueue(topic, value) for value in values]
        for value, future in zip(values, futures, strict=True):
            metadata = future.result(30)
            found[metadata.partition, metadata.offset] = value

    with Producer(broker.bootstrap) as producer:
        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    records = broker.records(topic)
    assert {(one.partition, one.offset): one.value for one in records} == found


def test_futures_work_with_the_standard_library(broker, topic):
    called, woken = [], []
    with Producer(broker.bootstrap, batch=BatchConfig(linger=60)) as producer:
        futures = [producer.enqueue(topic, b"%d" % n) for n in range(10)]
        first = futures[0]
        first.add_done_callback(called.append)
        with pytest.raises(TimeoutError):
            first.result(0.01)
        with pytest.raises(TimeoutError):
            first.exception(0)
        assert not first.cancel()
        assert (first.running(), first.done(), called) == (True, False, [])
        assert wait(futures, timeout=0) == (set(), set(futures))

        threads = [
            threading.Thread(target=lambda one=one: woken.append(one.result(30)))
            for one in (*futures, first)
        ]
        waits = threading.Thread(target=lambda: woken.append(wait(futures, 30)))
        for thread in (*threads, waits):
            thread.start()
        wait_until(lambda: len(first._waiters) == 3)
        producer.flush()
        for thread in (*threads, waits):
            thread.join()

        late = []
        first.add_done_callback(late.append)
        assert called == late == [first]
        assert len(woken) == 12
        assert {future.result() for future in as_completed(futures)} == {
            future.result() for future in futures
        }
        assert asyncio.run(wrapped(first)) == first.result()
        assert first.exception() is None
        with pytest.raises(InvalidStateError):
            first.set_result(first.result())


async def wrapped(future):
    return await asyncio.wrap_future(future)


def test_a_thread_that_waits_does_not_wait_for_others(broker, topic, monkeypatch):
    monkeypatch.setattr("ottla.client.blocking.handoff._INTERVAL_SECONDS", 60)
    with Producer(broker.bootstrap) as producer:
        offsets = [producer.enqueue(topic, b"x", partition=0).result(20).offset for _ in range(3)]

    assert offsets == [0, 1, 2]


def test_flush_and_close_wait_for_queued_records(broker, topic):
    producer = Producer(broker.bootstrap, batch=BatchConfig(linger=60))
    first = [producer.enqueue(topic, b"%d" % n) for n in range(100)]
    producer.flush()
    assert all(future.done() for future in first)

    second = [producer.enqueue(topic, b"%d" % n) for n in range(100)]
    producer.close()
    assert all(future.result(0).offset >= 0 for future in second)
    with pytest.raises(ClosedError):
        producer.enqueue(topic, b"late")


def test_an_invalid_record_raises_in_the_calling_thread(broker, topic):
    with Producer(broker.bootstrap) as producer:
        with pytest.raises(SerializationError):
            producer.enqueue(topic, "text")
        with pytest.raises(RecordTooLargeError):
            producer.enqueue(topic, bytes(9_000_000))
    with Producer(broker.bootstrap, value_serializer=serialize_json) as producer:
        with pytest.raises(SerializationError):
            producer.enqueue(topic, object())
        producer.enqueue(topic, {"a": 1}).result(30)

    broker.assert_values(topic, '{"a":1}')


def test_later_errors_are_raised_by_the_future(broker, topic):
    with Producer(broker.bootstrap) as producer:
        wrong = producer.enqueue(topic, b"x", partition=7)
        right = producer.enqueue(topic, b"x", partition=1)

        assert right.result(30).partition == 1
        with pytest.raises(KafkaError) as caught:
            wrong.result(30)
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert not wrong.cancel()


def test_a_missing_topic_is_looked_up_once_for_all_queued_records(broker, topic):
    client = ClientConfig(timeouts=TimeoutConfig(operation=1), allow_auto_create=False)
    with Producer(broker.bootstrap, client=client) as producer:
        lost = [producer.enqueue("no-such-topic", b"x") for _ in range(20)]
        right = producer.enqueue(topic, b"x")

        errors = {future.exception(60) for future in lost}
        assert right.result(60).topic == topic

    # The first one may have been handed over before the others were queued.
    assert len(errors) <= 2
    assert {type(error) for error in errors} == {DeadlineError}


@asynccontextmanager
async def a_producer(stage, batch):
    """A blocking producer, created and closed outside the thread of the stage."""
    producer = await asyncio.to_thread(Producer, stage.address, batch=batch)
    try:
        yield producer
    finally:
        await asyncio.to_thread(producer.close)


async def held_back(stage, producer):
    """Delay the responses to Produce until the event is set."""
    await asyncio.to_thread(producer.send, "orders", b"warm")
    gate = asyncio.Event()

    async def hold(call):
        answer = call.serve()
        await gate.wait()
        return answer

    stage.always(ProduceRequest, hold)
    return gate


async def test_enqueue_waits_while_too_much_is_queued():
    value, count, queued = bytes(1000), 3000, 0
    batch = BatchConfig(batch_bytes=10_000, buffer_bytes=100_000)

    def work():
        nonlocal queued
        futures = []
        for _ in range(count):
            futures.append(producer.enqueue("orders", value))
            queued += 1
        return [future.result(30).offset for future in futures]

    async with ScriptedCluster() as stage, a_producer(stage, batch) as producer:
        gate = await held_back(stage, producer)
        working = asyncio.create_task(asyncio.to_thread(work))
        await eventually(lambda: queued * len(value) > _MAX_BYTES / 2)
        done, _ = await asyncio.wait([working], timeout=0.3)
        max_bytes = queued * len(value)
        gate.set()
        assert not done
        assert _MAX_BYTES / 2 < max_bytes < _MAX_BYTES + 100_000
        assert await working == list(range(1, count + 1))


async def test_a_buffer_that_stays_full_fails_all_queued_records():
    batch = BatchConfig(batch_bytes=500, buffer_bytes=1000, buffer_timeout=0.2)
    async with ScriptedCluster() as stage, a_producer(stage, batch) as producer:
        gate = await held_back(stage, producer)
        futures = [producer.enqueue("orders", bytes(64)) for _ in range(100)]
        with pytest.raises(BufferFullError):
            await asyncio.to_thread(futures[-1].result, 30)
        gate.set()
        await asyncio.to_thread(producer.flush)

        failed = [future for future in futures if future.exception(30) is not None]
        assert len(failed) == 90
        assert {type(future.exception()) for future in failed} == {BufferFullError}
        assert (await asyncio.to_thread(producer.send, "orders", b"y")).offset == 11


def test_close_with_a_hanging_broker_fails_all_waiting_threads(tmp_path):
    timeouts = TimeoutConfig(connect=2, request=2, operation=2)
    with Daemon(tmp_path) as broker:
        producer = Producer(
            broker.address,
            client=ClientConfig(timeouts=timeouts),
            batch=BatchConfig(batch_bytes=1000, buffer_bytes=1000, buffer_timeout=0.2),
        )
        producer.send("orders", b"warm")
        broker.send(signal.SIGSTOP)
        futures, heard = [], []

        def work():
            try:
                while True:
                    futures.append(producer.enqueue("orders", bytes(900)))
            except ClosedError as error:
                heard.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        while len(futures) * 1000 < _MAX_BYTES:
            thread.join(0.01)
        producer.close()
        thread.join(30)
        broker.send(signal.SIGCONT)

    assert len(heard) == 1
    assert all(future.exception(0) is not None for future in futures)
