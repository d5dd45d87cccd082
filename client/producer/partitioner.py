"""Which partition a record goes to, where it does not say.

With a key, Kafka's: a hash of the key, the same one that the Java client and librdkafka's
`murmur2_random` use, so that records of a key are in one partition whoever wrote them. Without a
key, one of

    sticky        the same partition until its batch has gone, then another one at random: batches
                  are few and full
    round-robin   one after the other, for topics where records should be spread evenly

A program may bring a function of its own instead, which then decides for all records.
"""

from __future__ import annotations

import random
import struct
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache

from ottla.protocol import compiled

#: From topic, key, value and the number of partitions to a partition.
Partitioner = Callable[[str, bytes | None, bytes | None, int], int]

STICKY = "sticky"
ROUND_ROBIN = "round-robin"

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF
# Keys come again and again, and to hash one in Python takes longer than to look it up. Not long
# ones, though.
_REMEMBERED_KEYS = 16_384
_LONGEST_REMEMBERED_BYTES = 64


def murmur2(data: bytes) -> int:
    """Hash as `org.apache.kafka.common.utils.Utils.murmur2` does, but without a sign."""
    size = len(data)
    words = size // 4
    h = _SEED ^ size
    for k in struct.unpack_from(f"<{words}I", data):
        k = k * _MULTIPLIER & _MASK  # noqa: PLW2901  # as the algorithm is always written
        h = (h * _MULTIPLIER ^ (k ^ k >> 24) * _MULTIPLIER) & _MASK
    if size & 3:
        h = (h ^ int.from_bytes(data[4 * words :], "little")) * _MULTIPLIER & _MASK
    h = (h ^ h >> 13) * _MULTIPLIER & _MASK
    return h ^ h >> 15


_remembered = lru_cache(_REMEMBERED_KEYS)(murmur2)


def partition_of_key(key: bytes, count: int) -> int:
    """Give the partition of a key among so many."""
    hashed = compiled.fast.murmur2(key) if compiled.fast is not None else _looked_up(key)
    return (hashed & 0x7FFFFFFF) % count


def _looked_up(key: bytes) -> int:
    return _remembered(key) if len(key) <= _LONGEST_REMEMBERED_BYTES else murmur2(key)


def next_sticky(current: int, available: Sequence[int]) -> int:
    """Choose another partition than the current one, if there is one."""
    if len(available) == 1:
        return available[0]
    while True:
        chosen = random.choice(available)  # noqa: S311
        if chosen != current:
            return chosen


def next_in_turn(current: int, available: Sequence[int]) -> int:
    """Choose the partition behind the current one. They are in order."""
    return available[bisect_right(available, current) % len(available)]
