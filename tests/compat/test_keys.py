"""A key is in one partition, whoever wrote it."""

import random

import pytest

from golden.corpus import Record
from harness.clients.registry import with_every_client
from ottla.client.producer.partitioner import partition_of_key

PARTITIONS = 7
# Keys of all lengths, and with bytes that have a sign in Java.
KEYS = [random.Random(size).randbytes(size) for size in range(1, 60)]


@with_every_client("produce")
def test_a_key_goes_where_we_look_for_it(client, clients, name):
    if client.name in ("confluent", "kcat"):
        pytest.skip(
            "librdkafka has another default; tests/client/test_partitioner.py asks for ours"
        )
    clients.confluent.create_topic(name, PARTITIONS)

    client.produce(name, [Record(key, b"") for key in KEYS], partition=None)

    places = {(name, number): None for number in range(PARTITIONS)}
    found = clients["ottla"].consume(places, len(KEYS))
    for (_topic, partition), rows in found.items():
        assert [row.key for row in rows] == [
            key for key in KEYS if partition_of_key(key, PARTITIONS) == partition
        ]
