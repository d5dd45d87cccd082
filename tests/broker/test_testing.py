"""ottla.testing.RunningBroker: produce, read, assert, stop and start, with any client."""

import asyncio
import re
import socket
import threading
from pathlib import Path

import aiokafka
import confluent_kafka
import kafka
import pytest

from harness.daemon import free_port
from ottla.broker.config.broker_config import ConfigError
from ottla.client import Consumer, Producer, ProducerRecord, blocking
from ottla.testing import RunningBroker


def test_produced_records_are_read_back(ottla_broker):
    ottla_broker.create_topic("orders", partitions=2)

    metadata = ottla_broker.produce("orders", "tea", b"milk", None, key="ann", partition=1)
    ottla_broker.produce("orders", ProducerRecord(b"x", "k", {"h": b"1"}, 0, 1234))

    assert [(record.partition, record.offset) for record in metadata] == [(1, 0), (1, 1), (1, 2)]
    assert ottla_broker.topics() == ["orders"]
    assert ottla_broker.values("orders") == [b"x", b"tea", b"milk", None]
    first, second, *_ = ottla_broker.records("orders", 4)
    assert (first.key, first.headers, first.timestamp) == (b"k", (("h", b"1"),), 1234)
    assert (second.key, second.partition, second.offset) == (b"ann", 1, 0)
    ottla_broker.delete_topic("orders")
    assert ottla_broker.topics() == []


def test_topics_are_created_with_a_unique_name_or_with_configs(ottla_broker):
    one, other = ottla_broker.create_topic(), ottla_broker.create_topic(partitions=3)
    ottla_broker.create_topic("small", configs={"max.message.bytes": "100"})

    assert sorted([one, other, "small"]) == ottla_broker.topics()
    with blocking.Admin(ottla_broker.bootstrap) as admin:
        assert len(admin.describe_topics(other)[other].partitions) == 3
        configs = admin.describe_topic_configs("small")["small"]
        assert configs["max.message.bytes"].value == "100"


def test_confluent_kafka(ottla_broker):
    producer = confluent_kafka.Producer({"bootstrap.servers": ottla_broker.bootstrap})
    producer.produce("t", b"theirs")
    assert producer.flush(30) == 0
    ottla_broker.assert_values("t", "theirs")

    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": ottla_broker.bootstrap,
            "group.id": "g",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["t"])
    try:
        assert consumer.poll(30).value() == b"theirs"
        consumer.commit(asynchronous=False)
        ottla_broker.assert_consumed("g", "t")
    finally:
        consumer.close()


def test_kafka_python(ottla_broker):
    ottla_broker.produce("t", "ours")
    consumer = kafka.KafkaConsumer(
        "t", bootstrap_servers=ottla_broker.bootstrap, auto_offset_reset="earliest"
    )
    try:
        assert next(consumer).value == b"ours"
    finally:
        consumer.close()


async def test_aiokafka_in_an_async_test(ottla_broker):
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=ottla_broker.bootstrap) as producer:
        await producer.send_and_wait("t", b"theirs")

    ottla_broker.assert_values("t", b"theirs")


async def test_ottla_client(ottla_broker):
    async with Producer(ottla_broker.bootstrap) as producer:
        await producer.send("t", b"a")
    async with Consumer(ottla_broker.bootstrap, "t", group="g") as consumer:
        assert (await anext(consumer)).value == b"a"
        await consumer.commit()

    ottla_broker.assert_consumed("g", "t")


def test_a_restarted_broker_keeps_its_address_and_records(ottla_broker):
    address = ottla_broker.bootstrap
    ottla_broker.produce("t", "before")

    with blocking.Producer(address) as producer:
        producer.send("t", b"still before")
        ottla_broker.stop()
        assert not ottla_broker.is_running
        assert "stopped" in repr(ottla_broker)
        with pytest.raises(AssertionError, match="call start"):
            ottla_broker.topics()
        later = producer.enqueue("t", b"after")
        ottla_broker.start()
        assert later.result(30).offset == 2

    assert ottla_broker.bootstrap == address
    ottla_broker.assert_values("t", "before", "still before", "after")


def test_reads_wait_for_records_of_another_thread(ottla_broker):
    def work():
        for number in range(3):
            ottla_broker.produce("t", str(number))

    thread = threading.Thread(target=work)
    thread.start()
    assert len(ottla_broker.records("t", 3)) == 3
    ottla_broker.assert_values("t", "0", "1", "2")
    thread.join()


SHORT_TIMEOUT = {"timeout": 0.1}


def test_a_failed_assertion_tells_the_time_that_has_passed(ottla_broker):
    ottla_broker.produce("t", "a")

    with pytest.raises(AssertionError) as caught:
        ottla_broker.assert_values("t", "b", timeout=600)  # the number of records is right

    (seconds,) = re.findall(r"expected values after ([0-9.]+) s", str(caught.value))
    assert float(seconds) < 600


