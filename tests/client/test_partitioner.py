"""Partitioners: murmur2 of keys as in the Java client and librdkafka, sticky and round-robin."""

import asyncio
import random

import pytest
from confluent_kafka import Producer as Confluent
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker import Broker, BrokerConfig
from ottla.client.producer.partitioner import murmur2, next_in_turn, next_sticky, partition_of_key
from ottla.protocol import compiled

# From Kafka's UtilsTest, where they are signed.
KAFKAS_VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize(("key", "expected"), KAFKAS_VECTORS.items(), ids=str)
def test_murmur2_equals_kafkas(key, expected, is_compiled, monkeypatch):
    if not is_compiled:
        monkeypatch.setattr(compiled, "fast", None)

    assert murmur2(key) == expected % 2**32
    assert partition_of_key(key, 1000) == (expected & 0x7FFFFFFF) % 1000


@given(key=st.binary(max_size=200))
def test_the_compiled_murmur2_equals_python(key):
    fast = pytest.importorskip("ottla.protocol._fast")

    assert fast.murmur2(key) == murmur2(key)


async def test_keys_go_to_the_partition_librdkafka_chooses(tmp_path):
    chance = random.Random(7)
    keys = [bytes(chance.randrange(256) for _ in range(size)) for size in range(1, 90)]
    config = BrokerConfig(
        log_dir=str(tmp_path), listeners="PLAINTEXT://127.0.0.1:0", num_partitions=13
    )

    async with Broker(config) as broker:
        theirs = await asyncio.to_thread(partitions_of_librdkafka, broker.address, keys)

    assert theirs == [partition_of_key(key, 13) for key in keys]


def partitions_of_librdkafka(address, keys):
    settings = {"bootstrap.servers": address, "partitioner": "murmur2_random", "acks": 1}
    producer = Confluent(settings)
    found = {}
    for key in keys:
        producer.produce(
            "keyed",
            b"",
            key=key,
            on_delivery=lambda error, message: found.update(
                {message.key(): message.partition() if error is None else error}
            ),
        )
    producer.flush(20)
    return [found.get(key) for key in keys]


def test_sticky_switches_partition_if_there_is_another():
    assert next_sticky(3, [3]) == 3
    for _ in range(20):
        assert next_sticky(3, [1, 3, 5]) in (1, 5)
    assert {next_sticky(0, [0, 1, 2, 3]) for _ in range(200)} == {1, 2, 3}


def test_round_robin_cycles_through_available_partitions():
    assert [next_in_turn(current, [1, 2, 5]) for current in (0, 1, 2, 3, 5, 9)] == [
        1, 2, 5, 5, 1, 1,
    ]  # fmt: skip
