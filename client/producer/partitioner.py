"""The partition of a record that does not name one.

With a key, the hash of the key, as in the Java client and in librdkafka's `murmur2_random`: the
records of a key are in one partition, whichever client sent them. Without a key, one of

    sticky        the same partition until its batch is sent, then another one at random: few and
                  full batches
    round-robin   one partition after the other, for an even distribution of records

A program may pass a function instead, which then decides for all records.
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
HASH_MASK = 0x7FFFFFFF
# Keys recur, and hashing a short one in Python takes longer than looking it up.
_CACHED_KEYS = 16_384
_MAX_CACHED_KEY_BYTES = 64


def murmur2(data: bytes) -> int:
    """Return the hash of `org.apache.kafka.common.utils.Utils.murmur2`, unsigned."""
    size = len(data)
    words = size // 4
    h = _SEED ^ size
    for k in struct.unpack_from(f"<{words}I", data):
        k = k * _MULTIPLIER & _MASK  # noqa: PLW2901  # as in the reference implementation
        h = (h * _MULTIPLIER ^ (k ^ k >> 24) * _MULTIPLIER) & _MASK
    if size & 3:
        h = (h ^ int.from_bytes(data[4 * words :], "little")) * _MULTIPLIER & _MASK
    h = (h ^ h >> 13) * _MULTIPLIER & _MASK
    return h ^ h >> 15


_cached_murmur2 = lru_cache(_CACHED_KEYS)(murmur2)


def partition_of_key(key: bytes, count: int) -> int:
    """Return the partition of a key among `count`."""
    return (key_hash()(key) & HASH_MASK) % count


def key_hash() -> Callable[[bytes], int]:
    """Return the hash function of keys, of which HASH_MASK counts."""
    return compiled.fast.murmur2 if compiled.fast is not None else _hash


def _hash(key: bytes) -> int:
    return _cached_murmur2(key) if len(key) <= _MAX_CACHED_KEY_BYTES else murmur2(key)


def next_sticky(current: int, available: Sequence[int]) -> int:
    """Return a random partition other than the current one, if there is one."""
    if len(available) == 1:
        return available[0]
    while True:
        chosen = random.choice(available)  # noqa: S311
        if chosen != current:
            return chosen


def next_in_turn(current: int, available: Sequence[int]) -> int:
    """Return the partition after the current one. `available` is sorted."""
    return available[bisect_right(available, current) % len(available)]