def test_failed_assertions_show_the_actual_records(ottla_broker):
    ottla_broker.produce("t", "a", "b", key="k")
    ottla_broker.create_topic("wide", partitions=2)
    ottla_broker.produce("wide", "1", partition=1)
    ottla_broker.produce("wide", "2", partition=0)
    ottla_broker.assert_values("wide", "1", "2")  # in any order
    ottla_broker.assert_values("nothing")

    def failure_of(method, *arguments):
        with pytest.raises(AssertionError) as caught:
            method(*arguments, **SHORT_TIMEOUT)
        return str(caught.value)

    first, *lines = failure_of(ottla_broker.assert_values, "t", "a", "c", "c").splitlines()
    assert re.fullmatch(r"'t' does not have the expected values after \d+\.\d s", first)
    assert lines == [
        "  missing: b'c'",
        "  missing: b'c'",
        "  unexpected: b'b'",
        "  t-0 at 0: b'k' = b'a'",
        "  t-0 at 1: b'k' = b'b'",
    ]
    assert "  different order: b'a', b'b'" in failure_of(ottla_broker.assert_values, "t", "b", "a")
    assert "  unknown topic; existing topics: t, wide" in failure_of(
        ottla_broker.assert_values, "T", "a"
    )
    assert failure_of(ottla_broker.records, "wide", 3).splitlines() == [
        "'wide' has 2 records after 0.1 s, expected 3",
        "  wide-0 at 0: b'2'",
        "  wide-1 at 0: b'1'",
    ]
    ottla_broker.create_topic("empty")
    assert "  the topic is empty" in failure_of(ottla_broker.values, "empty", 1)
    ottla_broker.produce("many", *map(str, range(30)), "x" * 200)
    assert "\n  … and 11 more" in failure_of(ottla_broker.values, "many", 40)
    ottla_broker.produce("long", "x" * 200)
    assert "  long-0 at 0: b'xxx" in failure_of(ottla_broker.values, "long", 2)


def test_assert_consumed_shows_the_committed_offsets(ottla_broker):
    ottla_broker.produce("t", "a", "b")
    with pytest.raises(AssertionError) as no_group:
        ottla_broker.assert_consumed("g", "t", **SHORT_TIMEOUT)

    with blocking.Consumer(ottla_broker.bootstrap, "t", group="g", auto_commit=None) as consumer:
        next(consumer)
        consumer.commit()
        with pytest.raises(AssertionError) as half_consumed:
            ottla_broker.assert_consumed("g", "t", **SHORT_TIMEOUT)
        next(consumer)
        consumer.commit()
        ottla_broker.assert_consumed("g", "t")

    assert str(no_group.value).splitlines() == [
        "group 'g' has not consumed everything after 0.1 s",
        "  t-0: committed nothing, end 2",
        "  unknown group; existing groups: none",
    ]
    assert str(half_consumed.value).splitlines()[1:] == [
        "  t-0: committed 1, end 2",
        "  state: Stable; members: ottla (t-0)",
    ]


def test_keyword_arguments_are_broker_configs(ottla_broker_factory, tmp_path):
    broker = ottla_broker_factory(
        num_partitions=3, auto_create_topics_enable=False, log_dir=tmp_path / "data"
    )
    broker.create_topic("t", partitions=-1)

    with blocking.Admin(broker.bootstrap) as admin:
        assert len(admin.describe_topics("t")["t"].partitions) == 3
    assert (tmp_path / "data" / "t-0").is_dir()
    broker.close()
    assert (tmp_path / "data" / "t-0").is_dir()  # an explicit log_dir is kept
    with pytest.raises(ConfigError, match=r"did you mean num\.partitions"):
        ottla_broker_factory(num_partition=3)


def test_brokers_are_isolated_and_clean_up():
    before = set(threading.enumerate())
    with RunningBroker() as one, RunningBroker() as other:
        one.produce("t", "a")
        assert other.topics() == []
        directories = [Path(broker._directory.name) for broker in (one, other)]
        assert all(directory.is_dir() for directory in directories)

    for thread in set(threading.enumerate()) - before:
        thread.join(30)
        assert not thread.is_alive()
    assert not any(directory.exists() for directory in directories)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", int(one.bootstrap.partition(":")[2])))
    with pytest.raises(AssertionError, match="has not been started"):
        _ = RunningBroker().bootstrap


def test_a_port_in_use_is_skipped(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = [free_port(), taken.getsockname()[1]]
        monkeypatch.setattr("ottla.testing.running_broker.random.choice", lambda _: ports.pop())
        with RunningBroker() as broker:
            assert not ports
            broker.produce("t", "a")


async def test_methods_may_be_called_in_threads_of_an_async_test(ottla_session_broker):
    topic = ottla_session_broker.create_topic()
    waiting = asyncio.create_task(asyncio.to_thread(ottla_session_broker.values, topic, 2))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    ottla_session_broker.produce(topic, "1", "2")

    assert await waiting == [b"1", b"2"]
