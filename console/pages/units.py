"""Numbers as people read them, with their units."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Protocol

_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DURATIONS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000), ("ms", 1))
# How Kafka's configs say that there is no limit.
_UNLIMITED = (2**63 - 1, 2**31 - 1)
#: Kafka's client quotas, and what they limit.
QUOTAS = {
    "producer_byte_rate": "Bytes produced per second",
    "consumer_byte_rate": "Bytes consumed per second",
    "request_percentage": "Percentage of a thread's time",
    "controller_mutation_rate": "Partitions changed per second",
    "connection_creation_rate": "Connections per second, of an address",
}


class _TopicPartition(Protocol):
    topic: str
    partition: int


def by_topic(tps: Iterable[_TopicPartition]) -> list[tuple[str, str]]:
    """Return topics, each with its partitions as ranges: 0–5, 8."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for tp in tps:
        found[tp.topic].append(tp.partition)
    return [(topic, ranges(found[topic])) for topic in sorted(found)]


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers with those that follow each other as ranges."""
    runs: list[list[int]] = []
    for one in sorted(numbers):
        if runs and one == runs[-1][-1] + 1:
            runs[-1][1:] = [one]
        else:
            runs.append([one])
    return ", ".join("–".join(map(str, run)) for run in runs)


def number(value: float | None) -> str:
    """Return a number with its thousands apart."""
    return "–" if value is None else f"{value:,}".replace(",", "\u2009")


def size(value: float | None) -> str:
    """Return bytes."""
    if value is None:
        return "–"
    for unit in _SIZES:
        if abs(value) < 1024 or unit == _SIZES[-1]:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError


def rate(value: float | None) -> str:
    """Return a number per second."""
    if value is None:
        return "–"
    return f"{number(round(value, 1) if 0 < value < 10 else round(value))}/s"


def duration(milliseconds: int) -> str:
    """Return a time in the largest unit in which it is not broken."""
    for unit, length in _DURATIONS:
        if milliseconds and milliseconds % length == 0:
            return f"{number(milliseconds // length)} {unit}"
    return "0 ms"


def quota(value: float, name: str) -> str:
    """Return the value of a client quota."""
    if name.endswith("_byte_rate"):
        return f"{size(value)}/s"
    if name == "request_percentage":
        return f"{value:g} %"
    return f"{value:g}/s" if name.endswith("_rate") else f"{value:g}"


def meaning(config: str, value: str | None) -> str:
    """Return what the number of a config means, if its name tells the unit."""
    try:
        amount = int(value or "")
    except ValueError:
        return ""
    if amount in _UNLIMITED:
        return "no limit"
    if config.endswith(".ms") and amount >= 1000:
        return duration(amount)
    if config.endswith((".bytes", ".size")) and amount >= 1024:
        return size(amount)
    return ""
