"""A broker for tests, in a thread: filled, looked into, stopped and started, by any client."""

import asyncio
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
from ottla.testing.running_broker import RunningBroker


def test_what_is_produced_is_read_back(ottla_broker):
    ottla_broker.create_topic("orders", partitions=2)

    receipts = ottla_broker.produce("orders", "tea", b"milk", None, key="ann", partition=1)
    ottla_broker.produce("orders", ProducerRecord(b"x", "k", {"h": b"1"}, 0, 1234))

    assert [(one.partition, one.offset) for one in receipts] == [(1, 0), (1, 1), (1, 2)]
    assert ottla_broker.topics() == ["orders"]
    assert ottla_broker.values("orders") == [b"x", b"tea", b"milk", None]
    first, second, *_ = ottla_broker.records("orders", 4)
    assert (first.key, first.headers, first.timestamp) == (b"k", (("h", b"1"),), 1234)
    assert (second.key, second.partition, second.offset) == (b"ann", 1, 0)
    ottla_broker.delete_topic("orders")
    assert ottla_broker.topics() == []


def test_topics_have_names_and_settings_if_they_are_given(ottla_broker):
    one, other = ottla_broker.create_topic(), ottla_broker.create_topic(partitions=3)
    ottla_broker.create_topic("small", configs={"max.message.bytes": "100"})

    assert sorted([one, other, "small"]) == ottla_broker.topics()
    with blocking.Admin(ottla_broker.bootstrap) as admin:
        assert len(admin.describe_topics(other)[other].partitions) == 3
        settings = admin.describe_topic_configs("small")["small"]
        assert settings["max.message.bytes"].value == "100"


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


async def test_aiokafka_in_a_test_with_a_loop(ottla_broker):
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=ottla_broker.bootstrap) as producer:
        await producer.send_and_wait("t", b"theirs")

    ottla_broker.assert_values("t", b"theirs")


async def test_our_own_client(ottla_broker):
    async with Producer(ottla_broker.bootstrap) as producer:
        await producer.send("t", b"a")
    async with Consumer(ottla_broker.bootstrap, "t", group="g") as consumer:
        assert (await anext(consumer)).value == b"a"
        await consumer.commit()

    ottla_broker.assert_consumed("g", "t")


def test_a_broker_that_starts_again_has_its_address_and_its_records(ottla_broker):
    address = ottla_broker.bootstrap
    ottla_broker.produce("t", "before")

    with blocking.Producer(address) as producer:
        producer.send("t", b"still before")
        ottla_broker.stop()
        assert not ottla_broker.is_running
        assert "stopped" in repr(ottla_broker)
        with pytest.raises(AssertionError, match="start it first"):
            ottla_broker.topics()
        later = producer.enqueue("t", b"after")
        ottla_broker.start()
        assert later.result(30).offset == 2

    assert ottla_broker.bootstrap == address
    ottla_broker.assert_values("t", "before", "still before", "after")


def test_whoever_writes_may_need_a_moment(ottla_broker):
    def work():
        for number in range(3):
            ottla_broker.produce("t", str(number))

    thread = threading.Thread(target=work)
    thread.start()
    assert len(ottla_broker.records("t", 3)) == 3
    ottla_broker.assert_values("t", "0", "1", "2")
    thread.join()


SOON = {"timeout": 0.1}


