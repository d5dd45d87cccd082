"""A key is in one partition, whoever wrote it."""

import random

import pytest

from compat.everybody import told_of
from golden.corpus import Record
from ottla.client.producer.partitioner import partition_of_key

PARTITIONS = 7
# Keys of all lengths, and with bytes that have a sign in Java.
KEYS = [random.Random(size).randbytes(size) for size in range(1, 60)]


@told_of("write")
def test_a_key_goes_where_we_look_for_it(client, everybody, name):
    if client.name in ("confluent", "kcat"):
        pytest.skip(
            "librdkafka has another default; tests/client/test_partitioner.py asks for ours"
        )
    everybody.confluent.create_topic(name, PARTITIONS)

    client.write(name, [Record(key, b"") for key in KEYS], partition=None)

    places = {(name, number): None for number in range(PARTITIONS)}
    found = everybody["ottla"].read(places, len(KEYS))
    for (_topic, partition), rows in found.items():
        assert [row.key for row in rows] == [
            key for key in KEYS if partition_of_key(key, PARTITIONS) == partition
        ]
