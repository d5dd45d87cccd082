"""ottla txn …, and consume --isolation."""

import asyncio
import time

import pytest

from harness.command import Command
from harness.transaction_requests import TransactionalProducer
from harness.wire import connect
from ottla.client import ErrorCode, TopicPartition
from ottla.client.blocking import Admin, Producer


@pytest.fixture
def producer(run, name):
    with Producer(run.address, transactional_id=f"id-{name}") as producer:
        yield producer


@pytest.fixture
def open_transaction(producer, topic):
    """An id with a committed and an open transaction, one record each in partition 0."""
    with producer.transaction():
        producer.send(topic, b"committed", partition=0)
    producer.begin_transaction()
    producer.send(topic, b"open", partition=0)
    return producer.transactional_id


def test_transactions_are_listed_by_state_and_age(run, open_transaction):
    (row,) = [r for r in run.json("txn", "list") if r["transactional_id"] == open_transaction]
    assert (row["state"], row["coordinator"]) == ("Ongoing", 0)
    assert open_transaction in run("txn", "list")
    for options in (["--state", "Ongoing"], ["--older-than", "0s"], []):
        assert open_transaction in run("txn", "list", "-q", *options).splitlines()
    for options in (["--state", "Empty"], ["--older-than", "1h"]):
        assert open_transaction not in run("txn", "list", "-q", *options).splitlines()
    assert "expected Empty, Ongoing" in run.fails(7, "txn", "list", "--state", "Odd")
    assert "expected 90s" in run.fails(2, "txn", "list", "--older-than", "soon")


def test_a_transaction_is_described(run, open_transaction, producer, topic):
    (found,) = run.json("txn", "describe", open_transaction)
    assert (found["state"], found["timeout_ms"]) == ("Ongoing", 60_000)
    assert found["partitions"] == [{"topic": topic, "partition": 0}]
    assert found["producer_id"] == producer.producer_id
    assert abs(found["started_ms"] - time.time() * 1000) < 600_000
    text = run("txn", "describe", open_transaction)
    assert "timeout           60 s\n" in text
    assert "open for" in text
    assert "ottla txn list" in run.fails(5, "txn", "describe", f"{open_transaction}-missing")


def test_abort_ends_the_transaction_and_fences_the_producer(run, open_transaction, topic):
    assert "--yes" in run.fails(2, "txn", "abort", open_transaction)
    (row,) = run.json("txn", "abort", open_transaction, "--yes")
    assert row["outcome"] == "aborted"
    assert "no open transaction" in run("txn", "abort", open_transaction, "--yes")
    assert run("consume", topic, "--isolation", "read_committed") == "committed\n"
    run.fails(5, "txn", "abort", f"{open_transaction}-missing", "--yes")


def test_consume_stops_at_the_last_stable_offset(run, open_transaction, topic):
    assert run("consume", topic) == "committed\nopen\n"
    assert run("consume", topic, "--isolation", "read_uncommitted") == "committed\nopen\n"
    for committed in (["--isolation", "read_committed"], ["--committed"]):
        assert run("consume", topic, *committed) == "committed\n"
        assert run(
            "consume", topic, *committed, "--group", f"g-{topic}-{len(committed)}", "-e"
        ) == ("committed\n")


def test_last_counts_records_and_not_markers(run, producer, topic):
    for number in range(10):
        with producer.transaction():
            producer.send(topic, b"%d" % number, partition=0)
    producer.begin_transaction()
    producer.send_many(topic, [b"aborted"] * 20)
    producer.abort_transaction()
    assert run("consume", topic, "--last", "3", "--isolation", "read_committed") == "7\n8\n9\n"
    assert len(run("consume", topic, "--last", "25").splitlines()) == 25
    assert len(run("consume", topic, "--last", "100").splitlines()) == 30


async def hang(address, topic, partition):
    """Write a record in a transaction that no coordinator knows."""
    async with connect(address) as client:
        lost = TransactionalProducer(client, "lost")
        lost.id, lost.epoch = 123_456, 7
        assert await lost.produce(topic, partition) == ErrorCode.NONE


def test_hanging_transactions_are_found_and_aborted(ottla_broker_factory, tmp_path):
    # Without verification, as before KIP-890, a late batch begins a transaction by itself.
    broker = ottla_broker_factory(transaction_partition_verification_enable=False)
    run = Command(broker.bootstrap, str(tmp_path))
    topic = broker.create_topic("t", partitions=2)
    tp = TopicPartition(topic, 1)
    with Admin(broker.bootstrap) as admin, Producer(run.address, transactional_id="id") as producer:
        producer.begin_transaction()
        producer.send(topic, b"open", partition=0)
        assert run.json("txn", "hanging", "--older-than", "0s") == []
        asyncio.run(hang(broker.bootstrap, *tp))
        assert admin.end_offsets(tp, isolation="read_committed")[tp] == 0

        (row,) = run.json("txn", "hanging", topic, "--older-than", "0s")
        assert (row["partition"], row["start_offset"], row["outcome"]) == (1, 0, "hanging")
        assert (row["producer_id"], row["transactional_id"]) == (123_456, None)
        assert "hanging" in run("txn", "hanging", "--older-than", "0s")
        assert "--yes" in run.fails(2, "txn", "hanging", topic, "--older-than", "0s", "--abort")
        (row,) = run.json("txn", "hanging", topic, "--older-than", "0s", "--abort", "--yes")
        assert row["outcome"] == "aborted"
        assert run.json("txn", "hanging", topic, "--older-than", "0s") == []
        assert admin.end_offsets(tp, isolation="read_committed")[tp] == 2
        producer.commit_transaction()
