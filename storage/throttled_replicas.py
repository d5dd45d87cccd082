"""Lists of throttled replicas: leader.replication.throttled.replicas, and that of followers.

A list has a `PARTITION:BROKER` for each replica, or is `*` for all replicas of the topic.
"""

from __future__ import annotations

from functools import lru_cache

from ottla.protocol.configdef import ConfigError

_ALL = "*"


@lru_cache(maxsize=1024)
def parse_throttled_replicas(text: str) -> frozenset[tuple[int, int]] | None:
    """Return the partitions with their brokers; None if all are throttled. Raises ConfigError."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if words == [_ALL]:
        return None
    try:
        return frozenset((int(index), int(broker)) for index, broker in map(_split, words))
    except ValueError:
        raise ConfigError(
            f"Invalid throttled replicas {text!r}: expected PARTITION:BROKER,… or *"
        ) from None


def is_throttled(text: str, index: int, broker_id: int) -> bool:
    """Whether a list has the replica of a partition on a broker."""
    if not text:
        return False
    replicas = parse_throttled_replicas(text)
    return replicas is None or (index, broker_id) in replicas


def _split(word: str) -> tuple[str, str]:
    index, colon, broker = word.partition(":")
    if not (colon and index.isdecimal() and broker.isdecimal()):
        raise ValueError(word)
    return index, broker