def test_what_is_not_there_is_told_with_what_is(ottla_broker):
    ottla_broker.produce("t", "a", "b", key="k")
    ottla_broker.create_topic("wide", partitions=2)
    ottla_broker.produce("wide", "1", partition=1)
    ottla_broker.produce("wide", "2", partition=0)
    ottla_broker.assert_values("wide", "1", "2")  # in any order
    ottla_broker.assert_values("nothing")

    def said(verb, *arguments):
        with pytest.raises(AssertionError) as caught:
            verb(*arguments, **SOON)
        return str(caught.value)

    assert said(ottla_broker.assert_values, "t", "a", "c", "c").splitlines() == [
        "'t' has other values than expected after 0.1 s",
        "  missing: b'c'",
        "  missing: b'c'",
        "  not expected: b'b'",
        "  t-0 at 0: b'k' = b'a'",
        "  t-0 at 1: b'k' = b'b'",
    ]
    assert "  the order is another one: b'a', b'b'" in said(
        ottla_broker.assert_values, "t", "b", "a"
    )
    assert "  there is no such topic; there is t, wide" in said(
        ottla_broker.assert_values, "T", "a"
    )
    assert said(ottla_broker.records, "wide", 3).splitlines() == [
        "'wide' has 2 records after 0.1 s, not 3",
        "  wide-0 at 0: b'2'",
        "  wide-1 at 0: b'1'",
    ]
    ottla_broker.create_topic("empty")
    assert "  it is empty" in said(ottla_broker.values, "empty", 1)
    ottla_broker.produce("many", *map(str, range(30)), "x" * 200)
    assert "\n  … and 11 more" in said(ottla_broker.values, "many", 40)
    ottla_broker.produce("long", "x" * 200)
    assert "  long-0 at 0: b'xxx" in said(ottla_broker.values, "long", 2)


def test_what_a_group_has_not_consumed_is_told(ottla_broker):
    ottla_broker.produce("t", "a", "b")
    with pytest.raises(AssertionError) as nobody:
        ottla_broker.assert_consumed("g", "t", **SOON)

    with blocking.Consumer(ottla_broker.bootstrap, "t", group="g", auto_commit=None) as consumer:
        next(consumer)
        consumer.commit()
        with pytest.raises(AssertionError) as half:
            ottla_broker.assert_consumed("g", "t", **SOON)
        next(consumer)
        consumer.commit()
        ottla_broker.assert_consumed("g", "t")

    assert str(nobody.value).splitlines() == [
        "group 'g' has not consumed everything after 0.1 s",
        "  t-0: nothing is committed, of 2",
        "  there is no such group; there is none",
    ]
    assert str(half.value).splitlines()[1:] == [
        "  t-0: 1 is committed, of 2",
        "  it is Stable; members: ottla (t-0)",
    ]


def test_settings_are_a_brokers(ottla_broker_factory, tmp_path):
    broker = ottla_broker_factory(
        num_partitions=3, auto_create_topics_enable=False, log_dir=tmp_path / "data"
    )
    broker.create_topic("t", partitions=-1)

    with blocking.Admin(broker.bootstrap) as admin:
        assert len(admin.describe_topics("t")["t"].partitions) == 3
    assert (tmp_path / "data" / "t-0").is_dir()
    broker.close()
    assert (tmp_path / "data" / "t-0").is_dir()  # what was named is kept
    with pytest.raises(ConfigError, match=r"did you mean num\.partitions"):
        ottla_broker_factory(num_partition=3)


def test_brokers_know_nothing_of_each_other_and_leave_nothing():
    before = set(threading.enumerate())
    with RunningBroker() as one, RunningBroker() as other:
        one.produce("t", "a")
        assert other.topics() == []
        folders = [Path(broker._folder.name) for broker in (one, other)]
        assert all(folder.is_dir() for folder in folders)

    for thread in set(threading.enumerate()) - before:
        thread.join(30)
        assert not thread.is_alive()
    assert not any(folder.exists() for folder in folders)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", int(one.bootstrap.partition(":")[2])))
    with pytest.raises(AssertionError, match="has not been started"):
        _ = RunningBroker().bootstrap


def test_a_port_that_somebody_has_is_not_taken(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = [free_port(), taken.getsockname()[1]]
        monkeypatch.setattr("ottla.testing.running_broker.random.choice", lambda _: ports.pop())
        with RunningBroker() as broker:
            assert not ports
            broker.produce("t", "a")


async def test_verbs_may_be_used_in_threads_of_a_test_with_a_loop(ottla_session_broker):
    topic = ottla_session_broker.create_topic()
    waiting = asyncio.create_task(asyncio.to_thread(ottla_session_broker.values, topic, 2))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    ottla_session_broker.produce(topic, "1", "2")

    assert await waiting == [b"1", b"2"]
