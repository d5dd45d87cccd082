"""Every client maps a key to the same partition."""

import random

import pytest

from golden.corpus import Record
from harness.clients.registry import with_every_client
from ottla.client.producer.partitioner import partition_of_key

PARTITIONS = 7
# Keys of many lengths, with bytes that are negative in Java.
KEYS = [random.Random(size).randbytes(size) for size in range(1, 60)]


@with_every_client("produce")
def test_a_key_is_mapped_to_the_partition_of_the_sdk(client, clients, name):
    if client.name in ("confluent", "kcat"):
        pytest.skip(
            "librdkafka's default partitioner differs; see tests/client/test_partitioner.py"
        )
    clients.confluent.create_topic(name, PARTITIONS)

    client.produce(name, [Record(key, b"") for key in KEYS], partition=None)

    partitions = {(name, index): None for index in range(PARTITIONS)}
    consumed = clients["ottla"].consume(partitions, len(KEYS))
    for (_topic, partition), rows in consumed.items():
        assert [row.key for row in rows] == [
            key for key in KEYS if partition_of_key(key, PARTITIONS) == partition
        ]
